"""The one truth that frameworks are compared with: NumPy in float64, written for clarity and not for speed.

Images are NCHW, convolution kernels OIHW, dense weights (in, out).
"""

import numpy as np


def error(got, expected):
    """Largest difference divided by the largest expected magnitude; infinite for NaN or another shape."""
    got = np.asarray(got, dtype=np.float64)
    expected = np.asarray(expected, dtype=np.float64)
    if got.shape != expected.shape or not np.all(np.isfinite(got)):
        return float("inf")
    scale = float(np.max(np.abs(expected))) if expected.size else 0.0
    return float(np.max(np.abs(got - expected))) / (scale or 1.0) if expected.size else 0.0


def same_padding(size, kernel, stride):
    """(before, after) of the rule TensorFlow, Keras and JAX call ``same``: the odd element goes at the end."""
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def conv2d(x, w, stride=1, padding=0):
    """Cross-correlation; ``padding`` is one number for all sides or ((top, bottom), (left, right))."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    if isinstance(padding, int):
        padding = ((padding, padding), (padding, padding))
    x = np.pad(x, ((0, 0), (0, 0)) + tuple(padding))
    kh, kw = w.shape[2:]
    oh, ow = (x.shape[2] - kh) // stride + 1, (x.shape[3] - kw) // stride + 1
    out = np.zeros((x.shape[0], w.shape[0], oh, ow))
    for i in range(kh):
        for j in range(kw):
            patch = x[:, :, i : i + stride * oh : stride, j : j + stride * ow : stride]
            out += np.einsum("ncij,oc->noij", patch, w[:, :, i, j])
    return out


def dense(x, w, b):
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(b, np.float64)


def batch_norm(x, scale, shift, epsilon=1e-5):
    """Training mode over N, H, W. Returns the output, the batch mean and the (biased) batch variance."""
    x = np.asarray(x, np.float64)
    mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    shape = (1, -1, 1, 1)
    out = (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + epsilon)
    return out * np.reshape(scale, shape) + np.reshape(shift, shape), mean, var


def running_mean(old, batch, keep):
    """``keep`` is the share of the old value: PyTorch's momentum 0.1 keeps 0.9, Keras' momentum 0.99 keeps 0.99."""
    return keep * np.asarray(old, np.float64) + (1 - keep) * np.asarray(batch, np.float64)


def layer_norm(x, scale, shift, epsilon=1e-5):
    """Over the last axis."""
    x = np.asarray(x, np.float64)
    mean, var = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + epsilon) * np.asarray(scale, np.float64) + np.asarray(shift, np.float64)


def softmax(x, axis=-1):
    x = np.asarray(x, np.float64)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def softmax_cross_entropy(logits, labels):
    """Mean over the rows; ``labels`` are class numbers."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return float(-log_p[np.arange(len(labels)), labels].mean())


def attention(q, k, v):
    """Scaled dot product over (batch, heads, length, depth)."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v


def _resize_weights(old, new, antialias):
    """Rows of bilinear weights with half-pixel centres, edges renormalised."""
    scale = old / float(new)
    width = max(scale, 1.0) if antialias else 1.0
    weights = np.zeros((new, old))
    for i in range(new):
        centre = (i + 0.5) * scale - 0.5
        if antialias:
            row = np.maximum(0.0, 1.0 - np.abs(np.arange(old) - centre) / width)
            weights[i] = row / row.sum()
        else:
            at = min(max(centre, 0.0), old - 1.0)
            low = int(np.floor(at))
            high = min(low + 1, old - 1)
            weights[i, low] += 1.0 - (at - low)
            weights[i, high] += at - low
    return weights


def resize_bilinear(x, height, width, antialias=False):
    x = np.asarray(x, np.float64)
    rows = _resize_weights(x.shape[2], height, antialias)
    columns = _resize_weights(x.shape[3], width, antialias)
    return np.einsum("hi,ncij,wj->nchw", rows, x, columns)


def tiny_weights(seed):
    """Weights of the tiny model (float32): conv 3→4 (3×3, no padding), ReLU, mean over H and W, dense 4→5."""
    rng = np.random.RandomState(seed)
    shapes = {"conv_w": (4, 3, 3, 3), "conv_b": (4,), "dense_w": (4, 5), "dense_b": (5,)}
    return {name: (0.5 * rng.randn(*shapes[name])).astype(np.float32) for name in sorted(shapes)}


def tiny_input(seed, batch=8):
    return np.random.RandomState(seed + 1).randn(batch, 3, 8, 8).astype(np.float32)


def tiny_forward(weights, x):
    hidden = conv2d(x, weights["conv_w"]) + np.reshape(weights["conv_b"], (1, -1, 1, 1))
    return dense(np.maximum(hidden, 0).mean(axis=(2, 3)), weights["dense_w"], weights["dense_b"])


def mlp_task(seed):
    """Input, target and first weights (float32) of the two-layer MLP: 16 → 32 (tanh) → 4, mean squared error."""
    rng = np.random.RandomState(seed)
    x = rng.randn(64, 16).astype(np.float32)
    y = np.sin(x[:, :4]).astype(np.float32)
    weights = [
        (rng.randn(16, 32) / 4).astype(np.float32),
        np.zeros(32, np.float32),
        (rng.randn(32, 4) / 6).astype(np.float32),
        np.zeros(4, np.float32),
    ]
    return x, y, weights


def mlp_train(x, y, weights, steps, rate):
    """Plain gradient descent; returns the loss before each step and the last weights."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    w1, b1, w2, b2 = (w.astype(np.float64) for w in weights)
    losses = []
    for _ in range(steps):
        h = np.tanh(x @ w1 + b1)
        delta = h @ w2 + b2 - y
        losses.append(float((delta**2).mean()))
        d_out = 2 * delta / delta.size
        d_hidden = (d_out @ w2.T) * (1 - h**2)
        w2, b2 = w2 - rate * (h.T @ d_out), b2 - rate * d_out.sum(axis=0)
        w1, b1 = w1 - rate * (x.T @ d_hidden), b1 - rate * d_hidden.sum(axis=0)
    return losses, [w1, b1, w2, b2]
