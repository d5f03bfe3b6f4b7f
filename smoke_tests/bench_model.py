"""ResNet-18 for CIFAR-10 input (3×32×32): its weights and its forward pass in NumPy float64.

The usual stem for small images: 3×3 with stride 1 and no pooling. Batch norm uses given statistics (inference).
"""

import numpy as np

CLASSES = 10
SHAPE = (3, 32, 32)
EPSILON = 1e-5
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


def blocks():
    """(name, channels in, channels out, stride) of the eight blocks."""
    found, before = [], 64
    for stage, (width, stride) in enumerate(STAGES):
        for index in range(2):
            found.append(("s{0}b{1}".format(stage, index), before, width, stride if index == 0 else 1))
            before = width
    return found


def _norm(weights, rng, name, width):
    weights[name + "_scale"] = (1 + 0.1 * rng.randn(width)).astype(np.float32)
    weights[name + "_shift"] = (0.1 * rng.randn(width)).astype(np.float32)
    weights[name + "_mean"] = (0.1 * rng.randn(width)).astype(np.float32)
    weights[name + "_var"] = (0.5 + rng.rand(width)).astype(np.float32)


def _conv(weights, rng, name, out, before, side):
    deviation = np.sqrt(2.0 / (before * side * side))
    weights[name] = (deviation * rng.randn(out, before, side, side)).astype(np.float32)


def weights(seed):
    """Float32, by name: kernels OIHW, the dense weight (in, out)."""
    rng, found = np.random.RandomState(seed), {}
    _conv(found, rng, "stem", 64, 3, 3)
    _norm(found, rng, "stem_bn", 64)
    for name, before, width, stride in blocks():
        _conv(found, rng, name + "_conv1", width, before, 3)
        _norm(found, rng, name + "_bn1", width)
        _conv(found, rng, name + "_conv2", width, width, 3)
        _norm(found, rng, name + "_bn2", width)
        if stride != 1 or before != width:
            _conv(found, rng, name + "_down", width, before, 1)
            _norm(found, rng, name + "_down_bn", width)
    found["fc_w"] = (rng.randn(512, CLASSES) / np.sqrt(512)).astype(np.float32)
    found["fc_b"] = np.zeros(CLASSES, np.float32)
    return found


def images(seed, batch):
    return np.random.RandomState(seed + 1).randn(*((batch,) + SHAPE)).astype(np.float32)


def _convolved(x, w, stride, padding):
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    side = w.shape[2]
    height, width = (x.shape[2] - side) // stride + 1, (x.shape[3] - side) // stride + 1
    out = np.zeros((x.shape[0], height, width, w.shape[0]))
    for i in range(side):
        for j in range(side):
            patch = x[:, :, i : i + stride * height : stride, j : j + stride * width : stride]
            out += np.tensordot(patch, w[:, :, i, j].astype(np.float64), ((1,), (1,)))
    return out.transpose(0, 3, 1, 2)


def forward(w, x):
    """Logits in float64: what every framework's model must give."""

    def normed(x, name):
        shape = (1, -1, 1, 1)
        scale = w[name + "_scale"] / np.sqrt(w[name + "_var"].astype(np.float64) + EPSILON)
        return (x - w[name + "_mean"].reshape(shape)) * scale.reshape(shape) + w[name + "_shift"].reshape(shape)

    x = np.maximum(normed(_convolved(x.astype(np.float64), w["stem"], 1, 1), "stem_bn"), 0)
    for name, _, _, stride in blocks():
        out = np.maximum(normed(_convolved(x, w[name + "_conv1"], stride, 1), name + "_bn1"), 0)
        out = normed(_convolved(out, w[name + "_conv2"], 1, 1), name + "_bn2")
        if name + "_down" in w:
            x = normed(_convolved(x, w[name + "_down"], stride, 0), name + "_down_bn")
        x = np.maximum(out + x, 0)
    return x.mean(axis=(2, 3)) @ w["fc_w"].astype(np.float64) + w["fc_b"]
