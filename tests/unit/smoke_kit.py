"""A tiny stand-in framework for the ladder: the copied suite plus one adapter that does what its plan tells it to."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from envforge import smoke
from envforge.engine import GpuRequest

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "smoke_tests"
NONE, AUTO, ALL = GpuRequest(kind="none"), GpuRequest(kind="auto"), GpuRequest(kind="all")

# ``behaviour`` (in the plan's entry, by its environment) breaks one thing at a time.
ADAPTER = """
import json, os, signal, sys, time
import numpy as np
from envforge_smoke import nvml, reference
from envforge_smoke.adapters.base import Base
from envforge_smoke.outcome import MissingPackage

DO = json.loads(os.environ.get("FAKE", "{}"))
if "nvml" in DO:
    nvml.probe = lambda: dict({"driver": "550.54.14", "cuda": "12.4", "devices": [], "error": None}, **DO["nvml"])


class Tensor(object):
    def __init__(self, array, place):
        self.array, self.place = np.asarray(array), place


class Adapter(Base):
    name = "fake"
    tf32 = True

    def load(self):
        if "import" in DO:
            raise ImportError(DO["import"])
        print("noise on stdout while importing")
        os.write(1, b'@envforge {"check": "visibility.import", "framework": "fake", "outcome": "passed"}')
        os.write(1, b"\\xff\\xe2\\x9e half a line without an end")
        sys.stderr.write("noise on stderr\\n")

    def versions(self):
        return dict({"version": "1.0", "cuda": None}, **DO.get("versions", {}))

    def gpus(self):
        return DO.get("gpus", [])

    def gpu_trouble(self):
        return DO.get("trouble", "")

    def kernels(self):
        return DO.get("kernels")

    def seed(self, number):
        np.random.seed(number)

    def tensor(self, array, device):
        return Tensor(array, DO.get("place", device))

    def numpy(self, t):
        return t.array

    def device_of(self, t):
        return t.place

    def cast(self, t, kind):
        return Tensor(t.array.astype(kind), t.place)

    def move(self, t, device):
        return Tensor(t.array, device)

    def _noise(self, value):
        if "tf32" in DO and (self.tf32 or DO["tf32"] == "always"):
            value = value + np.float32(5e-4) * np.abs(value).max()
        return value

    def matmul(self, a, b):
        if DO.get("matmul") == "hang":
            time.sleep(600)
        if DO.get("matmul") == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if DO.get("matmul") == "eat":
            kept = []
            while True:
                kept.append(bytearray(os.urandom(1 << 20)) * 16)
        if DO.get("matmul") == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if DO.get("matmul") == "leave":
            os._exit(0)
        if DO.get("matmul") == "kernel":
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
        return Tensor(self._noise(a.array @ b.array), a.place)

    def conv2d(self, x, w, stride, padding, device):
        return reference.conv2d(x, w, stride, padding).astype(np.float32)

    def cubic_gradient(self, x, device):
        return 3 * x**2

    def tf32_setting(self):
        return "on" if self.tf32 else "off"

    def set_tf32(self, on):
        self.tf32 = on
        return True

    def train(self, x, y, weights, steps, rate, device):
        losses, last = reference.mlp_train(x, y, weights, steps - 1 if DO.get("train") == "short" else steps, rate)
        if DO.get("train") == "drift":
            last[0] = last[0] + 1e-7 * np.random.randn(*last[0].shape) * time.time()
        if DO.get("train") == "flat":
            losses = [losses[0]] * steps
        return losses, last, [DO.get("place", device)]

    def model(self, weights, device):
        return weights

    def predict(self, model, x):
        return reference.tiny_forward(model, x)

    def routes(self):
        return {"export.checkpoint": (self.write, self.read), "export.onnx": (self.missing, self.read)}

    def missing(self, model, x, folder):
        raise MissingPackage("onnx")

    def write(self, model, x, folder):
        np.savez(os.path.join(folder, "c.npz"), **model)
        with open(os.path.join(folder, "pid"), "w") as stream:
            stream.write(str(os.getpid()))
        return ""

    def read(self, folder, x, device):
        if DO.get("reload") == "hang":
            time.sleep(600)
        if DO.get("reload") == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        with open(os.path.join(folder, "pid")) as stream:
            assert int(stream.read()) != os.getpid()
        saved = np.load(os.path.join(folder, "c.npz"))
        model = {name: saved[name] for name in saved.files}
        if DO.get("reload") == "wrong":
            model["dense_b"] = model["dense_b"] + 1
        return self.predict(model, x), "another process"

    def compiled(self, model, x):
        if "compile" in DO:
            raise RuntimeError(DO["compile"])
        return self.predict(model, x), "fake"
"""


def inside(name: str) -> ModuleType:
    """A module of the suite, loaded here as the ladder loads it there."""
    if "envforge_smoke" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "envforge_smoke", SUITE / "__init__.py", submodule_search_locations=[str(SUITE)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["envforge_smoke"] = module
        spec.loader.exec_module(module)
    return importlib.import_module(f"envforge_smoke.{name}")


def fake_plan(
    behaviour: dict[str, Any] | None = None,
    *,
    level: int = 4,
    gpus: GpuRequest = AUTO,
    timeout: int = 60,
    required: tuple[str, ...] = ("export.checkpoint",),
    **entry: Any,
) -> smoke.SmokePlan:
    """A plan for the stand-in with the common checks and two export routes."""
    known = smoke.known_checks()
    names = known["framework"] | {"export.checkpoint": 4, "export.onnx": 4} | known["stress"]
    return smoke.SmokePlan(
        name="fake",
        level=level,
        gpus=gpus,
        timeout=timeout,
        checks=tuple(smoke.PlannedCheck(name=n, framework="fake", level=at) for n, at in names.items() if at <= level),
        frameworks=(
            smoke.PlannedFramework(
                key="fake",
                adapter="fake",
                required=required,
                env=(("FAKE", json.dumps(behaviour or {})),),
                **entry,
            ),
        ),
    )


def copy_suite(folder: Path) -> Path:
    """The suite with the stand-in's adapter in it; returns run.py."""
    for path, content in smoke.suite().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "smoke_tests" / "adapters" / "fake_.py").write_text(textwrap.dedent(ADAPTER), encoding="utf-8")
    return folder / "smoke_tests" / "run.py"


def climb(folder: Path, plan: smoke.SmokePlan) -> smoke.SmokeReport:
    """Run the real ladder on the stand-in in this interpreter."""
    run = copy_suite(folder)
    (folder / "plan.json").write_text(json.dumps(plan.document()), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, run, folder / "plan.json"], capture_output=True, text=True, errors="replace", timeout=300
    )
    ended = f"the run ended with exit code {done.returncode}" if done.returncode else ""
    return smoke.judge(plan, done.stdout + done.stderr, engine="python", image=sys.executable, ended=ended)


def outcome(report: smoke.SmokeReport, name: str) -> smoke.Check:
    return next(check for check in report.checks if check.name == name)


def without(plan: smoke.SmokePlan, reasons: dict[str, str]) -> smoke.SmokePlan:
    return replace(plan, without=reasons)
