"""MindSpore (on the CPU; its GPU build has the same calls)."""

import os
import random

from envforge_smoke import onnx_tools
from envforge_smoke.adapters.base import Base


class Adapter(Base):
    name = "mindspore"

    def load(self):
        os.environ.setdefault("GLOG_v", "3")
        import mindspore as ms

        self.ms = ms
        ms.set_context(mode=ms.PYNATIVE_MODE)
        self._target = None

    def prepare_reload(self):
        for module in ("onnx", "onnxruntime"):
            try:
                onnx_tools.need(module)
            except Exception:
                pass

    def versions(self):
        version = self.ms.__version__
        built = None
        if self.entry.get("cuda"):  # the GPU build carries one plug-in library per CUDA line beside the package
            folder = os.path.join(os.path.dirname(self.ms.__file__), "lib", "plugin")
            names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
            found = [n[len("gpu") :] for n in names if n.startswith("gpu") and n[3:4].isdigit()]
            built = found[0] if found else None
            built = self.entry["cuda"] if built and any(self.entry["cuda"].startswith(f) for f in found) else built
        return {"version": version, "cuda": built}

    def gpus(self):
        if not self.entry.get("cuda"):
            return []
        try:
            self._on("gpu")
            self.ms.ops.ones((1,), self.ms.float32).asnumpy()
        except Exception:
            return []
        return [{"name": None, "capability": None}]

    def seed(self, number):
        import numpy as np

        random.seed(number)
        np.random.seed(number)
        self.ms.set_seed(number)

    def _on(self, device):
        target = "GPU" if device == "gpu" else "CPU"
        if self._target != target:
            if hasattr(self.ms, "set_device"):
                self.ms.set_device(target)
            else:
                self.ms.set_context(device_target=target)
            self._target = target

    def tensor(self, array, device):
        self._on(device)
        return self.ms.Tensor(array)

    def numpy(self, tensor):
        return tensor.asnumpy()

    def device_of(self, tensor):
        return "gpu" if self._target == "GPU" else "cpu"

    def cast(self, tensor, kind):
        return tensor.astype(getattr(self.ms, kind))

    def move(self, tensor, device):
        return self.ms.Tensor(tensor.asnumpy())

    def matmul(self, a, b):
        return self.ms.ops.matmul(a, b)

    def conv2d(self, x, w, stride, padding, device):
        x, w = self.tensor(x, device), self.tensor(w, device)
        out = self.ms.ops.conv2d(x, w, stride=stride, pad_mode="pad", padding=padding)
        return self.numpy(out)

    def cubic_gradient(self, x, device):
        t = self.tensor(x, device)
        return self.numpy(self.ms.grad(lambda v: (v**3).sum())(t))

    def train(self, x, y, weights, steps, rate, device):
        ms, nn = self.ms, self.ms.nn
        x, y = self.tensor(x, device), self.tensor(y, device)
        net = nn.SequentialCell(nn.Dense(16, 32), nn.Tanh(), nn.Dense(32, 4))
        for layer, w, b in ((net[0], weights[0], weights[1]), (net[2], weights[2], weights[3])):
            layer.weight.set_data(ms.Tensor(w.T.copy()))
            layer.bias.set_data(ms.Tensor(b.copy()))
        optimizer = nn.SGD(net.trainable_params(), learning_rate=rate)
        criterion = nn.MSELoss()
        step = ms.value_and_grad(lambda a, b: criterion(net(a), b), None, optimizer.parameters)
        losses = []
        for _ in range(steps):
            loss, gradients = step(x, y)
            optimizer(gradients)
            losses.append(float(loss.asnumpy()))
        last = [self.numpy(t) for t in (net[0].weight, net[0].bias, net[2].weight, net[2].bias)]
        places = [self.device_of(t) for t in [loss] + list(gradients) + list(net.trainable_params())]
        return losses, [last[0].T, last[1], last[2].T, last[3]], places

    # -- the tiny model and its exports --------------------------------------------------------------------

    def _empty(self):
        ms = self.ms

        class Tiny(ms.nn.Cell):
            def __init__(self):
                super(Tiny, self).__init__()
                self.conv = ms.nn.Conv2d(3, 4, 3, pad_mode="valid", has_bias=True)
                self.relu = ms.nn.ReLU()
                self.mean = ms.ops.ReduceMean()
                self.dense = ms.nn.Dense(4, 5)

            def construct(self, x):
                return self.dense(self.mean(self.relu(self.conv(x)), (2, 3)))

        net = Tiny()
        net.set_train(False)
        return net

    def model(self, weights, device):
        self._on(device)
        net = self._empty()
        net.conv.weight.set_data(self.ms.Tensor(weights["conv_w"]))
        net.conv.bias.set_data(self.ms.Tensor(weights["conv_b"]))
        net.dense.weight.set_data(self.ms.Tensor(weights["dense_w"].T.copy()))
        net.dense.bias.set_data(self.ms.Tensor(weights["dense_b"]))
        return net

    def predict(self, model, x):
        return self.numpy(model(self.ms.Tensor(x)))

    def routes(self):
        return {
            "export.checkpoint": (self._write_checkpoint, self._read_checkpoint),
            "export.mindir": (self._write_mindir, self._read_mindir),
            "export.onnx": (self._write_onnx, onnx_tools.read_opsets),
            "export.tensorrt": (self._write_tensorrt, onnx_tools.read_tensorrt),
        }

    def _write_checkpoint(self, model, x, folder):
        self.ms.save_checkpoint(model, os.path.join(folder, "c.ckpt"))
        return ""

    def _read_checkpoint(self, folder, x, device):
        self._on(device)
        net = self._empty()
        left = self.ms.load_param_into_net(net, self.ms.load_checkpoint(os.path.join(folder, "c.ckpt")))
        missing = left[0] if isinstance(left, tuple) else left
        if missing:
            raise RuntimeError("parameters missing from the checkpoint: {0}".format(missing))
        return self.predict(net, x)

    def _write_mindir(self, model, x, folder):
        self.ms.export(model, self.ms.Tensor(x), file_name=os.path.join(folder, "m"), file_format="MINDIR")
        return ""

    def _read_mindir(self, folder, x, device):
        self._on(device)
        graph = self.ms.load(os.path.join(folder, "m.mindir"))
        self.ms.set_context(mode=self.ms.GRAPH_MODE)
        try:
            return self.numpy(self.ms.nn.GraphCell(graph)(self.ms.Tensor(x)))
        finally:
            self.ms.set_context(mode=self.ms.PYNATIVE_MODE)

    def _onnx(self, model, x):
        """MindSpore's exporter takes no opset: it writes the one it knows (11), whatever is asked for."""

        def export(path, opset):
            self.ms.export(model, self.ms.Tensor(x), file_name=path[: -len(".onnx")], file_format="ONNX")

        return export

    def _write_onnx(self, model, x, folder):
        path = os.path.join(folder, "model.onnx")
        self._onnx(model, x)(path, None)
        return "the exporter chooses the opset itself"

    def _write_tensorrt(self, model, x, folder):
        return onnx_tools.write_tensorrt(folder, self._onnx(model, x), x)

    # -- stress ---------------------------------------------------------------------------------------------

    def compiled(self, model, x):
        @self.ms.jit
        def quick(v):  # MindSpore reads the source: a lambda inside a call is too much for it
            return model(v)

        return self.numpy(quick(self.ms.Tensor(x))), "mindspore.jit"
