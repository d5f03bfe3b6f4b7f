"""The ladder on real frameworks in interpreters of this host, and environments broken on purpose that must fail.

Each interpreter is made by uv from the default index and removed afterwards. ENVFORGE_SMOKE_FRAMEWORKS (words)
limits the sound ones to some frameworks where time or disk is short; the controls always run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envforge import smoke
from envforge.console import Console
from envforge.engine import GpuRequest

pytestmark = [pytest.mark.heavy, pytest.mark.network]

NO_GPU = GpuRequest(kind="none")
ALWAYS = {"visibility.devices", "visibility.kernels", "export.tensorrt"}  # unavailable: no GPU is asked for

# framework → packages, what is unavailable beside ALWAYS. Pins are what undeclared needs of these releases ask for.
SOUND: dict[str, tuple[list[str], set[str]]] = {
    "jax": (["jax==0.10.2", "flatbuffers"], {"export.savedmodel", "export.onnx"}),
    "tensorflow": (["tensorflow-cpu==2.21.0", "tf2onnx", "onnxruntime"], set()),
    "paddle": (["paddlepaddle==3.3.1", "setuptools<81", "paddle2onnx", "onnxruntime"], set()),
    "mindspore": (["mindspore==2.10.0", "numpy<2", "scipy<1.14", "onnx", "onnxruntime"], set()),
    "mxnet": (["mxnet==1.9.1", "numpy<1.24", "onnx==1.16.2", "onnxruntime<1.20"], set()),
    "keras": (["keras==3.15.1", "jax==0.10.2", "flatbuffers"], {"export.savedmodel", "export.onnx"}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def interpreter(folder: Path, *packages: str, without: tuple[str, ...] = ()) -> Path:
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    python = folder / "env" / "bin" / "python"
    subprocess.run([uv, "venv", "-q", "--python", "3.11", folder / "env"], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
    if without:
        subprocess.run([uv, "pip", "uninstall", "-q", "--python", python, *without], check=True)
    return python


def climb(python: Path, framework: str, level: int = 4) -> dict[str, smoke.Check]:
    found = smoke.probe_python(python)
    found["frameworks"] = (
        [f for f in found["frameworks"] if f["name"] in (framework, "jax")]
        if (framework == "keras")
        else [f for f in found["frameworks"] if f["name"] == framework]
    )
    plan = smoke.make_plan(None, None, level=level, gpus=NO_GPU, found=found, name=framework)
    report = smoke.run_python(python, plan, console=Console(verbosity=-1))
    return {check.name: check for check in report.checks if check.framework.partition("-")[0] in (framework, "")}


@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=() if name == "jax" else pytest.mark.nightly) for name in SOUND]
)
def test_a_sound_installation_climbs_to_the_top(framework: str, folder: Path) -> None:
    chosen = os.environ.get("ENVFORGE_SMOKE_FRAMEWORKS", "").split()
    if chosen and framework not in chosen:
        pytest.skip(f"ENVFORGE_SMOKE_FRAMEWORKS names only {', '.join(chosen)}")
    packages, missing = SOUND[framework]
    checks = climb(interpreter(folder, *packages), framework, level=5)
    bad = {n: c.detail for n, c in checks.items() if c.outcome not in ("passed", "unavailable")}
    assert bad == {}
    unavailable = {
        name for name, check in checks.items() if check.outcome == "unavailable" and check.level in (1, 2, 3, 4)
    }
    assert unavailable == ALWAYS | missing
    assert all(checks[name].detail for name in unavailable)


@pytest.mark.nightly  # 2.7 GB to install
def test_mindspore_with_numpy_2_fails_at_the_first_product(folder: Path) -> None:
    python = interpreter(folder, "mindspore==2.10.0", "numpy>=2,<2.3")
    checks = climb(python, "mindspore", level=3)
    failed = {name for name, check in checks.items() if check.outcome == "failed"}
    assert failed & {"visibility.import", "numerics.tensor", "numerics.matmul", "numerics.gradient"}
    text = " ".join(checks[name].detail + checks[name].cause for name in failed).lower()
    assert "numpy" in text


@pytest.mark.nightly
def test_paddle_without_setuptools_fails_at_import_and_names_the_module(folder: Path) -> None:
    python = interpreter(folder, "paddlepaddle==3.3.1", without=("setuptools",))
    failed = climb(python, "paddle", level=1)["visibility.import"]
    assert (failed.outcome, failed.cause) == ("failed", "missing-module")
    assert "setuptools" in failed.detail or "pkg_resources" in failed.detail


def test_jax_without_flatbuffers_fails_at_its_own_export_only(folder: Path) -> None:
    checks = climb(interpreter(folder, "jax==0.10.2"), "jax")
    export = checks["export.stablehlo"]
    assert (export.outcome, export.cause) == ("failed", "missing-module") and "flatbuffers" in export.detail
    assert checks["training.mlp"].outcome == "passed" and checks["export.checkpoint"].outcome == "passed"
    assert [name for name, check in checks.items() if check.outcome == "failed"] == ["export.stablehlo"]


def test_a_cpu_wheel_where_a_cuda_build_is_locked_fails(folder: Path) -> None:
    python = interpreter(folder, "jax==0.10.2", "flatbuffers")
    found = smoke.probe_python(python)
    plan = smoke.make_plan(None, None, level=1, gpus=GpuRequest(kind="auto"), found=found, name="jax")
    cuda = smoke.replace(plan.frameworks[0], accelerator="cuda", cuda="12")
    report = smoke.run_python(python, smoke.replace(plan, frameworks=(cuda,)), console=Console(verbosity=-1))
    failed = next(check for check in report.checks if check.name == "visibility.import")
    assert (failed.outcome, failed.cause) == ("failed", "cpu-build")
