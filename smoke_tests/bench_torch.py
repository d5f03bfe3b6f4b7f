"""ResNet-18 in PyTorch and its ways out."""

import os
from collections import OrderedDict

import torch
from envforge_smoke import bench_model, bench_routes
from envforge_smoke.outcome import Unavailable


class Block(torch.nn.Module):
    def __init__(self, before, width, stride):
        super(Block, self).__init__()
        nn = torch.nn
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        # By name and not in a Sequential: torch.export 2.6 cannot read back a module path such as down["0"].
        self.down_conv, self.down_bn = nn.Identity(), nn.Identity()
        if stride != 1 or before != width:
            self.down_conv = nn.Conv2d(before, width, 1, stride, bias=False)
            self.down_bn = nn.BatchNorm2d(width)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.down_bn(self.down_conv(x)))


def _fill(norm, weights, name):
    for mine, theirs in (("weight", "scale"), ("bias", "shift"), ("running_mean", "mean"), ("running_var", "var")):
        getattr(norm, mine).data.copy_(torch.from_numpy(weights["{0}_{1}".format(name, theirs)]))


class Bench(object):
    ROUTES = (
        "eager",
        "compile",
        "export.torchscript_script",
        "export.torchscript_trace",
        "export.torch_export",
        "export.onnx",
        "export.tensorrt",
    )
    STATIC = ("export.torch_export", "export.onnx", "export.tensorrt")

    def __init__(self, adapter, device):
        self.a, self.device = adapter, device

    def model(self, weights):
        nn = torch.nn
        stem, stem_norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        stem.weight.data.copy_(torch.from_numpy(weights["stem"]))
        _fill(stem_norm, weights, "stem_bn")
        parts = [("stem", stem), ("stem_bn", stem_norm), ("stem_relu", nn.ReLU())]
        for name, before, width, stride in bench_model.blocks():
            block = Block(before, width, stride)
            block.conv1.weight.data.copy_(torch.from_numpy(weights[name + "_conv1"]))
            block.conv2.weight.data.copy_(torch.from_numpy(weights[name + "_conv2"]))
            _fill(block.bn1, weights, name + "_bn1")
            _fill(block.bn2, weights, name + "_bn2")
            if name + "_down" in weights:
                block.down_conv.weight.data.copy_(torch.from_numpy(weights[name + "_down"]))
                _fill(block.down_bn, weights, name + "_down_bn")
            parts.append((name, block))
        last = nn.Linear(512, bench_model.CLASSES)
        last.weight.data.copy_(torch.from_numpy(weights["fc_w"].T.copy()))
        last.bias.data.copy_(torch.from_numpy(weights["fc_b"]))
        parts += [("pool", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten()), ("fc", last)]
        net = nn.Sequential(OrderedDict(parts)).eval()
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        return net.to(self.a._place(self.device))

    def _call(self, function):
        def call(x):
            with torch.no_grad():
                return self.a.numpy(function(self.a.tensor(x, self.device)))

        return call

    def native(self, model):
        return self._call(model)

    def write(self, route, model, x, folder):
        a = self.a
        if route in ("eager", "compile"):
            torch.save(model.state_dict(), os.path.join(folder, "c.pt"))
        elif route == "export.torchscript_script":
            torch.jit.script(model).save(os.path.join(folder, "m.pt"))
        elif route == "export.torchscript_trace":
            torch.jit.trace(model, (a._sample(model, x),)).save(os.path.join(folder, "m.pt"))
        elif route == "export.torch_export":
            a._write_export(model, x, folder)
        elif route == "export.onnx":
            bench_routes.write_onnx(folder, a._onnx(model, x))
        else:
            bench_routes.write_tensorrt(folder, a._onnx(model, x), x)

    def load(self, route, folder, weights):
        place = self.a._place(self.device)
        if route in ("eager", "compile"):
            if route == "compile" and not hasattr(torch, "compile"):
                raise Unavailable("torch {0} has no torch.compile (it came with 2.0)".format(torch.__version__))
            model = self.model(weights())
            model.load_state_dict(torch.load(os.path.join(folder, "c.pt"), map_location=place))
            return self._call(torch.compile(model) if route == "compile" else model)
        if route.startswith("export.torchscript"):
            return self._call(torch.jit.load(os.path.join(folder, "m.pt"), map_location=place))
        if route == "export.torch_export":
            return self._call(torch.export.load(os.path.join(folder, "m.pt2")).module())
        raise KeyError(route)  # ONNX and TensorRT are opened without this framework (bench_run.py)
