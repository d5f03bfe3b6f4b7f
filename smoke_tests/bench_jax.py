"""ResNet-18 in JAX and its ways out."""

import os

import numpy as np
from envforge_smoke import bench_model, bench_routes


class Bench(object):
    ROUTES = ("jit", "export.stablehlo", "export.savedmodel", "export.onnx", "export.tensorrt")
    STATIC = ("export.stablehlo", "export.savedmodel", "export.onnx", "export.tensorrt")

    def __init__(self, adapter, device):
        self.a, self.device, self.jax, self.np = adapter, device, adapter.jax, adapter.jnp
        adapter._forward = self.forward  # the adapter's export routes then write this model

    def forward(self, w, x):
        jax, jnp = self.jax, self.np

        def conv(x, name, stride, padding):
            pads = [(padding, padding)] * 2
            return jax.lax.conv_general_dilated(x, w[name], (stride, stride), pads)

        def norm(x, name):
            shape = (1, -1, 1, 1)
            scale = w[name + "_scale"] / jnp.sqrt(w[name + "_var"] + bench_model.EPSILON)
            return (x - w[name + "_mean"].reshape(shape)) * scale.reshape(shape) + w[name + "_shift"].reshape(shape)

        x = jnp.maximum(norm(conv(x, "stem", 1, 1), "stem_bn"), 0)
        for name, _, _, stride in bench_model.blocks():
            out = jnp.maximum(norm(conv(x, name + "_conv1", stride, 1), name + "_bn1"), 0)
            out = norm(conv(out, name + "_conv2", 1, 1), name + "_bn2")
            if name + "_down" in w:
                x = norm(conv(x, name + "_down", stride, 0), name + "_down_bn")
            x = jnp.maximum(out + x, 0)
        return x.mean(axis=(2, 3)) @ w["fc_w"] + w["fc_b"]

    def model(self, weights):
        return self.a.model(weights, self.device)

    def native(self, model):
        return lambda x: np.asarray(model[0](model[1], self.a.tensor(x, self.device)))

    def write(self, route, model, x, folder):
        a = self.a
        if route == "jit":
            a._write_checkpoint(model, x, folder)
        elif route == "export.stablehlo":
            a._write_stablehlo(model, x, folder)
        elif route == "export.savedmodel":
            a._write_saved(model, x, folder)
        elif route == "export.onnx":
            bench_routes.write_onnx(folder, a._onnx(model, x))
        else:
            bench_routes.write_tensorrt(folder, a._onnx(model, x), x)

    def load(self, route, folder, weights):
        if route == "jit":
            with np.load(os.path.join(folder, "c.npz")) as saved:
                return self.native(self.model({name: saved[name] for name in saved.files}))
        if route == "export.stablehlo":
            from jax import export

            with open(os.path.join(folder, "m.bin"), "rb") as stream:
                exported = export.deserialize(bytearray(stream.read()))
            call = self.jax.jit(exported.call)
            return lambda x: np.asarray(call(self.a.tensor(x, self.device)))
        if route == "export.savedmodel":
            import tensorflow as tf

            tf.config.set_visible_devices([], "GPU")
            loaded = tf.saved_model.load(os.path.join(folder, "saved"))
            return lambda x: loaded.f(tf.constant(x)).numpy()
        raise KeyError(route)  # ONNX and TensorRT are opened without this framework (bench_run.py)
