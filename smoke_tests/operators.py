"""The operators that frameworks are compared by, each in its framework's own words.

Every function takes and gives NumPy; images are NCHW, kernels OIHW, dense weights (in, out). ``LAYOUT`` says by which
permutation a framework's own weights become these; nothing is permuted anywhere else.
"""

import numpy as np


class TorchOps(object):
    LAYOUT = {"conv_w": (0, 1, 2, 3), "conv_b": (0,), "dense_w": (1, 0), "dense_b": (0,)}
    BATCH_NORM_KEEPS = 0.9
    RESIZE_ANTIALIAS = False
    SAME = "symmetric"

    def __init__(self, adapter, device):
        self.a, self.device, self.t = adapter, device, adapter.torch
        self.f = self.t.nn.functional

    def _in(self, *arrays):
        return [self.a.tensor(np.ascontiguousarray(array), self.device) for array in arrays]

    def conv2d(self, x, w, stride, padding):
        return self.a.conv2d(x, w, stride, padding, self.device)

    def conv2d_same(self, x, w, stride):
        """PyTorch refuses padding="same" with a stride; people write half the kernel on both sides instead."""
        return self.a.conv2d(x, w, stride, w.shape[2] // 2, self.device)

    def dense(self, x, w, b):
        x, w, b = self._in(x, w.T.copy(), b)
        return self.a.numpy(self.f.linear(x, w, b))

    def batch_norm(self, x, scale, shift):
        x, scale, shift = self._in(x, scale, shift)
        return self.a.numpy(self.f.batch_norm(x, None, None, scale, shift, training=True, eps=1e-5))

    def running_mean(self, x):
        layer = self.t.nn.BatchNorm2d(x.shape[1]).to(self.a._place(self.device))
        layer(self._in(x)[0])
        return self.a.numpy(layer.running_mean)

    def layer_norm(self, x, scale, shift):
        x, scale, shift = self._in(x, scale, shift)
        return self.a.numpy(self.f.layer_norm(x, x.shape[-1:], scale, shift, 1e-5))

    def softmax_cross_entropy(self, logits, labels):
        logits, labels = self._in(logits, labels)
        return float(self.f.cross_entropy(logits, labels))

    LOSS_WANTS = "logits"
    default_loss = softmax_cross_entropy

    def attention(self, q, k, v):
        q, k, v = self._in(q, k, v)
        if hasattr(self.f, "scaled_dot_product_attention"):
            return self.a.numpy(self.f.scaled_dot_product_attention(q, k, v))
        weights = self.t.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        return self.a.numpy(weights @ v)

    def resize(self, x, height, width):
        out = self.f.interpolate(self._in(x)[0], size=(height, width), mode="bilinear", align_corners=False)
        return self.a.numpy(out)

    default_resize = resize

    def native_weights(self, model):
        get = self.a.numpy
        return {
            "conv_w": get(model[0].weight),
            "conv_b": get(model[0].bias),
            "dense_w": get(model[4].weight),
            "dense_b": get(model[4].bias),
        }

    def step(self, weights, x, target, rate):
        model = self.a.model(weights, self.device)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        x, target = self._in(x, target)
        self.f.mse_loss(model(x), target).backward()
        with self.t.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
        return self.native_weights(model)


class TensorflowOps(object):
    LAYOUT = {"conv_w": (3, 2, 0, 1), "conv_b": (0,), "dense_w": (0, 1), "dense_b": (0,)}
    BATCH_NORM_KEEPS = 0.99
    RESIZE_ANTIALIAS = False
    SAME = "end"

    def __init__(self, adapter, device):
        self.a, self.device, self.tf = adapter, device, adapter.tf

    def _in(self, array):
        return self.a.tensor(np.ascontiguousarray(array), self.device)

    def conv2d(self, x, w, stride, padding):
        return self.a.conv2d(x, w, stride, padding, self.device)

    def conv2d_same(self, x, w, stride):
        with self.tf.device(self.a._place(self.device)):
            out = self.tf.nn.conv2d(x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), strides=stride, padding="SAME")
        return out.numpy().transpose(0, 3, 1, 2)

    def dense(self, x, w, b):
        return (self._in(x) @ self._in(w) + self._in(b)).numpy()

    def _batch_norm(self, x, scale=None, shift=None, **options):
        layer = self.tf.keras.layers.BatchNormalization(axis=-1, **options)
        layer.build((None, None, None, x.shape[1]))
        if scale is not None:
            layer.gamma.assign(scale)
            layer.beta.assign(shift)
        out = layer(x.transpose(0, 2, 3, 1), training=True)
        return self.tf.convert_to_tensor(out).numpy().transpose(0, 3, 1, 2), layer

    def batch_norm(self, x, scale, shift):
        return self._batch_norm(x, scale, shift, epsilon=1e-5)[0]

    def running_mean(self, x):
        return self.tf.convert_to_tensor(self._batch_norm(x)[1].moving_mean).numpy()

    def layer_norm(self, x, scale, shift):
        layer = self.tf.keras.layers.LayerNormalization(axis=-1, epsilon=1e-5)
        layer.build(x.shape)
        layer.gamma.assign(scale)
        layer.beta.assign(shift)
        return self.tf.convert_to_tensor(layer(x)).numpy()

    def softmax_cross_entropy(self, logits, labels):
        loss = self.tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=self._in(logits))
        return float(self.tf.reduce_mean(loss))

    LOSS_WANTS = "probabilities"

    def default_loss(self, values, labels):
        return float(self.tf.keras.losses.SparseCategoricalCrossentropy()(labels, values))

    def attention(self, q, k, v):
        tf = self.tf
        q, k, v = (self._in(array) for array in (q, k, v))
        scores = tf.matmul(q, k, transpose_b=True) / np.sqrt(q.shape[-1]).astype(np.float32)
        return tf.matmul(tf.nn.softmax(scores, axis=-1), v).numpy()

    def resize(self, x, height, width):
        out = self.tf.image.resize(x.transpose(0, 2, 3, 1), (height, width), method="bilinear")
        return out.numpy().transpose(0, 3, 1, 2)

    default_resize = resize

    def native_weights(self, model):
        return dict(zip(("conv_w", "conv_b", "dense_w", "dense_b"), model.get_weights()))

    def step(self, weights, x, target, rate):
        tf, model = self.tf, self.a.model(weights, self.device)
        variables = [tf.Variable(w) for w in model.get_weights()]
        with tf.GradientTape() as tape:
            hidden = tf.nn.conv2d(x.transpose(0, 2, 3, 1), variables[0], strides=1, padding="VALID") + variables[1]
            out = tf.reduce_mean(tf.nn.relu(hidden), axis=(1, 2)) @ variables[2] + variables[3]
            loss = tf.reduce_mean((out - target) ** 2)
        moved = [(v - rate * g).numpy() for v, g in zip(variables, tape.gradient(loss, variables))]
        return dict(zip(("conv_w", "conv_b", "dense_w", "dense_b"), moved))


class JaxOps(object):
    LAYOUT = {"conv_w": (0, 1, 2, 3), "conv_b": (0,), "dense_w": (0, 1), "dense_b": (0,)}
    BATCH_NORM_KEEPS = None  # JAX itself has no layers
    RESIZE_ANTIALIAS = True
    SAME = "end"

    def __init__(self, adapter, device):
        self.a, self.device = adapter, device
        self.jax, self.np = adapter.jax, adapter.jnp

    def _in(self, array):
        return self.a.tensor(np.ascontiguousarray(array), self.device)

    def conv2d(self, x, w, stride, padding):
        return self.a.conv2d(x, w, stride, padding, self.device)

    def conv2d_same(self, x, w, stride):
        lax = self.jax.lax
        return np.asarray(lax.conv_general_dilated(self._in(x), self._in(w), (stride, stride), "SAME"))

    def dense(self, x, w, b):
        return np.asarray(self._in(x) @ self._in(w) + self._in(b))

    def batch_norm(self, x, scale, shift):
        x = self._in(x)
        out = self.jax.nn.standardize(x, axis=(0, 2, 3), epsilon=1e-5)
        return np.asarray(out * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1))

    def layer_norm(self, x, scale, shift):
        return np.asarray(self.jax.nn.standardize(self._in(x), axis=-1, epsilon=1e-5) * scale + shift)

    def softmax_cross_entropy(self, logits, labels):
        log_p = self.jax.nn.log_softmax(self._in(logits))
        return float(-log_p[np.arange(len(labels)), labels].mean())

    LOSS_WANTS = "logits"
    default_loss = softmax_cross_entropy

    def attention(self, q, k, v):
        q, k, v = (self._in(array) for array in (q, k, v))
        if hasattr(self.jax.nn, "dot_product_attention"):  # its layout is (batch, length, heads, depth)
            q, k, v = (self.np.swapaxes(array, 1, 2) for array in (q, k, v))
            return np.asarray(self.np.swapaxes(self.jax.nn.dot_product_attention(q, k, v), 1, 2))
        scores = q @ self.np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(np.float32)
        return np.asarray(self.jax.nn.softmax(scores, axis=-1) @ v)

    def resize(self, x, height, width):
        shape = x.shape[:2] + (height, width)
        return np.asarray(self.jax.image.resize(self._in(x), shape, "bilinear", antialias=False))

    def default_resize(self, x, height, width):
        return np.asarray(self.jax.image.resize(self._in(x), x.shape[:2] + (height, width), "bilinear"))

    def native_weights(self, model):
        return {name: np.asarray(value) for name, value in model[1].items()}

    def step(self, weights, x, target, rate):
        forward, params = self.a.model(weights, self.device)
        gradients = self.jax.grad(lambda p: self.np.mean((forward(p, x) - target) ** 2))(params)
        return {name: np.asarray(params[name] - rate * gradients[name]) for name in params}


class PaddleOps(object):
    LAYOUT = {"conv_w": (0, 1, 2, 3), "conv_b": (0,), "dense_w": (0, 1), "dense_b": (0,)}
    BATCH_NORM_KEEPS = 0.9
    RESIZE_ANTIALIAS = False
    SAME = "end"

    def __init__(self, adapter, device):
        self.a, self.device, self.p = adapter, device, adapter.paddle
        self.f = self.p.nn.functional
        adapter._on(device)

    def _in(self, array):
        return self.a.tensor(np.ascontiguousarray(array), self.device)

    def conv2d(self, x, w, stride, padding):
        return self.a.conv2d(x, w, stride, padding, self.device)

    def conv2d_same(self, x, w, stride):
        return self.f.conv2d(self._in(x), self._in(w), stride=stride, padding="SAME").numpy()

    def dense(self, x, w, b):
        return self.f.linear(self._in(x), self._in(w), self._in(b)).numpy()

    def batch_norm(self, x, scale, shift):
        layer = self.p.nn.BatchNorm2D(x.shape[1], epsilon=1e-5)
        layer.weight.set_value(scale)
        layer.bias.set_value(shift)
        layer.train()
        return layer(self._in(x)).numpy()

    def running_mean(self, x):
        layer = self.p.nn.BatchNorm2D(x.shape[1])
        layer.train()
        layer(self._in(x))
        return layer._mean.numpy()

    def layer_norm(self, x, scale, shift):
        return self.f.layer_norm(self._in(x), x.shape[-1:], self._in(scale), self._in(shift), 1e-5).numpy()

    def softmax_cross_entropy(self, logits, labels):
        return float(self.f.cross_entropy(self._in(logits), self._in(labels)))

    LOSS_WANTS = "logits"
    default_loss = softmax_cross_entropy

    def attention(self, q, k, v):
        q, k, v = (self._in(array) for array in (q, k, v))
        scores = self.p.matmul(q, k, transpose_y=True) / float(np.sqrt(q.shape[-1]))
        return self.p.matmul(self.f.softmax(scores, axis=-1), v).numpy()

    def resize(self, x, height, width):
        return self.f.interpolate(self._in(x), size=[height, width], mode="bilinear", align_corners=False).numpy()

    default_resize = resize

    def native_weights(self, model):
        return {
            "conv_w": model[0].weight.numpy(),
            "conv_b": model[0].bias.numpy(),
            "dense_w": model[4].weight.numpy(),
            "dense_b": model[4].bias.numpy(),
        }

    def step(self, weights, x, target, rate):
        model = self.a.model(weights, self.device)
        loss = self.f.mse_loss(model(self._in(x)), self._in(target))
        loss.backward()
        for parameter in model.parameters():
            parameter.set_value(parameter - rate * parameter.grad)
        return self.native_weights(model)


OPS = {"torch": TorchOps, "tensorflow": TensorflowOps, "jax": JaxOps, "paddle": PaddleOps}


def to_reference(ops, native):
    """A framework's own weights in the layout of the reference."""
    return {name: np.ascontiguousarray(np.transpose(native[name], ops.LAYOUT[name])) for name in native}


def from_reference(ops, weights):
    """The other way round."""
    return {name: np.ascontiguousarray(np.transpose(weights[name], np.argsort(ops.LAYOUT[name]))) for name in weights}
