"""TensorFlow (with the Keras it brings)."""

import os
import random

from envforge_smoke import onnx_tools
from envforge_smoke.adapters.base import Base
from envforge_smoke.outcome import Failed, MissingPackage, Unavailable


class Adapter(Base):
    name = "tensorflow"

    def load(self):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        os.environ.setdefault("TF_CUDNN_DETERMINISTIC", "1")
        import tensorflow as tf

        self.tf = tf
        try:
            tf.config.experimental.enable_op_determinism()
        except AttributeError:  # before TensorFlow 2.8
            os.environ["TF_DETERMINISTIC_OPS"] = "1"

    def prepare_reload(self):
        self.tf.keras.layers.Dense(1)  # Keras is loaded on first use
        for module in ("onnx", "onnxruntime"):
            try:
                onnx_tools.need(module)
            except Exception:
                pass

    def versions(self):
        info = dict(self.tf.sysconfig.get_build_info())
        built = bool(info.get("is_cuda_build"))
        return {
            "version": self.tf.__version__,
            "cuda": str(info.get("cuda_version")) if built else None,
            "cudnn": str(info.get("cudnn_version")) if built else None,
            "keras": self._keras_version(),
        }

    def _keras_version(self):
        try:
            from importlib import metadata

            return metadata.version("keras")
        except Exception:
            return None

    def gpus(self):
        found = []
        for device in self.tf.config.list_physical_devices("GPU"):
            details = self.tf.config.experimental.get_device_details(device)
            capability = details.get("compute_capability")
            found.append(
                {
                    "name": details.get("device_name"),
                    "capability": "{0}.{1}".format(*capability) if capability else None,
                }
            )
        return found

    def gpu_trouble(self):
        return "" if self.tf.test.is_built_with_cuda() else "this TensorFlow is a CPU build"

    def kernels(self):
        info = self.tf.sysconfig.get_build_info()
        return list(info.get("cuda_compute_capabilities") or []) or None

    def seed(self, number):
        import numpy as np

        random.seed(number)
        np.random.seed(number)
        self.tf.random.set_seed(number)

    @staticmethod
    def _place(device):
        return "/GPU:0" if device == "gpu" else "/CPU:0"

    def tensor(self, array, device):
        with self.tf.device(self._place(device)):
            return self.tf.identity(self.tf.constant(array))

    def numpy(self, tensor):
        return tensor.numpy()

    def device_of(self, tensor):
        return "gpu" if "GPU" in tensor.device.upper() else "cpu"

    def cast(self, tensor, kind):
        return self.tf.cast(tensor, getattr(self.tf, kind))

    def move(self, tensor, device):
        with self.tf.device(self._place(device)):
            return self.tf.identity(tensor)

    def matmul(self, a, b):
        with self.tf.device(a.device):
            return self.tf.linalg.matmul(a, b)

    def conv2d(self, x, w, stride, padding, device):
        tf = self.tf
        with tf.device(self._place(device)):
            # The CPU kernels know NHWC only; explicit padding is given as numbers, never as "same".
            pads = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
            out = tf.nn.conv2d(x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), strides=stride, padding=pads)
        if self.device_of(out) != device:
            raise Failed("the convolution ran on the {0}".format(self.device_of(out)), "wrong-device")
        return out.numpy().transpose(0, 3, 1, 2)

    def cubic_gradient(self, x, device):
        tf = self.tf
        with tf.device(self._place(device)):
            t = tf.constant(x)
            with tf.GradientTape() as tape:
                tape.watch(t)
                y = tf.reduce_sum(t**3)
            return tape.gradient(y, t).numpy()

    def tf32_setting(self):
        return "on" if self.tf.config.experimental.tensor_float_32_execution_enabled() else "off"

    def set_tf32(self, on):
        self.tf.config.experimental.enable_tensor_float_32_execution(on)
        return True

    def gpu_memory(self):
        try:
            return int(self.tf.config.experimental.get_memory_info("GPU:0")["current"])
        except (AttributeError, ValueError):
            return None

    def train(self, x, y, weights, steps, rate, device):
        tf = self.tf
        with tf.device(self._place(device)):
            w1, b1, w2, b2 = variables = [tf.Variable(w) for w in weights]
            x, y = tf.constant(x), tf.constant(y)
            x, y = tf.identity(x), tf.identity(y)
            losses = []
            for _ in range(steps):
                with tf.GradientTape() as tape:
                    out = tf.tanh(x @ w1 + b1) @ w2 + b2
                    loss = tf.reduce_mean((out - y) ** 2)
                gradients = tape.gradient(loss, variables)
                for variable, gradient in zip(variables, gradients):
                    variable.assign_sub(rate * gradient)
                losses.append(float(loss))
        places = [self.device_of(t) for t in [out, loss] + list(gradients) + [v.read_value() for v in variables]]
        return losses, [v.numpy() for v in variables], places

    # -- the tiny model and its exports --------------------------------------------------------------------

    def _empty(self):
        k = self.tf.keras
        return k.Sequential(
            [
                k.layers.Input((8, 8, 3)),
                k.layers.Conv2D(4, 3, activation="relu"),
                k.layers.GlobalAveragePooling2D(),
                k.layers.Dense(5),
            ]
        )

    def model(self, weights, device):
        with self.tf.device(self._place(device)):
            net = self._empty()
            net.set_weights(
                [weights["conv_w"].transpose(2, 3, 1, 0), weights["conv_b"], weights["dense_w"], weights["dense_b"]]
            )
        return net

    @staticmethod
    def nhwc(x):
        return x.transpose(0, 2, 3, 1).copy()

    def predict(self, model, x):
        return model(self.nhwc(x), training=False).numpy()

    def routes(self):
        return {
            "export.checkpoint": (self._write_checkpoint, self._read_checkpoint),
            "export.savedmodel": (self._write_saved, self._read_saved),
            "export.keras": (self._write_keras, self._read_keras),
            "export.tflite": (self._write_tflite, self._read_tflite),
            "export.onnx": (self._write_onnx, self._read_onnx),
            "export.tensorrt": (self._write_tensorrt, self._read_tensorrt),
        }

    def _write_checkpoint(self, model, x, folder):
        self.tf.train.Checkpoint(model=model).write(os.path.join(folder, "c"))
        return "tf.train.Checkpoint"

    def _read_checkpoint(self, folder, x, device):
        net = self._empty()
        net(self.nhwc(x))
        status = self.tf.train.Checkpoint(model=net).read(os.path.join(folder, "c"))
        status.assert_existing_objects_matched()
        return self.predict(net, x)

    def _function(self, model):
        tf = self.tf
        spec = tf.TensorSpec((None, 8, 8, 3), tf.float32, name="x")
        return tf.function(lambda x: model(x, training=False), input_signature=[spec])

    def _write_saved(self, model, x, folder):
        tf = self.tf
        path = os.path.join(folder, "saved")
        if hasattr(model, "export"):
            try:
                model.export(path, verbose=False)
            except TypeError:
                model.export(path)
            return "model.export"
        tf.saved_model.save(model, path, signatures=self._function(model).get_concrete_function())
        return "tf.saved_model.save"

    def _read_saved(self, folder, x, device):
        loaded = self.tf.saved_model.load(os.path.join(folder, "saved"))
        signature = loaded.signatures["serving_default"] if "serving_default" in loaded.signatures else loaded.serve
        name = list(signature.structured_input_signature[1])[0]
        return list(signature(**{name: self.tf.constant(self.nhwc(x))}).values())[0].numpy()

    def _write_keras(self, model, x, folder):
        self.keras_file(model, folder)
        return "Keras {0}".format(self._keras_version())

    def keras_file(self, model, folder):
        path = os.path.join(folder, "m.keras")
        try:
            model.save(path)
        except (ValueError, NotImplementedError) as error:  # a Keras before the .keras format
            raise Unavailable("this Keras does not write .keras files: {0}".format(error))

    def _read_keras(self, folder, x, device):
        return self.predict(self.tf.keras.models.load_model(os.path.join(folder, "m.keras")), x)

    def _write_tflite(self, model, x, folder):
        # Through a SavedModel: converting the function leaves the weights as variables that nothing fills later.
        self._write_saved(model, x, folder)
        converter = self.tf.lite.TFLiteConverter.from_saved_model(os.path.join(folder, "saved"))
        with open(os.path.join(folder, "m.tflite"), "wb") as stream:
            stream.write(converter.convert())
        return ""

    def _read_tflite(self, folder, x, device):
        try:
            from ai_edge_litert.interpreter import Interpreter

            how = "LiteRT"
        except ImportError:
            Interpreter, how = self.tf.lite.Interpreter, "tf.lite"
        interpreter = Interpreter(model_path=os.path.join(folder, "m.tflite"))
        feed = interpreter.get_input_details()[0]
        interpreter.resize_tensor_input(feed["index"], [len(x), 8, 8, 3])
        interpreter.allocate_tensors()
        interpreter.set_tensor(feed["index"], self.nhwc(x))
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), how

    def _onnx(self, model):
        """tf2onnx from a function with a signature: from_keras knows Keras 2 only, Keras 3 has no _get_save_spec."""
        try:
            import tf2onnx
        except ImportError as error:
            if getattr(error, "name", "") == "tf2onnx":
                raise MissingPackage("tf2onnx")
            raise
        spec = (self.tf.TensorSpec((None, 8, 8, 3), self.tf.float32, name="x"),)

        def export(path, opset):
            tf2onnx.convert.from_function(self._function(model), input_signature=spec, opset=opset, output_path=path)

        return export, tf2onnx

    def _write_onnx(self, model, x, folder):
        export, tf2onnx = self._onnx(model)
        ceiling = max(tf2onnx.constants.OPSET_TO_IR_VERSION) if hasattr(tf2onnx, "constants") else 18
        said = onnx_tools.write_opsets(folder, export, ceiling)
        keras = self._keras_version() or ""
        why = (
            "Keras 3 is not known to from_keras (tf-keras with TF_USE_LEGACY_KERAS=1 would be)"
            if keras[:1] == "3"
            else ""
        )
        return "tf2onnx {0} from a function with an input signature{1}; {2}".format(
            tf2onnx.__version__, ": " + why if why else "", said
        )

    def _read_onnx(self, folder, x, device):
        return onnx_tools.read_opsets(folder, x, device, self.nhwc)

    def _write_tensorrt(self, model, x, folder):
        return onnx_tools.write_tensorrt(folder, self._onnx(model)[0], self.nhwc(x))

    def _read_tensorrt(self, folder, x, device):
        return onnx_tools.read_tensorrt(folder, self.nhwc(x), device)

    # -- stress ---------------------------------------------------------------------------------------------

    def compiled(self, model, x):
        quick = self.tf.function(lambda v: model(v, training=False), jit_compile=True)
        return quick(self.tf.constant(self.nhwc(x))).numpy(), "tf.function with XLA"

    def allreduce(self, count):
        tf = self.tf
        strategy = tf.distribute.MirroredStrategy(["/gpu:{0}".format(i) for i in range(count)])

        def step():
            context = tf.distribute.get_replica_context()
            mine = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        return [float(v) for v in strategy.experimental_local_results(strategy.run(step))]
