"""PaddlePaddle."""

import os
import random

from envforge_smoke import onnx_tools
from envforge_smoke.adapters.base import Base


class Adapter(Base):
    name = "paddle"

    def load(self):
        os.environ.setdefault("FLAGS_allocator_strategy", "auto_growth")
        os.environ.setdefault("FLAGS_cudnn_deterministic", "1")
        os.environ.setdefault("GLOG_minloglevel", "2")
        import paddle

        self.paddle = paddle
        if self.entry.get("accelerator") == "cpu" or self.plan["expect_gpu"] == "none":
            paddle.set_device("cpu")

    def prepare_reload(self):
        for module in ("onnx", "onnxruntime"):
            try:
                onnx_tools.need(module)
            except Exception:
                pass

    def versions(self):
        p = self.paddle
        built = p.is_compiled_with_cuda()
        cuda = str(p.version.cuda()) if built else None
        cudnn = str(p.version.cudnn()) if built else None
        return {"version": p.__version__, "cuda": None if cuda in ("False", "None") else cuda, "cudnn": cudnn}

    def gpus(self):
        p = self.paddle
        if not p.is_compiled_with_cuda():
            return []
        found = []
        for index in range(p.device.cuda.device_count()):
            major, minor = p.device.cuda.get_device_capability(index)
            found.append({"name": p.device.cuda.get_device_name(index), "capability": "{0}.{1}".format(major, minor)})
        return found

    def gpu_trouble(self):
        return "" if self.paddle.is_compiled_with_cuda() else "this Paddle is a CPU build"

    def seed(self, number):
        import numpy as np

        random.seed(number)
        np.random.seed(number)
        self.paddle.seed(number)

    def _place(self, device):
        return self.paddle.CUDAPlace(0) if device == "gpu" else self.paddle.CPUPlace()

    def _on(self, device):
        self.paddle.set_device("gpu:0" if device == "gpu" else "cpu")

    def tensor(self, array, device):
        return self.paddle.to_tensor(array, place=self._place(device))

    def numpy(self, tensor):
        return tensor.numpy()

    def device_of(self, tensor):
        return "gpu" if tensor.place.is_gpu_place() else "cpu"

    def cast(self, tensor, kind):
        return tensor.astype(kind)

    def move(self, tensor, device):
        return self.paddle.to_tensor(tensor, place=self._place(device))

    def matmul(self, a, b):
        return self.paddle.matmul(a, b)

    def conv2d(self, x, w, stride, padding, device):
        self._on(device)
        out = self.paddle.nn.functional.conv2d(
            self.tensor(x, device), self.tensor(w, device), stride=stride, padding=padding
        )
        return self.numpy(out)

    def cubic_gradient(self, x, device):
        t = self.paddle.to_tensor(x, place=self._place(device), stop_gradient=False)
        (t**3).sum().backward()
        return self.numpy(t.grad)

    def gpu_memory(self):
        return self.paddle.device.cuda.memory_allocated()

    def release(self):
        if self.paddle.is_compiled_with_cuda():
            self.paddle.device.cuda.empty_cache()

    def train(self, x, y, weights, steps, rate, device):
        p, nn = self.paddle, self.paddle.nn
        self._on(device)
        net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        for layer, w, b in ((net[0], weights[0], weights[1]), (net[2], weights[2], weights[3])):
            layer.weight.set_value(w)
            layer.bias.set_value(b)
        x, y = self.tensor(x, device), self.tensor(y, device)
        optimizer = p.optimizer.SGD(learning_rate=rate, parameters=net.parameters())
        losses, gradients = [], []
        for _ in range(steps):
            out = net(x)
            loss = nn.functional.mse_loss(out, y)
            loss.backward()
            gradients = [self.device_of(q.grad) for q in net.parameters()]
            optimizer.step()
            optimizer.clear_grad()
            losses.append(float(loss))
        places = [self.device_of(t) for t in list(net.parameters()) + [out, loss]] + gradients
        last = [net[0].weight, net[0].bias, net[2].weight, net[2].bias]
        return losses, [self.numpy(t) for t in last], places

    # -- the tiny model and its exports --------------------------------------------------------------------

    def _empty(self):
        nn = self.paddle.nn
        net = nn.Sequential(nn.Conv2D(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(4, 5))
        net.eval()
        return net

    def model(self, weights, device):
        self._on(device)
        net = self._empty()
        net[0].weight.set_value(weights["conv_w"])
        net[0].bias.set_value(weights["conv_b"])
        net[4].weight.set_value(weights["dense_w"])
        net[4].bias.set_value(weights["dense_b"])
        return net

    def predict(self, model, x):
        with self.paddle.no_grad():
            return self.numpy(model(self.paddle.to_tensor(x)))

    def routes(self):
        return {
            "export.checkpoint": (self._write_checkpoint, self._read_checkpoint),
            "export.paddle_inference": (self._write_inference, self._read_inference),
            "export.onnx": (self._write_onnx, onnx_tools.read_opsets),
            "export.tensorrt": (self._write_tensorrt, onnx_tools.read_tensorrt),
        }

    def _write_checkpoint(self, model, x, folder):
        self.paddle.save(model.state_dict(), os.path.join(folder, "c.pdparams"))
        return "state_dict"

    def _read_checkpoint(self, folder, x, device):
        self._on(device)
        net = self._empty()
        net.set_state_dict(self.paddle.load(os.path.join(folder, "c.pdparams")))
        return self.predict(net, x)

    def _save(self, model, path):
        spec = [self.paddle.static.InputSpec(shape=[None, 3, 8, 8], dtype="float32", name="x")]
        self.paddle.jit.save(model, path, input_spec=spec)

    def _write_inference(self, model, x, folder):
        self._save(model, os.path.join(folder, "m"))
        return "jit.save"

    def _read_inference(self, folder, x, device):
        """Both readers: jit.load and the inference engine."""
        self._on(device)
        path = os.path.join(folder, "m")
        loaded = self.paddle.jit.load(path)
        loaded.eval()
        outputs = {"jit.load": self.numpy(loaded(self.paddle.to_tensor(x)))}
        from paddle import inference

        program = next(path + end for end in (".json", ".pdmodel") if os.path.exists(path + end))
        config = inference.Config(program, path + ".pdiparams")
        if device == "gpu":
            config.enable_use_gpu(64, 0)
        else:
            config.disable_gpu()
        config.disable_glog_info()
        predictor = inference.create_predictor(config)
        feed = predictor.get_input_handle(predictor.get_input_names()[0])
        feed.reshape(x.shape)
        feed.copy_from_cpu(x)
        predictor.run()
        outputs["paddle.inference"] = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
        return outputs, "jit.load and paddle.inference"

    def _onnx(self, model, folder):
        """paddle2onnx on the saved program: paddle.onnx.export would need the same package and hides its options."""
        paddle2onnx = onnx_tools.need("paddle2onnx")
        path = os.path.join(folder, "source")
        self._save(model, path)
        program = next(path + end for end in (".json", ".pdmodel") if os.path.exists(path + end))

        def export(target, opset):
            paddle2onnx.export(
                program, path + ".pdiparams", save_file=target, opset_version=opset, auto_upgrade_opset=False
            )
            if not os.path.exists(target):
                raise RuntimeError("paddle2onnx wrote no file for opset {0}".format(opset))

        return export

    def _write_onnx(self, model, x, folder):
        onnx_tools.need("onnx")
        import paddle2onnx

        said = onnx_tools.write_opsets(folder, self._onnx(model, folder), 19)
        return "paddle2onnx {0}; {1}".format(getattr(paddle2onnx, "__version__", "?"), said)

    def _write_tensorrt(self, model, x, folder):
        return onnx_tools.write_tensorrt(folder, self._onnx(model, folder), x)

    # -- stress ---------------------------------------------------------------------------------------------

    def compiled(self, model, x):
        net = self._empty()  # to_static changes the network it is given
        net.set_state_dict(model.state_dict())
        quick = self.paddle.jit.to_static(net)
        with self.paddle.no_grad():
            return self.numpy(quick(self.paddle.to_tensor(x))), "paddle.jit.to_static"
