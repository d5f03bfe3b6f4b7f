"""ResNet-18 in TensorFlow (Keras) and its ways out. Inputs come NCHW and are turned to NHWC inside the call."""

import os
import shutil

from envforge_smoke import bench_model, bench_routes
from envforge_smoke.outcome import MissingPackage


class Bench(object):
    ROUTES = (
        "eager",
        "function",
        "export.savedmodel",
        "export.keras",
        "export.tflite",
        "export.onnx",
        "export.tensorrt",
    )
    STATIC = ()

    def __init__(self, adapter, device):
        self.a, self.device, self.tf = adapter, device, adapter.tf
        spec = self.tf.TensorSpec((None, 32, 32, 3), self.tf.float32, name="x")
        adapter._function = lambda model: self.tf.function(lambda x: model(x, training=False), input_signature=[spec])
        self.spec = spec

    def model(self, weights):
        k = self.tf.keras

        def conv(x, name, stride, padding):
            kernel = weights[name].transpose(2, 3, 1, 0)
            if padding:  # padding="same" would put the odd element elsewhere
                x = k.layers.ZeroPadding2D(padding)(x)
            layer = k.layers.Conv2D(kernel.shape[3], kernel.shape[0], stride, use_bias=False)
            out = layer(x)
            layer.set_weights([kernel])
            return out

        def norm(x, name):
            layer = k.layers.BatchNormalization(axis=-1, epsilon=bench_model.EPSILON)
            out = layer(x)
            layer.set_weights([weights["{0}_{1}".format(name, part)] for part in ("scale", "shift", "mean", "var")])
            return out

        with self.tf.device(self.a._place(self.device)):
            feed = k.layers.Input((32, 32, 3))
            x = k.layers.ReLU()(norm(conv(feed, "stem", 1, 1), "stem_bn"))
            for name, _, _, stride in bench_model.blocks():
                out = k.layers.ReLU()(norm(conv(x, name + "_conv1", stride, 1), name + "_bn1"))
                out = norm(conv(out, name + "_conv2", 1, 1), name + "_bn2")
                if name + "_down" in weights:
                    x = norm(conv(x, name + "_down", stride, 0), name + "_down_bn")
                x = k.layers.ReLU()(k.layers.Add()([out, x]))
            last = k.layers.Dense(bench_model.CLASSES)
            net = k.Model(feed, last(k.layers.GlobalAveragePooling2D()(x)))
            last.set_weights([weights["fc_w"], weights["fc_b"]])
        return net

    def native(self, model):
        return lambda x: model(self.a.nhwc(x), training=False).numpy()

    def _onnx(self, model):
        try:
            import tf2onnx
        except ImportError:
            raise MissingPackage("tf2onnx")
        quick = self.a._function(model)

        def export(path, opset):
            tf2onnx.convert.from_function(quick, input_signature=(self.spec,), opset=opset, output_path=path)

        return export

    def write(self, route, model, x, folder):
        a = self.a
        if route in ("eager", "function", "export.keras"):
            a.keras_file(model, folder)
        elif route == "export.savedmodel":
            a._write_saved(model, x, folder)
        elif route == "export.tflite":
            a._write_tflite(model, x, folder)
            shutil.rmtree(os.path.join(folder, "saved"))  # a step on the way, not what is shipped
        elif route == "export.onnx":
            bench_routes.write_onnx(folder, self._onnx(model))
        else:
            bench_routes.write_tensorrt(folder, self._onnx(model), a.nhwc(x))

    def load(self, route, folder, weights):
        tf, nhwc = self.tf, self.a.nhwc
        if route in ("eager", "function", "export.keras"):
            path = os.path.join(folder, "m.keras")
            model = tf.keras.models.load_model(path) if route == "export.keras" else self.model(weights())
            if route == "eager":
                return self.native(model)
            quick = self.a._function(model)
            return lambda x: quick(tf.constant(nhwc(x))).numpy()
        if route == "export.savedmodel":
            loaded = tf.saved_model.load(os.path.join(folder, "saved"))
            call = loaded.signatures["serving_default"] if "serving_default" in loaded.signatures else loaded.serve
            name = list(call.structured_input_signature[1])[0]
            self.kept = loaded  # a signature does not keep its model alive
            return lambda x: list(call(**{name: tf.constant(nhwc(x))}).values())[0].numpy()
        if route == "export.tflite":
            return self._tflite(folder)
        raise KeyError(route)  # ONNX and TensorRT are opened without this framework (bench_run.py)

    def _tflite(self, folder):
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError:
            Interpreter = self.tf.lite.Interpreter
        interpreter = Interpreter(model_path=os.path.join(folder, "m.tflite"), num_threads=os.cpu_count())
        feed, result = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
        size = []

        def call(x):
            if size != [len(x)]:
                interpreter.resize_tensor_input(feed, [len(x), 32, 32, 3])
                interpreter.allocate_tensors()
                size[:] = [len(x)]
            interpreter.set_tensor(feed, self.a.nhwc(x))
            interpreter.invoke()
            return interpreter.get_tensor(result)

        return call
