"""Keras 3 on the backend that the plan names; what belongs to the backend is asked of the backend's adapter."""

import contextlib
import importlib
import os

from envforge_smoke import onnx_tools
from envforge_smoke.adapters.base import Base
from envforge_smoke.outcome import MissingPackage, Unavailable


class Adapter(Base):
    name = "keras"

    def __init__(self, entry, plan):
        Base.__init__(self, entry, plan)
        self.backend = entry.get("backend") or "tensorflow"
        module = importlib.import_module("envforge_smoke.adapters.{0}_".format(self.backend))
        self.below = module.Adapter(entry, plan)

    def load(self):
        os.environ["KERAS_BACKEND"] = self.backend
        self.below.load()
        import keras

        self.keras = keras
        used = keras.backend.backend() if hasattr(keras, "backend") else "tensorflow"
        if used != self.backend:
            raise ImportError("Keras uses the backend {0}, planned is {1}".format(used, self.backend))

    def prepare_reload(self):
        self.below.prepare_reload()

    def versions(self):
        found = dict(self.below.versions())
        found["backend"] = "{0} {1}".format(self.backend, found["version"])
        found["version"] = self.keras.__version__
        return found

    def gpus(self):
        return self.below.gpus()

    def gpu_trouble(self):
        return self.below.gpu_trouble()

    def kernels(self):
        return self.below.kernels()

    def tf32_setting(self):
        return self.below.tf32_setting()

    def set_tf32(self, on):
        return self.below.set_tf32(on)

    def gpu_memory(self):
        return self.below.gpu_memory()

    def release(self):
        self.below.release()

    def seed(self, number):
        self.below.seed(number)
        self.keras.utils.set_random_seed(number)

    def _device(self, device):
        if self.backend == "torch":
            # Variables made inside keras.device() are no leaves there and get no gradient; the default device
            # (the GPU when there is one) is the expected one anyway.
            return contextlib.nullcontext()
        return self.keras.device("{0}:0".format(device))

    def tensor(self, array, device):
        if self.backend == "torch":
            return self.below.tensor(array, device)
        with self._device(device):
            return self.keras.ops.convert_to_tensor(array)

    def numpy(self, tensor):
        return self.keras.ops.convert_to_numpy(tensor)

    def device_of(self, tensor):
        return self.below.device_of(tensor)

    def cast(self, tensor, kind):
        return self.keras.ops.cast(tensor, kind)

    def move(self, tensor, device):
        return self.below.move(tensor, device)

    def matmul(self, a, b):
        if self.backend == "jax":  # precision is an argument there
            return self.below.matmul(a, b)
        return self.keras.ops.matmul(a, b)

    def conv2d(self, x, w, stride, padding, device):
        """Keras knows only "same" and "valid": the padding is made by hand."""
        if self.backend == "jax" and self.below._precision:
            return self.below.conv2d(x, w, stride, padding, device)
        import numpy as np

        x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding))).transpose(0, 2, 3, 1).copy()
        kernel = w.transpose(2, 3, 1, 0).copy()
        with self._device(device):
            out = self.keras.ops.conv(
                self.tensor(x, device),
                self.tensor(kernel, device),
                strides=stride,
                padding="valid",
                data_format="channels_last",
            )
        return self.numpy(out).transpose(0, 3, 1, 2)

    def cubic_gradient(self, x, device):
        return self.below.cubic_gradient(x, device)

    def train(self, x, y, weights, steps, rate, device):
        k = self.keras
        with self._device(device):
            net = k.Sequential([k.layers.Input((16,)), k.layers.Dense(32, activation="tanh"), k.layers.Dense(4)])
            net.set_weights(weights)
            net.compile(optimizer=k.optimizers.SGD(rate), loss="mse", jit_compile=False)
            losses = [float(net.train_on_batch(x, y)) for _ in range(steps)]
        places = [self.device_of(v.value if hasattr(v, "value") else v) for v in net.trainable_variables]
        return losses, [self.numpy(v) for v in net.trainable_variables], places

    # -- the tiny model and its exports --------------------------------------------------------------------

    def _empty(self):
        k = self.keras
        return k.Sequential(
            [
                k.layers.Input((8, 8, 3)),
                k.layers.Conv2D(4, 3, activation="relu"),
                k.layers.GlobalAveragePooling2D(),
                k.layers.Dense(5),
            ]
        )

    def model(self, weights, device):
        with self._device(device):
            net = self._empty()
            net.set_weights(
                [weights["conv_w"].transpose(2, 3, 1, 0), weights["conv_b"], weights["dense_w"], weights["dense_b"]]
            )
        return net

    @staticmethod
    def nhwc(x):
        return x.transpose(0, 2, 3, 1).copy()

    def predict(self, model, x):
        return self.numpy(model(self.nhwc(x), training=False))

    def routes(self):
        return {
            "export.checkpoint": (self._write_checkpoint, self._read_checkpoint),
            "export.keras": (self._write_keras, self._read_keras),
            "export.savedmodel": (self._write_saved, self._read_saved),
            "export.onnx": (self._write_onnx, self._read_onnx),
            "export.tensorrt": (self._write_tensorrt, self._read_tensorrt),
        }

    def _write_checkpoint(self, model, x, folder):
        model.save_weights(os.path.join(folder, "c.weights.h5"))
        return "weights file"

    def _read_checkpoint(self, folder, x, device):
        net = self._empty()
        net.load_weights(os.path.join(folder, "c.weights.h5"))
        return self.predict(net, x)

    def _write_keras(self, model, x, folder):
        model.save(os.path.join(folder, "m.keras"))
        return "Keras {0} on {1}".format(self.keras.__version__, self.backend)

    def _read_keras(self, folder, x, device):
        return self.predict(self.keras.models.load_model(os.path.join(folder, "m.keras")), x)

    def _write_saved(self, model, x, folder):
        onnx_tools.need("tensorflow", route="model.export writes a SavedModel with it")
        if self.backend == "torch":
            onnx_tools.need("torch_xla", route="a SavedModel from the torch backend needs it")
        model.export(os.path.join(folder, "saved"), verbose=False)
        return "model.export"

    def _read_saved(self, folder, x, device):
        tf = onnx_tools.need("tensorflow")
        loaded = tf.saved_model.load(os.path.join(folder, "saved"))
        return loaded.serve(tf.constant(self.nhwc(x))).numpy()

    def _onnx(self, model):
        import inspect

        if "format" not in inspect.signature(model.export).parameters:
            raise Unavailable("Keras {0} has no ONNX export".format(self.keras.__version__))
        if self.backend == "torch":
            onnx_tools.need("onnx")
            onnx_tools.need("onnxscript")
        else:
            onnx_tools.need("tensorflow")
            try:
                import tf2onnx  # noqa: F401
            except ImportError as error:
                if getattr(error, "name", "") == "tf2onnx":
                    raise MissingPackage("tf2onnx", "Keras writes ONNX through it on this backend")
                raise

        def export(path, opset):
            # Without a signature the file keeps a free batch size only on some backends; ours is fixed.
            shape = self.keras.layers.InputSpec(shape=(8, 8, 8, 3), dtype="float32")
            model.export(path, format="onnx", verbose=False, opset_version=opset, input_signature=[shape])

        return export

    def _write_onnx(self, model, x, folder):
        export, ceiling = self._onnx(model), None
        if self.backend != "torch":
            import tf2onnx

            ceiling = max(tf2onnx.constants.OPSET_TO_IR_VERSION)
        return "model.export; " + onnx_tools.write_opsets(folder, export, ceiling)

    def _read_onnx(self, folder, x, device):
        return onnx_tools.read_opsets(folder, x, device, self.nhwc)

    def _write_tensorrt(self, model, x, folder):
        return onnx_tools.write_tensorrt(folder, self._onnx(model), self.nhwc(x))

    def _read_tensorrt(self, folder, x, device):
        return onnx_tools.read_tensorrt(folder, self.nhwc(x), device)

    # -- stress ---------------------------------------------------------------------------------------------

    def compiled(self, model, x):
        if self.backend == "torch":
            quick = self.below.torch.compile(lambda v: model(v, training=False))
            return self.numpy(quick(self.keras.ops.convert_to_tensor(self.nhwc(x)))), "torch.compile"
        if self.backend == "jax":
            quick = self.below.jax.jit(lambda v: model(v, training=False))
            return self.numpy(quick(self.nhwc(x))), "jax.jit"
        quick = self.below.tf.function(lambda v: model(v, training=False), jit_compile=True)
        return self.numpy(quick(self.below.tf.constant(self.nhwc(x)))), "tf.function with XLA"

    def allreduce(self, count):
        return self.below.allreduce(count)
