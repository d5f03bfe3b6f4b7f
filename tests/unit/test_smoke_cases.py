"""Reported faults (BC-…) as the ladder must judge them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from smoke_kit import ALL, AUTO, climb, copy_suite, fake_plan, inside, outcome
from test_smoke_ladder import with_gpu

from envforge import smoke
from envforge.console import Console
from envforge.engine import ImageInfo, RunRequest, RunResult
from envforge.errors import GpuUnavailable


# BC-04: a CUDA wheel whose metadata forgot its CUDA libraries
def test_bc04_a_missing_shared_library_is_named(tmp_path: Path) -> None:
    text = "libcusparseLt.so.0: cannot open shared object file: No such file or directory"
    report = climb(tmp_path, fake_plan({"import": text}))
    failed = outcome(report, "visibility.import")
    assert (failed.outcome, failed.cause) == ("failed", "missing-shared-library")
    assert "libcusparseLt.so.0" in failed.detail
    assert report.status == "failed"


# BC-09: the default index gives an ARM server a CPU wheel
def test_bc09_a_cpu_wheel_fails_even_where_no_gpu_is_attached(tmp_path: Path) -> None:
    plan = fake_plan({"versions": {"cuda": None}}, gpus=AUTO, accelerator="cuda", cuda="12.8")
    failed = outcome(climb(tmp_path, plan), "visibility.import")
    assert (failed.outcome, failed.cause) == ("failed", "cpu-build")
    assert "CPU build" in failed.detail


def test_bc09_the_right_build_passes_there(tmp_path: Path) -> None:
    plan = fake_plan({"versions": {"cuda": "12.8"}}, gpus=AUTO, accelerator="cuda", cuda="12.8", version="1.0+cu128")
    assert climb(tmp_path, plan).status == "passed"


# BC-11: a GPU newer than every kernel in the wheel
BLACKWELL_WITHOUT_KERNELS = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]


def test_bc11_a_wheel_without_kernels_for_the_gpu_fails(tmp_path: Path) -> None:
    behaviour = with_gpu("12.0", kernels=BLACKWELL_WITHOUT_KERNELS)
    report = climb(tmp_path, fake_plan(behaviour, gpus=ALL, accelerator="cuda", level=1))
    failed = outcome(report, "visibility.kernels")
    assert (failed.outcome, failed.cause) == ("failed", "no-kernel-for-gpu") and "12.0" in failed.detail
    assert outcome(report, "visibility.devices").outcome == "passed"  # being available proves nothing


def test_bc11_a_list_that_lies_is_caught_by_running_a_kernel(tmp_path: Path) -> None:
    behaviour = with_gpu("12.0", matmul="kernel")
    failed = outcome(climb(tmp_path, fake_plan(behaviour, gpus=ALL, accelerator="cuda", level=1)), "visibility.kernels")
    assert (failed.outcome, failed.cause) == ("failed", "no-kernel-for-gpu")


@pytest.mark.parametrize(
    ("capability", "kernels", "served"),
    [
        ("12.0", BLACKWELL_WITHOUT_KERNELS, None),
        ("8.9", ["sm_80", "sm_86"], "sm_80"),
        ("7.0", ["sm_75", "sm_80", "sm_90"], None),
        ("6.1", ["sm_75", "sm_80"], None),
        ("12.0", ["sm_90", "compute_90"], "compute_90"),
        ("8.0", ["sm_86"], None),
        ("9.0", ["sm_90a"], "sm_90a"),
        ("10.0", ["sm_90a", "compute_90a"], None),
    ],
)
def test_bc11_which_kernels_serve_which_gpu(capability: str, kernels: list[str], served: str | None) -> None:
    assert inside("nvml").fits(capability, kernels) == served


# BC-14: ONNX Runtime falls back to the CPU without an error
class FakeRuntime:
    """Offers the CUDA provider, and creates sessions that use what ``active`` says."""

    def __init__(self, active: list[str]) -> None:
        self.active = active
        self.asked: list[list[str]] = []

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(self, source: Any, providers: list[str]) -> Any:
        self.asked.append(providers)
        return SimpleNamespace(get_providers=lambda: self.active)


def test_bc14_a_session_that_quietly_uses_the_cpu_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tools, results = inside("onnx_tools"), inside("outcome")
    runtime = FakeRuntime(["CPUExecutionProvider"])
    monkeypatch.setattr(tools, "need", lambda *_: runtime)
    with pytest.raises(results.Failed) as caught:
        tools.session(b"", "gpu")
    assert caught.value.cause == "provider-fallback"
    assert runtime.asked == [["CUDAExecutionProvider", "CPUExecutionProvider"]]


def test_bc14_the_provider_in_use_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = inside("onnx_tools")
    runtime = FakeRuntime(["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(tools, "need", lambda *_: runtime)
    assert tools.session(b"", "gpu").get_providers()[0] == "CUDAExecutionProvider"


# BC-16: an old driver, and the framework goes on with the CPU
def test_bc16_a_silent_fall_back_to_the_cpu_fails(tmp_path: Path) -> None:
    behaviour = with_gpu("6.1", gpus=[], trouble="Compiled with WITH_GPU, but no GPU found in runtime")
    behaviour["nvml"]["driver"] = "440.33.01"  # type: ignore[index]
    report = climb(tmp_path, fake_plan(behaviour, gpus=ALL, accelerator="cuda", level=3))
    failed = outcome(report, "visibility.devices")
    assert (failed.outcome, failed.cause) == ("failed", "cpu-fallback")
    assert "440.33.01" in failed.detail and "no GPU found in runtime" in failed.detail
    assert "toolkit" not in failed.detail
    assert outcome(report, "training.mlp").outcome == "not_run"
    assert report.status == "failed"


# BC-20: a long-running container loses its GPU
def nvml_error(text: str) -> dict[str, Any]:
    return {"nvml": {"error": "Failed to initialize NVML: " + text}, "versions": {"cuda": "12.4"}}


class LadderEngine:
    """An engine that runs the real ladder on the stand-in; each run takes the next behaviour."""

    name = "local"

    def __init__(self, folder: Path, behaviours: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.behaviours, self.runs = folder, behaviours, 0
        copy_suite(folder / "suite")
        files = {
            path.relative_to(folder / "suite").as_posix(): path.read_bytes()
            for path in (folder / "suite").rglob("*")
            if path.is_file()
        }
        monkeypatch.setattr(smoke, "suite", lambda: dict(files))

    def inspect(self, image: str) -> ImageInfo:
        return ImageInfo(image=image, tags=(), labels={}, env={}, user="", size_bytes=1, created="")

    def run(self, image: str, request: RunRequest) -> RunResult:
        import json
        import subprocess
        import sys

        assert not request.network and request.read_only
        folder = self.folder / f"run{self.runs}"
        for path, content in request.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        plan = json.loads((folder / "plan.json").read_text())
        plan["frameworks"][0]["env"]["FAKE"] = json.dumps(self.behaviours[min(self.runs, len(self.behaviours) - 1)])
        (folder / "plan.json").write_text(json.dumps(plan))
        self.runs += 1
        done = subprocess.run(
            [sys.executable, folder / "smoke_tests/run.py", folder / "plan.json"],
            capture_output=True,
            text=True,
            errors="replace",
        )
        return RunResult(code=done.returncode, stdout=done.stdout, stderr=done.stderr, seconds=1.0)


def test_bc20_a_lost_gpu_is_tried_once_in_a_new_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = with_gpu(kernels=["sm_80"])
    engine = LadderEngine(tmp_path, [nvml_error("Unknown Error"), good], monkeypatch)
    plan = fake_plan(gpus=ALL, accelerator="cuda", level=1)
    report = smoke.run_in_engine(engine, "sha256:1", plan, console=Console())  # type: ignore[arg-type]
    assert engine.runs == 2
    assert report.status == "passed" and report.interrupted.startswith("host interrupted")


def test_bc20_twice_lost_stays_failed_and_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LadderEngine(tmp_path, [nvml_error("Unknown Error")], monkeypatch)
    plan = fake_plan(gpus=ALL, accelerator="cuda", level=1)
    report = smoke.run_in_engine(engine, "sha256:1", plan, console=Console())  # type: ignore[arg-type]
    assert engine.runs == 2 and report.status == "failed"
    assert outcome(report, "visibility.devices").cause == "host-interrupted"
    assert "host interrupted" in report.interrupted and "driver" not in report.interrupted


def test_bc20_a_version_mismatch_is_another_fault_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LadderEngine(tmp_path, [nvml_error("Driver/library version mismatch")], monkeypatch)
    plan = fake_plan(gpus=ALL, accelerator="cuda", level=1)
    report = smoke.run_in_engine(engine, "sha256:1", plan, console=Console())  # type: ignore[arg-type]
    assert engine.runs == 1 and not report.interrupted
    assert outcome(report, "visibility.devices").cause == "driver-mismatch"


def test_a_library_without_a_driver_is_no_fault_where_nothing_was_promised(tmp_path: Path) -> None:
    behaviour = nvml_error("Driver Not Loaded")
    found = outcome(climb(tmp_path, fake_plan(behaviour, accelerator="cuda", level=1)), "visibility.devices")
    assert found.outcome == "unavailable" and "Driver Not Loaded" in found.detail
    promised = fake_plan(behaviour, gpus=ALL, accelerator="cuda", level=1)
    failed = outcome(climb(tmp_path, promised), "visibility.devices")
    assert (failed.outcome, failed.cause) == ("failed", "nvml-error")


# BC-21: no GPU driver plug-in in the engine
def test_bc21_a_promised_gpu_never_becomes_a_cpu_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LadderEngine(tmp_path, [{}], monkeypatch)

    def refuse(image: str, request: RunRequest) -> RunResult:
        raise GpuUnavailable("no-gpu-driver-plugin", 'could not select device driver "" with capabilities: [[gpu]]')

    monkeypatch.setattr(engine, "run", refuse)
    with pytest.raises(GpuUnavailable):
        smoke.run_in_engine(engine, "sha256:1", fake_plan(gpus=ALL), console=Console())  # type: ignore[arg-type]


# BC-25: TF32 is not a broken installation, and not an excuse either
def test_bc25_tf32_on_ampere_is_explained_by_a_second_run_with_it_off(tmp_path: Path) -> None:
    plan = fake_plan(with_gpu("8.0", tf32="default"), gpus=ALL, accelerator="cuda", level=2)
    found = outcome(climb(tmp_path, plan), "numerics.matmul")
    assert found.outcome == "passed" and found.detail.startswith("numerics: TF32")
    assert found.facts["error"] > 1e-4 and found.facts["error_without_tf32"] <= found.facts["tolerance"] == 1e-5
    assert found.facts["tf32"] == "on"


def test_bc25_the_same_error_before_ampere_is_a_failure(tmp_path: Path) -> None:
    plan = fake_plan(with_gpu("7.5", tf32="default"), gpus=ALL, accelerator="cuda", level=2)
    found = outcome(climb(tmp_path, plan), "numerics.matmul")
    assert found.outcome == "failed" and "7.5 has no TF32" in found.detail


def test_bc25_an_error_that_stays_with_tf32_off_is_a_failure(tmp_path: Path) -> None:
    plan = fake_plan(with_gpu("8.0", tf32="always"), gpus=ALL, accelerator="cuda", level=2)
    found = outcome(climb(tmp_path, plan), "numerics.matmul")
    assert found.outcome == "failed" and "TF32 is not the cause" in found.detail


def test_bc25_a_cpu_gets_no_allowance(tmp_path: Path) -> None:
    found = outcome(climb(tmp_path, fake_plan({"tf32": "default"}, level=2)), "numerics.matmul")
    assert found.outcome == "failed"


# BC-29: Keras 3 and tf2onnx
def test_bc29_the_known_error_text_names_the_other_route() -> None:
    cause, text = inside("outcome").classify("AttributeError: 'Sequential' object has no attribute '_get_save_spec'")
    assert cause == "keras3-tf2onnx" and "input signature" in text


def test_bc29_the_ladder_itself_never_calls_from_keras() -> None:
    text = (Path(smoke.__file__).parents[1] / "smoke_tests/adapters/tensorflow_.py").read_text()
    assert "convert.from_function(" in text and "convert.from_keras(" not in text


# BC-56: accelerators are per framework
def test_bc56_a_cpu_build_by_plan_is_not_failed_for_seeing_no_gpu(tmp_path: Path) -> None:
    behaviour = with_gpu(gpus=[], versions={"cuda": None})
    report = climb(tmp_path, fake_plan(behaviour, gpus=ALL, accelerator="cpu", level=3))
    assert outcome(report, "visibility.devices").outcome == "unavailable"
    assert report.status == "passed"
