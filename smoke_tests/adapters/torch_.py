"""PyTorch."""

import os
import random
import warnings

from envforge_smoke import onnx_tools
from envforge_smoke.adapters.base import Base
from envforge_smoke.outcome import Failed, describe


class Adapter(Base):
    name = "torch"

    def load(self):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
        import torch

        self.torch = torch
        torch.backends.cudnn.benchmark = False
        if hasattr(torch.backends.cudnn, "deterministic"):
            torch.backends.cudnn.deterministic = True

    def prepare_reload(self):
        for module in ("onnx", "onnxruntime"):
            try:
                onnx_tools.need(module)
            except Exception:
                pass  # the route that needs it says so

    def versions(self):
        t = self.torch
        cudnn = t.backends.cudnn.version() if t.version.cuda and t.backends.cudnn.is_available() else None
        return {
            "version": t.__version__,
            "cuda": t.version.cuda,
            "cudnn": cudnn,
            "hip": getattr(t.version, "hip", None),
        }

    def gpus(self):
        t = self.torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not t.cuda.is_available():
                return []
            found = []
            for index in range(t.cuda.device_count()):
                p = t.cuda.get_device_properties(index)
                uuid = str(getattr(p, "uuid", "") or "")
                found.append(
                    {
                        "name": p.name,
                        "capability": "{0}.{1}".format(p.major, p.minor),
                        "memory_bytes": p.total_memory,
                        "uuid": uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else "GPU-" + uuid,
                    }
                )
            return found

    def gpu_trouble(self):
        if not self.torch.version.cuda:
            return "torch.version.cuda is None, this is a CPU build"
        try:
            self.torch.zeros(1, device="cuda")
        except Exception as error:
            return describe(error)
        return ""

    def kernels(self):
        try:
            return list(self.torch.cuda.get_arch_list()) or None
        except Exception:
            return None

    def seed(self, number):
        import numpy as np

        random.seed(number)
        np.random.seed(number)
        self.torch.manual_seed(number)

    @staticmethod
    def _place(device):
        return "cuda:0" if device == "gpu" else "cpu"

    def tensor(self, array, device):
        return self.torch.from_numpy(array.copy()).to(self._place(device))

    def numpy(self, tensor):
        return tensor.detach().cpu().numpy()

    def device_of(self, tensor):
        return "gpu" if tensor.device.type == "cuda" else tensor.device.type

    def cast(self, tensor, kind):
        return tensor.to(getattr(self.torch, kind))

    def move(self, tensor, device):
        return tensor.to(self._place(device))

    def matmul(self, a, b):
        return a @ b

    def conv2d(self, x, w, stride, padding, device):
        out = self.torch.nn.functional.conv2d(
            self.tensor(x, device), self.tensor(w, device), stride=stride, padding=padding
        )
        return self.numpy(out)

    def cubic_gradient(self, x, device):
        t = self.tensor(x, device).requires_grad_(True)
        (t**3).sum().backward()
        return self.numpy(t.grad)

    def tf32_setting(self):
        b = self.torch.backends
        return "matmul {0}, cudnn {1}".format(
            "on" if b.cuda.matmul.allow_tf32 else "off", "on" if b.cudnn.allow_tf32 else "off"
        )

    def set_tf32(self, on):
        b = self.torch.backends
        if not on:
            self._tf32 = (b.cuda.matmul.allow_tf32, b.cudnn.allow_tf32)
            b.cuda.matmul.allow_tf32 = b.cudnn.allow_tf32 = False
        else:
            b.cuda.matmul.allow_tf32, b.cudnn.allow_tf32 = getattr(self, "_tf32", (False, True))
        return True

    def gpu_memory(self):
        return self.torch.cuda.memory_allocated()

    def release(self):
        if self.torch.cuda.is_available():
            self.torch.cuda.empty_cache()

    def train(self, x, y, weights, steps, rate, device):
        t, nn = self.torch, self.torch.nn
        net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        with t.no_grad():
            for layer, w, b in ((net[0], weights[0], weights[1]), (net[2], weights[2], weights[3])):
                layer.weight.copy_(t.from_numpy(w.T.copy()))
                layer.bias.copy_(t.from_numpy(b.copy()))
        net = net.to(self._place(device))
        x, y = self.tensor(x, device), self.tensor(y, device)
        optimizer = t.optim.SGD(net.parameters(), lr=rate)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            out = net(x)
            loss = nn.functional.mse_loss(out, y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        places = [self.device_of(p) for p in net.parameters()] + [self.device_of(out), self.device_of(loss)]
        places += [self.device_of(p.grad) for p in net.parameters()]
        last = [
            self.numpy(net[0].weight).T,
            self.numpy(net[0].bias),
            self.numpy(net[2].weight).T,
            self.numpy(net[2].bias),
        ]
        return losses, last, places

    # -- the tiny model and its exports --------------------------------------------------------------------

    def _empty(self):
        nn = self.torch.nn
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        ).eval()

    def model(self, weights, device):
        t, net = self.torch, self._empty()
        with t.no_grad():
            net[0].weight.copy_(t.from_numpy(weights["conv_w"]))
            net[0].bias.copy_(t.from_numpy(weights["conv_b"]))
            net[4].weight.copy_(t.from_numpy(weights["dense_w"].T.copy()))
            net[4].bias.copy_(t.from_numpy(weights["dense_b"]))
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        return net.to(self._place(device))

    def predict(self, model, x):
        place = next(model.parameters()).device
        with self.torch.no_grad():
            return self.numpy(model(self.torch.from_numpy(x).to(place)))

    def routes(self):
        return {
            "export.checkpoint": (self._write_checkpoint, self._read_checkpoint),
            "export.torchscript_script": (self._write_script, self._read_script),
            "export.torchscript_trace": (self._write_trace, self._read_script),
            "export.torch_export": (self._write_export, self._read_export),
            "export.onnx": (self._write_onnx, onnx_tools.read_opsets),
            "export.tensorrt": (self._write_tensorrt, onnx_tools.read_tensorrt),
        }

    def _write_checkpoint(self, model, x, folder):
        optimizer = self.torch.optim.SGD(self._empty().parameters(), lr=0.1, momentum=0.9)
        self.torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 10}, os.path.join(folder, "c.pt")
        )
        return "state_dict"

    def _read_checkpoint(self, folder, x, device):
        path = os.path.join(folder, "c.pt")
        try:
            saved, how = self.torch.load(path, map_location=self._place(device), weights_only=True), "weights_only"
        except TypeError:  # before torch 1.13
            saved, how = self.torch.load(path, map_location=self._place(device)), "full pickle"
        if saved["step"] != 10:
            raise Failed("the step number did not survive", "export-differs")
        net = self._empty()
        net.load_state_dict(saved["model"])
        return self.predict(net.to(self._place(device)), x), how

    def _sample(self, model, x):
        return self.torch.from_numpy(x).to(next(model.parameters()).device)

    def _branching(self):
        """A module whose answer depends on the data: script keeps the branch, trace freezes the one it saw."""
        from envforge_smoke.adapters import torch_branch

        return torch_branch.module(self.torch)

    def _write_script(self, model, x, folder):
        t = self.torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scripted = t.jit.script(self._branching())
            for sample in (t.ones(2), -t.ones(2)):
                if float(scripted(sample).sum()) != float(self._branching()(sample).sum()):
                    raise Failed("a scripted module lost its data-dependent branch", "export-differs")
            t.jit.script(model).save(os.path.join(folder, "m.pt"))
        return "a data-dependent branch is kept"

    def _write_trace(self, model, x, folder):
        t = self.torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = t.jit.trace(self._branching(), (t.ones(2),), check_trace=False)
            branch = self._branching()
            if float(traced(-t.ones(2)).sum()) == float(branch(-t.ones(2)).sum()):
                raise Failed("trace followed a data-dependent branch, which it cannot", "export-differs")
            if float(traced(t.ones(2)).sum()) != float(branch(t.ones(2)).sum()):
                raise Failed("trace is wrong on the very path that it saw", "export-differs")
            t.jit.trace(model, (self._sample(model, x),)).save(os.path.join(folder, "m.pt"))
        return "a data-dependent branch is frozen by trace, as it must be: use script for such models"

    def _read_script(self, folder, x, device):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = self.torch.jit.load(os.path.join(folder, "m.pt"), map_location=self._place(device))
        with self.torch.no_grad():
            return self.numpy(net(self.tensor(x, device)))

    def _write_export(self, model, x, folder):
        from envforge_smoke.outcome import Unavailable

        export = getattr(self.torch, "export", None)
        if export is None or not hasattr(export, "save"):
            raise Unavailable("torch {0} has no torch.export (it came with 2.1)".format(self.torch.__version__))
        export.save(export.export(model, (self._sample(model, x),)), os.path.join(folder, "m.pt2"))
        return ""

    def _read_export(self, folder, x, device):
        program = self.torch.export.load(os.path.join(folder, "m.pt2"))
        with self.torch.no_grad():
            return self.numpy(program.module()(self.tensor(x, device)))

    def _onnx(self, model, x):
        """export(path, opset): the newer exporter where it takes the opset, the older one elsewhere."""
        import importlib.util
        import inspect

        t = self.torch
        sample = (self._sample(model, x),)
        newer = "dynamo" in inspect.signature(t.onnx.export).parameters and importlib.util.find_spec("onnxscript")
        self.onnx_how = {}

        def export(path, opset):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if newer and opset >= 18:
                    program = t.onnx.export(model, sample, dynamo=True, opset_version=opset, verbose=False)
                    program.save(path, external_data=False)
                    self.onnx_how[opset] = "torch.export based"
                    return
                extra = {"dynamo": False} if "dynamo" in inspect.signature(t.onnx.export).parameters else {}
                t.onnx.export(model, sample, path, opset_version=opset, **extra)
                self.onnx_how[opset] = "TorchScript based"

        return export

    def _write_onnx(self, model, x, folder):
        onnx_tools.need("onnx")
        said = onnx_tools.write_opsets(folder, self._onnx(model, x))
        return "{0} ({1})".format(said, ", ".join("{0}: {1}".format(o, h) for o, h in sorted(self.onnx_how.items())))

    def _write_tensorrt(self, model, x, folder):
        return onnx_tools.write_tensorrt(folder, self._onnx(model, x), x)

    # -- stress ---------------------------------------------------------------------------------------------

    def compiled(self, model, x):
        from envforge_smoke.outcome import Unavailable

        if not hasattr(self.torch, "compile"):
            raise Unavailable("torch {0} has no torch.compile (it came with 2.0)".format(self.torch.__version__))
        quick = self.torch.compile(model)
        with self.torch.no_grad():
            return self.numpy(quick(self._sample(model, x))), "torch.compile"

    def allreduce(self, count):
        t = self.torch
        tensors = [t.full((4,), float(i + 1), device="cuda:{0}".format(i)) for i in range(count)]
        t.cuda.nccl.all_reduce(tensors)
        return [float(tensor[0]) for tensor in tensors]
