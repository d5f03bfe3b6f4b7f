"""JAX."""

import importlib.util
import os
import random

from envforge_smoke import onnx_tools
from envforge_smoke.adapters.base import Base
from envforge_smoke.outcome import MissingPackage, Unavailable, describe


class Adapter(Base):
    name = "jax"

    def load(self):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        flags = os.environ.get("XLA_FLAGS", "")
        if "xla_gpu_deterministic_ops" not in flags and self.entry.get("accelerator") != "cpu":
            os.environ["XLA_FLAGS"] = (flags + " --xla_gpu_deterministic_ops=true").strip()
        if self.entry.get("accelerator") == "cpu" or self.plan["expect_gpu"] == "none":
            os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import jax.numpy as jnp

        self.jax, self.jnp = jax, jnp
        self._precision = None
        self._trouble = ""

    def prepare_reload(self):
        for module in ("jax.export", "flatbuffers", "onnx", "onnxruntime"):
            try:
                onnx_tools.need(module)
            except Exception:
                pass

    def versions(self):
        from envforge_smoke import structure

        have = structure.installed()
        plugins = sorted(name for name in have if name.startswith("jax-cuda") and name.endswith("-plugin"))
        cuda = plugins[0][len("jax-cuda") : -len("-plugin")] if plugins else None
        if cuda is None and "+cuda" in have.get("jaxlib", ""):  # wheels before the plugins: 0.4.20+cuda12.cudnn89
            cuda = have["jaxlib"].partition("+cuda")[2].split(".")[0]
            cuda = "11" if cuda.startswith("11") else cuda
        return {"version": self.jax.__version__, "jaxlib": have.get("jaxlib"), "cuda": cuda}

    def gpus(self):
        try:
            devices = self.jax.devices("gpu")
        except RuntimeError as error:
            self._trouble = describe(error)
            return []
        return [
            {"name": d.device_kind, "capability": str(getattr(d, "compute_capability", "") or "") or None}
            for d in devices
        ]

    def gpu_trouble(self):
        return self._trouble

    def seed(self, number):
        import numpy as np

        random.seed(number)
        np.random.seed(number)
        self.key = self.jax.random.PRNGKey(number)

    def _place(self, device):
        return self.jax.devices(device)[0]

    def tensor(self, array, device):
        return self.jax.device_put(array, self._place(device))

    def numpy(self, tensor):
        import numpy as np

        return np.asarray(tensor)

    def device_of(self, tensor):
        devices = tensor.devices() if callable(getattr(tensor, "devices", None)) else {tensor.device()}
        return "cpu" if all(d.platform == "cpu" for d in devices) else "gpu"

    def cast(self, tensor, kind):
        return tensor.astype(getattr(self.jnp, kind))

    def move(self, tensor, device):
        return self.jax.device_put(tensor, self._place(device))

    def matmul(self, a, b):
        return self.jnp.matmul(a, b, precision=self._precision).block_until_ready()

    def conv2d(self, x, w, stride, padding, device):
        out = self.jax.lax.conv_general_dilated(
            self.tensor(x, device),
            self.tensor(w, device),
            (stride, stride),
            [(padding, padding)] * 2,
            precision=self._precision,
        )
        return self.numpy(out)

    def cubic_gradient(self, x, device):
        return self.numpy(self.jax.grad(lambda v: (v**3).sum())(self.tensor(x, device)))

    def tf32_setting(self):
        return "off (precision highest)" if self._precision else "on (default precision)"

    def set_tf32(self, on):
        self._precision = None if on else "highest"
        return True

    def gpu_memory(self):
        stats = self._place("gpu").memory_stats()
        return int(stats["bytes_in_use"]) if stats and "bytes_in_use" in stats else None

    def train(self, x, y, weights, steps, rate, device):
        jax, jnp = self.jax, self.jnp

        def loss_of(params, x, y):
            w1, b1, w2, b2 = params
            return jnp.mean((jnp.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)

        @jax.jit
        def step(params, x, y):
            loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
            return loss, [p - rate * g for p, g in zip(params, gradients)], gradients

        params = [self.tensor(w, device) for w in weights]
        x, y = self.tensor(x, device), self.tensor(y, device)
        losses = []
        for _ in range(steps):
            loss, params, gradients = step(params, x, y)
            losses.append(float(loss))
        places = [self.device_of(t) for t in [loss] + list(params) + list(gradients)]
        return losses, [self.numpy(p) for p in params], places

    # -- the tiny model and its exports --------------------------------------------------------------------

    def _forward(self, p, x):
        jax, jnp = self.jax, self.jnp
        hidden = jax.lax.conv_general_dilated(x, p["conv_w"], (1, 1), "VALID") + p["conv_b"].reshape(1, -1, 1, 1)
        return jnp.maximum(hidden, 0).mean(axis=(2, 3)) @ p["dense_w"] + p["dense_b"]

    def model(self, weights, device):
        return (self.jax.jit(self._forward), {name: self.tensor(w, device) for name, w in weights.items()})

    def predict(self, model, x):
        return self.numpy(model[0](model[1], x))

    def routes(self):
        return {
            "export.checkpoint": (self._write_checkpoint, self._read_checkpoint),
            "export.stablehlo": (self._write_stablehlo, self._read_stablehlo),
            "export.savedmodel": (self._write_saved, self._read_saved),
            "export.onnx": (self._write_onnx, onnx_tools.read_opsets),
            "export.tensorrt": (self._write_tensorrt, onnx_tools.read_tensorrt),
        }

    def _write_checkpoint(self, model, x, folder):
        import numpy as np

        np.savez(os.path.join(folder, "c.npz"), **{name: self.numpy(w) for name, w in model[1].items()})
        return "parameters as .npz"

    def _read_checkpoint(self, folder, x, device):
        import numpy as np

        saved = np.load(os.path.join(folder, "c.npz"))
        return self.predict(self.model({name: saved[name] for name in saved.files}, device), x)

    def _closed(self, model):
        params = model[1]
        return lambda x: self._forward(params, x)

    def _write_stablehlo(self, model, x, folder):
        if importlib.util.find_spec("jax.export") is None:
            raise Unavailable("jax {0} has no jax.export (it came with 0.4.30)".format(self.jax.__version__))
        export = onnx_tools.need("jax.export", route="part of jax")
        exported = export.export(self.jax.jit(self._closed(model)))(self.jax.ShapeDtypeStruct(x.shape, x.dtype))
        try:
            blob = exported.serialize()
        except ImportError as error:
            if "flatbuffers" in str(error):
                raise MissingPackage("flatbuffers", "jax.export writes with it but jax does not declare it")
            raise
        with open(os.path.join(folder, "m.bin"), "wb") as stream:
            stream.write(blob)
        return "calling convention {0}".format(exported.calling_convention_version)

    def _read_stablehlo(self, folder, x, device):
        from jax import export

        with open(os.path.join(folder, "m.bin"), "rb") as stream:
            exported = export.deserialize(bytearray(stream.read()))
        return self.numpy(exported.call(self.tensor(x, device)))

    def _write_saved(self, model, x, folder):
        tf = onnx_tools.need("tensorflow")
        from jax.experimental import jax2tf

        tf.config.set_visible_devices([], "GPU")
        module = tf.Module()
        native = jax2tf.convert(self._closed(model), with_gradient=False, native_serialization_platforms=["cpu"])
        module.f = tf.function(native, autograph=False, input_signature=[tf.TensorSpec(x.shape, tf.float32)])
        tf.saved_model.save(module, os.path.join(folder, "saved"))
        return "jax2tf, for the CPU"

    def _read_saved(self, folder, x, device):
        tf = onnx_tools.need("tensorflow")
        tf.config.set_visible_devices([], "GPU")
        return tf.saved_model.load(os.path.join(folder, "saved")).f(tf.constant(x)).numpy()

    def _onnx(self, model, x):
        jax2onnx = onnx_tools.need("jax2onnx")
        import onnx

        shape = self.jax.ShapeDtypeStruct(x.shape, x.dtype)

        def export(path, opset):
            written = jax2onnx.to_onnx(self._closed(model), [shape], opset=opset)
            onnx.save(written, path)

        return export

    def _write_onnx(self, model, x, folder):
        onnx_tools.need("onnx")
        return "jax2onnx; " + onnx_tools.write_opsets(folder, self._onnx(model, x))

    def _write_tensorrt(self, model, x, folder):
        return onnx_tools.write_tensorrt(folder, self._onnx(model, x), x)

    # -- stress ---------------------------------------------------------------------------------------------

    def compiled(self, model, x):
        lowered = self.jax.jit(lambda params, x: self._forward(params, x)).lower(model[1], x)
        return self.numpy(lowered.compile()(model[1], x)), "jax.jit, lowered and compiled anew"

    def allreduce(self, count):
        import numpy as np

        jax = self.jax
        values = np.arange(1, count + 1, dtype=np.float32)
        out = jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i", devices=jax.devices("gpu")[:count])(values)
        return [float(v) for v in np.asarray(out)]
