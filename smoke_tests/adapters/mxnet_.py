"""MXNet 1.x."""

import os
import random

from envforge_smoke import onnx_tools
from envforge_smoke.adapters.base import Base


class Adapter(Base):
    name = "mxnet"

    def load(self):
        os.environ.setdefault("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")
        os.environ.setdefault("MXNET_ENFORCE_DETERMINISM", "1")
        os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
        import mxnet as mx

        self.mx = mx

    def prepare_reload(self):
        for module in ("onnx", "onnxruntime"):
            try:
                onnx_tools.need(module)
            except Exception:
                pass

    def versions(self):
        from envforge_smoke import structure

        built = self.mx.runtime.Features().is_enabled("CUDA")
        names = [n for n in structure.installed() if n.startswith("mxnet-cu") and n[8:].isdigit()]
        cuda = "{0}.{1}".format(names[0][8:-1], names[0][-1]) if names else None
        return {"version": self.mx.__version__, "cuda": (cuda or "unknown") if built else None}

    def gpus(self):
        try:
            count = self.mx.context.num_gpus()
        except self.mx.base.MXNetError:
            return []
        return [{"name": None, "capability": None} for _ in range(count)]

    def seed(self, number):
        import numpy as np

        random.seed(number)
        np.random.seed(number)
        self.mx.random.seed(number)

    def _place(self, device):
        return self.mx.gpu(0) if device == "gpu" else self.mx.cpu(0)

    def tensor(self, array, device):
        return self.mx.nd.array(array, ctx=self._place(device), dtype=array.dtype)

    def numpy(self, tensor):
        return tensor.asnumpy()

    def device_of(self, tensor):
        return tensor.context.device_type

    def cast(self, tensor, kind):
        return tensor.astype(kind)

    def move(self, tensor, device):
        return tensor.as_in_context(self._place(device))

    def matmul(self, a, b):
        return self.mx.nd.dot(a, b)

    def conv2d(self, x, w, stride, padding, device):
        out = self.mx.nd.Convolution(
            self.tensor(x, device),
            self.tensor(w, device),
            kernel=w.shape[2:],
            num_filter=w.shape[0],
            stride=(stride, stride),
            pad=(padding, padding),
            no_bias=True,
        )
        return self.numpy(out)

    def cubic_gradient(self, x, device):
        t = self.tensor(x, device)
        t.attach_grad()
        with self.mx.autograd.record():
            y = (t**3).sum()
        y.backward()
        return self.numpy(t.grad)

    def train(self, x, y, weights, steps, rate, device):
        mx, nn = self.mx, self.mx.gluon.nn
        place = self._place(device)
        net = nn.HybridSequential()
        net.add(nn.Dense(32, activation="tanh", in_units=16), nn.Dense(4, in_units=32))
        net.initialize(ctx=place)
        for layer, w, b in ((net[0], weights[0], weights[1]), (net[1], weights[2], weights[3])):
            layer.weight.set_data(mx.nd.array(w.T.copy(), ctx=place))
            layer.bias.set_data(mx.nd.array(b, ctx=place))
        x, y = self.tensor(x, device), self.tensor(y, device)
        # step(1): the mean over the batch is part of the loss here
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate})
        losses = []
        for _ in range(steps):
            with mx.autograd.record():
                out = net(x)
                loss = ((out - y) ** 2).mean()
            loss.backward()
            trainer.step(1)
            losses.append(float(loss.asscalar()))
        parameters = [net[0].weight, net[0].bias, net[1].weight, net[1].bias]
        last = [self.numpy(q.data()) for q in parameters]
        places = [self.device_of(t) for t in [out, loss] + [q.data() for q in parameters]]
        places += [self.device_of(q.grad()) for q in parameters]
        return losses, [last[0].T, last[1], last[2].T, last[3]], places

    # -- the tiny model and its exports --------------------------------------------------------------------

    def _empty(self):
        nn = self.mx.gluon.nn
        net = nn.HybridSequential()
        net.add(
            nn.Conv2D(4, 3, in_channels=3, activation="relu"),
            nn.GlobalAvgPool2D(),
            nn.Flatten(),
            nn.Dense(5, in_units=4),
        )
        return net

    def model(self, weights, device):
        mx, place = self.mx, self._place(device)
        net = self._empty()
        net.initialize(ctx=place)
        net[0].weight.set_data(mx.nd.array(weights["conv_w"], ctx=place))
        net[0].bias.set_data(mx.nd.array(weights["conv_b"], ctx=place))
        net[3].weight.set_data(mx.nd.array(weights["dense_w"].T.copy(), ctx=place))
        net[3].bias.set_data(mx.nd.array(weights["dense_b"], ctx=place))
        net.hybridize()
        return net

    def predict(self, model, x):
        place = list(model.collect_params().values())[0].list_ctx()[0]
        return self.numpy(model(self.mx.nd.array(x, ctx=place)))

    def routes(self):
        return {
            "export.checkpoint": (self._write_checkpoint, self._read_checkpoint),
            "export.mxnet_symbol": (self._write_symbol, self._read_symbol),
            "export.onnx": (self._write_onnx, onnx_tools.read_opsets),
            "export.tensorrt": (self._write_tensorrt, onnx_tools.read_tensorrt),
        }

    def _write_checkpoint(self, model, x, folder):
        model.save_parameters(os.path.join(folder, "c.params"))
        return "parameters"

    def _read_checkpoint(self, folder, x, device):
        net = self._empty()
        net.load_parameters(os.path.join(folder, "c.params"), ctx=self._place(device))
        return self.predict(net, x)

    def _symbol(self, model, x, folder):
        self.predict(model, x)  # a hybrid network has a symbol only after its first call
        model.export(os.path.join(folder, "m"), epoch=0)
        return os.path.join(folder, "m-symbol.json"), os.path.join(folder, "m-0000.params")

    def _write_symbol(self, model, x, folder):
        self._symbol(model, x, folder)
        return "symbol and parameters"

    def _read_symbol(self, folder, x, device):
        net = self.mx.gluon.SymbolBlock.imports(
            os.path.join(folder, "m-symbol.json"),
            ["data"],
            os.path.join(folder, "m-0000.params"),
            ctx=self._place(device),
        )
        return self.numpy(net(self.tensor(x, device)))

    def _onnx(self, model, x, folder):
        import numpy as np

        onnx_tools.need("onnx")
        symbol, params = self._symbol(model, x, folder)
        exporter = getattr(self.mx, "onnx", None) or self.mx.contrib.onnx
        self.highest = 13

        def export(path, opset):
            # MXNet 1.9.1 knows opsets 12 and 13 only.
            exporter.export_model(
                symbol,
                params,
                [tuple(x.shape)],
                np.float32,
                path,
                dynamic=False,
                **({"opset_version": min(opset, self.highest)} if self._takes_opset(exporter) else {}),
            )
            self._stamp(path, min(opset, self.highest))

        return export

    @staticmethod
    def _stamp(path, opset):
        """MXNet writes operators of one opset and stamps the newest that onnx knows: put the true number in."""
        import onnx

        model = onnx.load(path)
        for entry in model.opset_import:
            if entry.domain in ("", "ai.onnx"):
                entry.version = opset
        model.ir_version = min(model.ir_version, onnx_tools.runtime_ir())
        onnx.save(model, path)

    @staticmethod
    def _takes_opset(exporter):
        import inspect

        return "opset_version" in inspect.signature(exporter.export_model).parameters

    def _write_onnx(self, model, x, folder):
        return onnx_tools.write_opsets(folder, self._onnx(model, x, folder), 13)

    def _write_tensorrt(self, model, x, folder):
        return onnx_tools.write_tensorrt(folder, self._onnx(model, x, folder), x)

    # -- stress ---------------------------------------------------------------------------------------------

    def compiled(self, model, x):
        model.hybridize(static_alloc=True, static_shape=True)
        return self.predict(model, x), "hybridize"
