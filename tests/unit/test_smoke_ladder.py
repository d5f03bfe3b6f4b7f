"""The ladder itself, climbed by a stand-in framework that breaks one thing at a time."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from smoke_kit import ALL, AUTO, NONE, SUITE, climb, fake_plan, outcome

from envforge import smoke

GPU = {"index": 0, "name": "A100", "uuid": "GPU-1", "capability": "8.0"}


def with_gpu(capability: str = "8.0", **more: object) -> dict[str, object]:
    device = {**GPU, "capability": capability}
    return {
        "nvml": {"devices": [device]},
        "gpus": [{"name": "A100", "uuid": "GPU-1", "capability": capability}],
        "versions": {"cuda": "12.4"},
    } | more


def test_the_suite_is_readable_by_python_3_7() -> None:
    files = sorted(SUITE.rglob("*.py"))
    assert len(files) > 15
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 7))


def test_a_sound_framework_passes_and_noise_on_stdout_changes_nothing(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan(level=5))
    seen = {check.name: check.outcome for check in report.checks}
    assert report.status == "passed" and smoke.earns_tag(report)
    assert {name for name, value in seen.items() if value == "unavailable"} == {
        "visibility.devices",
        "visibility.kernels",
        "export.onnx",
        "stress.allreduce",
    }
    # the stand-in prints a forged report line on fd 1: the real one has seconds and a version in it
    assert "fake 1.0, CPU build" in outcome(report, "visibility.import").detail
    assert "another process" in outcome(report, "export.checkpoint").detail
    assert not report.gpu_tested
    latency = outcome(report, "stress.latency").facts
    assert latency["runs"] == 100 and latency["dropped"] == 10 and latency["p95_ms"] >= latency["median_ms"]


def test_a_hanging_check_fails_and_the_rest_still_runs(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan({"matmul": "hang"}, timeout=3))
    hung = outcome(report, "numerics.matmul")
    assert (hung.outcome, hung.cause) == ("failed", "time-limit") and "time limit" in hung.detail
    assert outcome(report, "training.mlp").outcome == "passed"
    assert outcome(report, "export.checkpoint").outcome == "passed"
    assert report.status == "failed"


def test_a_check_killed_for_memory_names_that_cause(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan({"matmul": "killed"}))
    killed = outcome(report, "numerics.matmul")
    assert (killed.outcome, killed.cause) == ("failed", "out-of-memory") and "signal 9" in killed.detail
    assert outcome(report, "training.mlp").outcome == "passed"


def test_a_crash_names_the_signal(tmp_path: Path) -> None:
    crashed = outcome(climb(tmp_path, fake_plan({"matmul": "segv"}, level=2)), "numerics.matmul")
    assert (crashed.outcome, crashed.cause) == ("failed", "crashed") and "SIGSEGV" in crashed.detail


def test_a_framework_that_ends_the_process_with_success_is_not_passed(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan({"matmul": "leave"}, level=2))
    assert outcome(report, "numerics.matmul").outcome == "failed"
    assert report.status == "failed"


def test_an_import_failure_leaves_the_rest_not_run(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan({"import": "No module named 'pkg_resources'"}))
    failed = outcome(report, "visibility.import")
    assert (failed.outcome, failed.cause) == ("failed", "missing-module") and "pkg_resources" in failed.detail
    assert {check.outcome for check in report.checks if check.name != "visibility.import"} == {"not_run"}
    assert report.status == "failed" and not smoke.earns_tag(report)


@pytest.mark.parametrize(
    ("reload", "cause"), [("hang", "time-limit"), ("segv", "crashed"), ("wrong", "export-differs")]
)
def test_a_bad_reload_fails_its_route(tmp_path: Path, reload: str, cause: str) -> None:
    report = climb(tmp_path, fake_plan({"reload": reload}, timeout=4 if reload == "hang" else 60))
    route = outcome(report, "export.checkpoint")
    assert (route.outcome, route.cause) == ("failed", cause)
    assert outcome(report, "training.mlp").outcome == "passed"


def test_a_required_route_without_its_package_fails(tmp_path: Path) -> None:
    plan = fake_plan(required=("export.checkpoint", "export.onnx"))
    route = outcome(climb(tmp_path, plan), "export.onnx")
    assert (route.outcome, route.cause) == ("failed", "missing-module") and "onnx" in route.detail


@pytest.mark.parametrize("train", ["short", "flat", "drift"])
def test_training_that_is_not_right_fails(tmp_path: Path, train: str) -> None:
    assert outcome(climb(tmp_path, fake_plan({"train": train}, level=3)), "training.mlp").outcome == "failed"


def test_tensors_on_the_wrong_device_fail(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan(with_gpu(place="cpu"), level=3, gpus=ALL, accelerator="cuda"))
    assert outcome(report, "training.mlp").cause == "wrong-device"
    assert outcome(report, "numerics.tensor").cause == "wrong-device"


# -- expectations about GPUs -----------------------------------------------------------------------------------


def test_no_gpu_and_none_promised_is_unavailable_and_does_not_block(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan({"versions": {"cuda": "12.4"}}, gpus=AUTO, accelerator="cuda", cuda="12.4"))
    assert outcome(report, "visibility.devices").outcome == "unavailable"
    assert outcome(report, "visibility.kernels").outcome == "unavailable"
    assert report.status == "passed" and report.document()["gpu_note"] == "not tested on a GPU"


def test_a_promised_gpu_that_is_absent_fails(tmp_path: Path) -> None:
    behaviour = {"nvml": {}, "versions": {"cuda": "12.4"}}
    report = climb(tmp_path, fake_plan(behaviour, gpus=ALL, accelerator="cuda", cuda="12.4"))
    assert outcome(report, "visibility.devices").cause == "promised-gpu-absent"
    assert outcome(report, "numerics.matmul").outcome == "not_run"
    assert report.status == "failed"


def test_a_gpu_that_nothing_was_promised_of_must_still_be_used(tmp_path: Path) -> None:
    behaviour = with_gpu(gpus=[])
    devices = outcome(climb(tmp_path, fake_plan(behaviour, level=1, accelerator="cuda")), "visibility.devices")
    assert (devices.outcome, devices.cause) == ("failed", "cpu-fallback")


def test_gpus_none_asks_nothing_of_the_framework(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan(with_gpu(), level=3, gpus=NONE, accelerator="cuda"))
    assert outcome(report, "visibility.devices").outcome == "unavailable"
    assert "on cpu" in outcome(report, "training.mlp").detail


def test_a_gpu_that_works_is_tested(tmp_path: Path) -> None:
    plan = fake_plan(with_gpu(kernels=["sm_80"]), gpus=ALL, accelerator="cuda", cuda="12.4")
    report = climb(tmp_path, plan)
    assert report.status == "passed" and report.gpu_tested
    assert report.facts["driver"] == "550.54.14" and report.facts["gpus"][0]["name"] == "A100"


def test_framework_and_nvml_must_count_the_same(tmp_path: Path) -> None:
    behaviour = with_gpu()
    behaviour["nvml"] = {"devices": [GPU, {**GPU, "index": 1, "uuid": "GPU-2"}]}
    report = climb(tmp_path, fake_plan(behaviour, level=1, gpus=ALL, accelerator="cuda"))
    assert outcome(report, "visibility.devices").cause == "device-count"


def test_the_wrong_cuda_build_fails_at_import_level(tmp_path: Path) -> None:
    plan = fake_plan(with_gpu(), level=1, gpus=ALL, accelerator="cuda", cuda="11.8")
    found = outcome(climb(tmp_path, plan), "visibility.import")
    assert (found.outcome, found.cause) == ("failed", "wrong-cuda-build") and "11.8" in found.detail


def test_another_version_than_locked_fails(tmp_path: Path) -> None:
    found = outcome(climb(tmp_path, fake_plan(level=1, version="1.1")), "visibility.import")
    assert (found.outcome, found.cause) == ("failed", "wrong-version")


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    behaviour = {"compile": "InvalidCxxCompiler: No working C++ compiler found"}
    found = outcome(climb(tmp_path, fake_plan(behaviour, level=5)), "stress.compile")
    assert (found.outcome, found.cause) == ("failed", "missing-compiler") and "gcc" in found.detail


def test_a_planned_check_that_nobody_knows_is_an_error_and_never_passed(tmp_path: Path) -> None:
    plan = fake_plan(level=1)
    extra = smoke.PlannedCheck(name="structure.invented", framework="", level=0)
    report = climb(tmp_path, smoke.replace(plan, checks=(*plan.checks, extra)))
    assert outcome(report, "structure.invented").outcome == "error"
    assert report.status == "error" and not smoke.earns_tag(report)


def test_lines_carry_seconds_level_and_one_json_object_each(tmp_path: Path) -> None:
    report = climb(tmp_path, fake_plan(level=2))
    document = json.loads(json.dumps(report.document()))
    assert [check["level"] for check in document["checks"]] == sorted(check["level"] for check in document["checks"])
    assert all(check["seconds"] >= 0 for check in document["checks"])
