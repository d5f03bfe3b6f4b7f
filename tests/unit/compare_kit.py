"""The real suite with stand-ins for torch and jax: NumPy in their places, told by FAKE_WRONG what to do wrong."""

from __future__ import annotations

from envforge import smoke

ADAPTER = """
import os
import numpy as np
from envforge_smoke import reference
from envforge_smoke.adapters.base import Base

NAME = "@NAME@"
_side, _, _what = os.environ.get("FAKE_WRONG", "").partition(":")


def wrong(what):
    return _side == NAME and _what == what


class Adapter(Base):
    name = NAME

    def load(self):
        if wrong("load"):
            raise ImportError("libnothing.so.1: cannot open shared object file: No such file")
        if wrong("die"):
            os.kill(os.getpid(), 9)
        print("noise while importing")

    def versions(self):
        return {"version": "1.0", "cuda": None}

    def gpus(self):
        return []

    def seed(self, number):
        np.random.seed(number)

    def tensor(self, array, device):
        return array

    def numpy(self, tensor):
        return tensor

    def matmul(self, a, b):
        return a @ b

    def model(self, weights, device):
        return {name: np.array(array) for name, array in weights.items()}

    def predict(self, model, x):
        out = reference.tiny_forward(model, x).astype(np.float32)
        return out * np.float32(1.001) if wrong("predict") else out

    def routes(self):
        return {"export.checkpoint": (self._write, self._read), "export.tensorrt": (None, None)}

    def _write(self, model, x, folder):
        np.savez(os.path.join(folder, "c.npz"), **model)
        return "npz"

    def _read(self, folder, x, device):
        if wrong("unreadable"):
            raise ValueError("Unrecognized keyword arguments passed to LSTM: {'time_major': False}")
        with np.load(os.path.join(folder, "c.npz")) as saved:
            model = {name: saved[name] for name in saved.files}
        out = self.predict(model, x)
        return out + 1 if wrong("reload") else out
"""

OPERATORS = """

class FakeOps(object):
    LAYOUT = {"conv_w": @CONV@, "conv_b": (0,), "dense_w": @DENSE@, "dense_b": (0,)}
    BATCH_NORM_KEEPS = 0.9
    RESIZE_ANTIALIAS = @ANTIALIAS@
    SAME = @SAME@
    LOSS_WANTS = "logits"

    def __init__(self, adapter, device):
        self.a, self.device = adapter, device

    def _out(self, name, value):
        from envforge_smoke.adapters.@NAME@_ import wrong

        value = np.asarray(value, np.float32)
        return value * np.float32(1.01) if wrong(name) else value

    def conv2d(self, x, w, stride, padding):
        return self._out("conv2d", _r.conv2d(x, w, stride, padding))

    def conv2d_same(self, x, w, stride):
        pad = w.shape[2] // 2
        if self.SAME == "end":
            pad = tuple(_r.same_padding(n, w.shape[2], stride) for n in x.shape[2:])
        return self._out("conv2d_same", _r.conv2d(x, w, stride, pad))

    def dense(self, x, w, b):
        return self._out("dense", _r.dense(x, w, b))

    def batch_norm(self, x, scale, shift):
        return self._out("batch_norm", _r.batch_norm(x, scale, shift)[0])

    def running_mean(self, x):
        batch = _r.batch_norm(x, 1, 0)[1]
        return self._out("running_mean", _r.running_mean(0 * batch, batch, 0.9))

    def layer_norm(self, x, scale, shift):
        return self._out("layer_norm", _r.layer_norm(x, scale, shift))

    def softmax_cross_entropy(self, logits, labels):
        return float(_r.softmax_cross_entropy(logits, labels))

    default_loss = softmax_cross_entropy

    def attention(self, q, k, v):
        return self._out("attention", _r.attention(q, k, v))

    def resize(self, x, height, width):
        return self._out("resize", _r.resize_bilinear(x, height, width))

    def default_resize(self, x, height, width):
        return self._out("default_resize", _r.resize_bilinear(x, height, width, antialias=self.RESIZE_ANTIALIAS))

    def native_weights(self, model):
        native = from_reference(self, model)
        native["dense_w"] = self._out("native_weights", native["dense_w"])
        return native

    def step(self, weights, x, target, rate):
        weights = {name: np.asarray(array, np.float64) for name, array in weights.items()}
        d_out = 2 * (_r.tiny_forward(weights, x) - target) / target.size
        hidden = _r.conv2d(x, weights["conv_w"]) + np.reshape(weights["conv_b"], (1, -1, 1, 1))
        pooled = np.maximum(hidden, 0).mean(axis=(2, 3))
        moved = dict(weights)
        moved["dense_w"] = self._out("step", weights["dense_w"] - rate * (pooled.T @ d_out))
        moved["dense_b"] = weights["dense_b"] - rate * d_out.sum(axis=0)
        return from_reference(self, {name: np.asarray(array, np.float32) for name, array in moved.items()})


OPS["@NAME@"] = FakeOps
"""

# The two stand-ins differ in layout and in two defaults, as real frameworks do.
SIDES = {
    "torch": {"CONV": "(0, 1, 2, 3)", "DENSE": "(1, 0)", "ANTIALIAS": "False", "SAME": "'symmetric'"},
    "jax": {"CONV": "(3, 2, 0, 1)", "DENSE": "(0, 1)", "ANTIALIAS": "True", "SAME": "'end'"},
}


def fake_suite() -> dict[str, bytes]:
    """The suite's files with the stand-ins in the places of the torch and jax adapters and operators."""
    files = smoke.suite()
    operators = files["smoke_tests/operators.py"].decode() + "\n\nfrom envforge_smoke import reference as _r\n"
    for name, words in SIDES.items():
        adapter, text = ADAPTER.replace("@NAME@", name), OPERATORS
        for word, value in {**words, "NAME": name}.items():
            text = text.replace(f"@{word}@", value)
        files[f"smoke_tests/adapters/{name}_.py"] = adapter.encode()
        operators += text
    files["smoke_tests/operators.py"] = operators.encode()
    # The stand-ins have no torch or TensorFlow behind them: no upgrade cases of their own.
    upgrade = files["smoke_tests/compare_upgrade.py"].decode()
    files["smoke_tests/compare_upgrade.py"] = (upgrade + "\n\ndef extras(adapter):\n    return {}\n").encode()
    return files
