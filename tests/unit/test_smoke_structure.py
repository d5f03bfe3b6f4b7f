"""Level 0, each check with a sound case and a control that must fail."""

from __future__ import annotations

import ctypes
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from smoke_kit import inside

structure = inside("structure")
results = inside("outcome")


def fails(function: Any, plan: dict[str, Any]) -> Any:
    with pytest.raises(results.Failed) as caught:
        function(plan)
    return caught.value


def everything() -> dict[str, str]:
    return {structure.normal(d.metadata["Name"]): d.version for d in metadata.distributions()}


def test_the_installed_set_equals_the_lock() -> None:
    assert "as locked" in structure.packages({"packages": everything()})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pytest": "0.1"}, "the lock says 0.1"),
        ({"never-heard-of": "1.0"}, "never-heard-of 1.0 is locked but not installed"),
        ({"pytest": None}, "is installed but not locked"),
    ],
)
def test_any_difference_from_the_lock_fails(change: dict[str, str | None], said: str) -> None:
    wanted = {name: version for name, version in {**everything(), **change}.items() if version is not None}
    failure = fails(structure.packages, {"packages": wanted})
    assert said in failure.detail and failure.cause == "lock-mismatch"


def test_more_packages_than_the_pip_lock_are_right_beside_conda() -> None:
    wanted = {"pytest": metadata.version("pytest")}
    assert structure.packages({"packages": wanted, "packages_partial": True})


def library(folder: Path, name: str, link: str | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"\x7fELF" + str(folder).encode())
    if link:
        (folder / link).symlink_to(name)


def test_links_to_one_library_are_one_copy(tmp_path: Path) -> None:
    library(tmp_path / "site/nvidia/cudnn/lib", "libcudnn.so.9.1.0", "libcudnn.so.9")
    copies = structure.cuda_copies([], [str(tmp_path / "site")])
    assert {stem: len(paths) for stem, paths in copies.items()} == {"libcudnn": 1}


def test_a_second_copy_of_a_cuda_library_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path / "site/nvidia/cublas/lib", "libcublas.so.12")
    library(tmp_path / "cuda/lib64", "libcublas.so.12.4.5", "libcublas.so.12")
    monkeypatch.setattr(structure, "site_folders", lambda: [str(tmp_path / "site")])
    monkeypatch.setattr(structure, "library_folders", lambda whole: [])
    assert "one copy" in structure.cuda_libraries({"scope": "image"})
    monkeypatch.setattr(structure, "library_folders", lambda whole: [str(tmp_path / "cuda/lib64")])
    failure = fails(structure.cuda_libraries, {"scope": "image"})
    assert failure.cause == "second-cuda-library"
    assert "libcublas" in failure.detail and str(tmp_path / "cuda/lib64") in failure.detail


def test_a_copy_with_a_hashed_name_counts_too(tmp_path: Path) -> None:
    library(tmp_path / "torch/lib", "libcudart-d0da41ae.so.11.0")
    library(tmp_path / "nvidia/cuda_runtime/lib", "libcudart.so.12")
    assert len(structure.cuda_copies([], [str(tmp_path)])["libcudart"]) == 2


def test_triton_keeps_a_private_library_for_its_profiler(tmp_path: Path) -> None:
    library(tmp_path / "triton/backends/nvidia/lib/cupti", "libcupti.so.12")
    library(tmp_path / "nvidia/cuda_cupti/lib", "libcupti.so.12")
    assert len(structure.cuda_copies([], [str(tmp_path)])["libcupti"]) == 1


def test_mindspore_keeps_one_plug_in_per_cuda_line(tmp_path: Path) -> None:
    library(tmp_path / "mindspore/lib/plugin/gpu11.1", "libnccl.so.2")
    library(tmp_path / "mindspore/lib/plugin/gpu11.6", "libnccl.so.2")
    assert structure.cuda_copies([], [str(tmp_path)]) == {}
    library(tmp_path / "other/lib/plugin/gpu11.1", "libnccl.so.2")
    library(tmp_path / "other/lib/plugin/gpu11.6", "libnccl.so.2")
    assert len(structure.cuda_copies([], [str(tmp_path)])["libnccl"]) == 2


def test_stubs_for_linking_are_no_copies(tmp_path: Path) -> None:
    library(tmp_path / "lib64/stubs", "libcublas.so")
    assert structure.cuda_copies([], [str(tmp_path)]) == {}


def test_a_stub_driver_on_the_library_path_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path / "cuda/lib64/stubs", "libcuda.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "cuda/lib64"))
    assert "no stub driver" in structure.stub_driver({})
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/cuda/lib64:{tmp_path}/cuda/lib64/stubs")
    failure = fails(structure.stub_driver, {})
    assert failure.cause == "stub-driver" and "LD_LIBRARY_PATH" in failure.detail


def test_a_link_to_a_stub_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path / "cuda/lib64/stubs", "libcuda.so")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcuda.so.1").symlink_to(tmp_path / "cuda/lib64/stubs/libcuda.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    assert fails(structure.stub_driver, {}).cause == "stub-driver"


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert structure.env({"env": {"KERAS_BACKEND": "jax"}})
    failure = fails(structure.env, {"env": {"KERAS_BACKEND": "torch", "NOT_THERE": "1"}})
    assert "KERAS_BACKEND is 'jax'" in failure.detail and "NOT_THERE is None" in failure.detail


def test_files(tmp_path: Path) -> None:
    assert structure.files({"files": [str(tmp_path)]})
    assert fails(structure.files, {"files": [str(tmp_path / "absent")]}).cause == "missing-file"


def test_labels() -> None:
    expected = {"envforge.inputs-digest": "sha256:1"}
    assert structure.labels({"labels_expected": expected, "labels_seen": {**expected, "more": "1"}})
    assert fails(structure.labels, {"labels_expected": expected, "labels_seen": {}}).cause == "wrong-label"
    with pytest.raises(results.Unavailable):
        structure.labels({"labels_expected": expected, "labels_seen": None})


# BC-38: the work folder belongs to root although the files in it do not
def test_bc38_the_user_writes_in_the_work_folder(tmp_path: Path) -> None:
    assert "writable" in structure.user({"user": {"uid": os.geteuid(), "writable": [str(tmp_path)]}})
    assert list(tmp_path.iterdir()) == []


def test_bc38_another_user_than_planned_fails() -> None:
    failure = fails(structure.user, {"user": {"uid": os.geteuid() + 1, "writable": []}})
    assert f"planned is {os.geteuid() + 1}" in failure.detail


@pytest.mark.parametrize(("owner", "mode", "good"), [(1000, 0o755, True), (0, 0o755, False), (0, 0o777, True)])
def test_bc38_in_a_read_only_run_owner_and_mode_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, good: bool
) -> None:
    def read_only(dir: str) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(structure.tempfile, "mkstemp", read_only)
    monkeypatch.setattr(structure.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(structure.os, "getegid", lambda: 1000)
    monkeypatch.setattr(structure.os, "getgroups", lambda: [1000])
    real = tmp_path.stat()
    seen = os.stat_result((0o040000 | mode, *real[1:4], owner, owner, *real[6:10]))
    monkeypatch.setattr(structure.os, "stat", lambda path: seen)
    answer = structure._writable(str(tmp_path))
    assert (answer == "by its mode") is good
    if not good:
        assert "uid 1000 may not write" in answer


# NVML without the framework's help: CUDA_VISIBLE_DEVICES decides what CUDA may see
@pytest.mark.parametrize(
    ("selection", "seen"),
    [(None, 3), ("", 0), ("1", 1), ("0,2", 2), ("GPU-b", 1), ("0,9,1", 1), ("NoDevFiles", 0)],
)
def test_visible_devices(monkeypatch: pytest.MonkeyPatch, selection: str | None, seen: int) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = [{"index": n, "uuid": f"GPU-{letter}"} for n, letter in enumerate("abc")]
    assert len(inside("nvml").visible(devices, selection)) == seen


def test_no_nvml_library_means_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert inside("nvml").probe() == {"driver": None, "cuda": None, "devices": [], "error": None}


@pytest.mark.parametrize(
    ("text", "cause", "word"),
    [
        ("libcudnn.so.9: cannot open shared object file", "missing-shared-library", "libcudnn.so.9"),
        ("/lib/libc.so.6: version `GLIBC_2.34' not found", "glibc-too-old", "GLIBC_2.34"),
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0", "numpy-abi", "numpy<2"),
        ("No module named 'pkg_resources'", "missing-module", "pkg_resources"),
        ("module 'numpy' has no attribute 'bool'", "numpy-removed", "numpy.bool"),
        ("something else", "", ""),
    ],
)
def test_causes(text: str, cause: str, word: str) -> None:
    found, explanation = inside("outcome").classify(text)
    assert found == cause and word in explanation


@pytest.mark.parametrize("compiled", [True, False])
def test_an_environment_without_bytecode_gets_a_shared_cache_outside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    parent = inside("parent")
    if compiled:
        (tmp_path / "site/numpy/__pycache__").mkdir(parents=True)
    monkeypatch.setattr(parent.structure, "site_folders", lambda: [str(tmp_path / "site")])
    env, cold = parent.bytecode(str(tmp_path / "work"))
    assert cold is not compiled
    assert env.get("PYTHONPYCACHEPREFIX") == (None if compiled else str(tmp_path / "work/pycache"))
    assert bool(env["PYTHONDONTWRITEBYTECODE"]) is compiled
