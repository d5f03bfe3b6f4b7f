"""The wheel probe: what it reads out of files made here, byte by byte."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import probe_wheel  # noqa: E402
import update_common  # noqa: E402


def image(kind: int, arch: int, payload: bytes = b"x" * 16) -> bytes:
    """One entry of a fatbin: a header of 64 bytes and its payload."""
    head = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(payload), 0, 0, 0, 0, arch)
    return head.ljust(64, b"\0") + payload


def fatbin(*images: bytes) -> bytes:
    """The container around images."""
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_images_of_every_container_are_found() -> None:
    data = b"\x7fELF" + b"\0" * 100 + fatbin(image(2, 80), image(2, 86), image(1, 90)) + b"junk" + fatbin(image(2, 120))
    found = probe_wheel.architectures(probe_wheel.fatbin_images(data))
    assert found == {"sass": ["8.0", "8.6", "12.0"], "ptx": ["9.0"], "images": 4}


@pytest.mark.parametrize(
    "data",
    [
        b"nothing of the kind",
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 10_000) + image(2, 80),  # longer than the file
        struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 80) + image(2, 80),  # unknown container version
        fatbin(image(9, 80)),  # unknown kind
        fatbin(image(2, 5)),  # no such architecture
        probe_wheel.FATBIN_MAGIC,  # cut off
    ],
)
def test_chance_matches_of_the_magic_number_are_no_images(data: bytes) -> None:
    assert probe_wheel.architectures(probe_wheel.fatbin_images(data)) == {"sass": [], "ptx": [], "images": 0}


def test_a_container_inside_a_broken_one_is_still_found() -> None:
    data = probe_wheel.FATBIN_MAGIC + b"\0" * 12 + fatbin(image(2, 75))
    assert list(probe_wheel.fatbin_images(data)) == [("sass", 75)]


def test_arch_flags_takes_the_compiled_list_and_not_single_words() -> None:
    data = b"see sm_90 docs\0sm_35\0\0ipc_hsm_50 sm_60 sm_70 compute_90\0sm_50 sm_60\0"
    assert probe_wheel.arch_flags(data) == ["sm_50", "sm_60", "sm_70", "compute_90"]
    assert probe_wheel.arch_flags(b"no list here: sm_80 \0") == []


def test_arch_flags_keeps_architecture_specific_variants() -> None:
    assert probe_wheel.arch_flags(b"\0sm_90a sm_100f sm_120\0") == ["sm_90a", "sm_100f", "sm_120"]


FILES = [
    {"filename": name}
    for name in (
        "torch-2.6.0-cp310-cp310-manylinux1_x86_64.whl",
        "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl",
        "torch-2.6.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "torch-2.6.0-cp311-none-macosx_11_0_arm64.whl",
        "torch-2.6.0-cp311-cp311-win_amd64.whl",
        "torch-2.6.0.tar.gz",
        "torch-2.7.1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "plug-1.0-py3-none-manylinux_2_27_x86_64.whl",
        "pure-1.0-py3-none-any.whl",
    )
]


@pytest.mark.parametrize(
    ("version", "python", "machine", "expected"),
    [
        ("2.6.0", "3.11", "x86_64", "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"),
        ("2.6.0", "3.10", "x86_64", "torch-2.6.0-cp310-cp310-manylinux1_x86_64.whl"),
        ("2.6.0", "3.11", "aarch64", "torch-2.6.0-cp311-cp311-manylinux_2_28_aarch64.whl"),
    ],
)
def test_the_wheel_pip_would_take_is_chosen(version: str, python: str, machine: str, expected: str) -> None:
    files: list[dict[str, Any]] = list(FILES)
    assert probe_wheel.choose_file(files, version, python, machine)["filename"] == expected


def test_pure_and_python_3_wheels_are_taken_where_no_other_exists() -> None:
    files: list[dict[str, Any]] = [f for f in FILES if f["filename"].startswith("plug")]
    assert probe_wheel.choose_file(files, "1.0", "3.12", "x86_64")["filename"].startswith("plug-")


def test_no_wheel_is_an_error_and_not_a_near_one() -> None:
    files: list[dict[str, Any]] = list(FILES)
    with pytest.raises(LookupError, match=r"CPython 3\.13"):
        probe_wheel.choose_file(files, "2.6.0", "3.13", "x86_64")


def test_undeclared_imports_are_those_that_always_run() -> None:
    sources = {
        "fw/__init__.py": "import os\nimport numpy\nfrom . import core\nimport fw.core\n",
        "fw/core.py": "import pkg_resources\ntry:\n    import onnx\nexcept ImportError:\n    onnx = None\n",
        "fw/lazy.py": "def f():\n    import scipy\nif True:\n    import cupy\n",
        "fw/tests/test_core.py": "import pytest\n",
        "fw/broken.py": "import (",
        "fw/scripts/run.py": "import helper\n",
        "fw/scripts/helper.py": "",
    }
    assert probe_wheel.undeclared(sources, {"numpy"}) == {"pkg_resources": ["fw/core.py"]}
    # Control: nothing declared, so numpy is missing too.
    assert set(probe_wheel.undeclared(sources, set())) == {"numpy", "pkg_resources"}


def test_a_need_behind_an_extra_is_not_declared() -> None:
    text = "Metadata-Version: 2.1\nRequires-Dist: absl-py>=1\nRequires-Dist: flatbuffers ; extra == 'x'\n"
    lines, names = probe_wheel.declared(text)
    assert len(lines) == 2
    assert names == {"absl"}


def test_a_need_of_other_interpreters_is_not_declared() -> None:
    text = "Metadata-Version: 2.1\nRequires-Dist: setuptools; python_version >= '3.12'\n"
    assert probe_wheel.declared(text, "3.11")[1] == set()
    assert probe_wheel.declared(text, "3.12")[1] == {"setuptools", "pkg_resources"}


def wheel() -> bytes:
    """A small wheel that looks like torch."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("torch/__init__.py", "import yaml\nimport filelock\n")
        archive.writestr("torch/version.py", "cuda: Optional[str] = '12.4'\n")
        archive.writestr("torch/lib/libtorch_python.so", b"\0sm_80 sm_90\0")
        archive.writestr("torch/lib/libtorch_cuda.so", b"\0" * 1_000_001 + fatbin(image(2, 80), image(1, 90)))
        archive.writestr(
            "torch-2.6.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nRequires-Dist: filelock\nRequires-Dist: nvidia-cudnn-cu12 (==9.1.0.70)\n",
        )
    return buffer.getvalue()


def test_probe_of_a_whole_wheel_by_ranges(tmp_path: Path) -> None:
    data = wheel()
    asked: list[tuple[int, int]] = []

    def read_range(first: int, last: int) -> bytes:
        asked.append((first, last))
        return data[first : last + 1]

    remote = update_common.RangeFile(len(data), read_range)
    with zipfile.ZipFile(remote) as archive:
        found = probe_wheel.probe(archive, tmp_path, fatbins=True, say=lambda text: None)
    assert found["arch_list"] == ["sm_80", "sm_90"]
    assert found["libraries"] == {"cuda": "12.4 (torch/version.py)", "cudnn": "==9.1.0.70 (nvidia-cudnn-cu12)"}
    assert found["fatbins"] == {"torch/lib/libtorch_cuda.so": {"sass": ["8.0"], "ptx": ["9.0"], "images": 2}}
    assert found["undeclared_imports"] == {"yaml": ["torch/__init__.py"]}
    assert asked and remote.fetched <= len(data) and not list(tmp_path.iterdir())


def test_range_file_reads_what_the_file_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_common, "BLOCK", 16)
    data = bytes(range(256))
    remote = update_common.RangeFile(256, lambda first, last: data[first : last + 1], keep=2)
    remote.seek(-10, io.SEEK_END)
    assert remote.read() == data[-10:]
    remote.seek(5)
    assert remote.read(100) == data[5:105]
    assert remote.tell() == 105


def test_a_server_without_ranges_is_distrusted() -> None:
    remote = update_common.RangeFile(10, lambda first, last: b"the whole file again")
    with pytest.raises(update_common.Distrusted, match="no range requests"):
        remote.read(4)


def probes() -> Iterator[Path]:
    return iter(sorted(probe_wheel.PROBES.glob("*.json")))


def test_kept_probes_name_file_hash_command_and_date() -> None:
    found = [json.loads(path.read_text()) for path in probes()]
    assert {p["distribution"] for p in found} >= {
        "torch",
        "tensorflow",
        "onnxruntime-gpu",
        "jax-cuda12-plugin",
        "jax-cuda12-pjrt",
        "jax-cuda13-pjrt",
    }
    for entry in found:
        assert entry["schema"] == probe_wheel.SCHEMA
        assert len(entry["sha256"]) == 64 and entry["file"].endswith(".whl")
        assert entry["command"].startswith("python tools/probe_wheel.py ") and entry["date"] >= "2026-11-30"


def test_what_frameworks_leave_undeclared_was_found_in_their_wheels() -> None:
    found = {p["distribution"]: p["undeclared_imports"] for p in (json.loads(path.read_text()) for path in probes())}
    assert "flatbuffers" in found["jax"]
    assert "setuptools" in found["paddlepaddle"], "declared for Python 3.12 on, imported on 3.11 too"
    assert "numpy" not in found["tensorflow"], "control: a declared need is none"


def test_probed_torch_architectures_stand_in_the_table() -> None:
    """What was measured wins: the row of each probed torch lists exactly those kernels for its CUDA build."""
    import yaml

    rows = {r["version"]: r for r in yaml.safe_load((update_common.DATA / "torch.yaml").read_text())["releases"]}
    measured = [json.loads(p.read_text()) for p in probes() if p.name.startswith("torch-2")]
    assert {p["version"] for p in measured} >= {"2.1.2", "2.4.1", "2.6.0", "2.8.0", "2.11.0", "2.15.0"}
    for entry in measured:
        series = ".".join(entry["libraries"]["cuda"].split(" ")[0].split(".")[:2])
        build = next(b for b in rows[entry["version"]]["builds"] if b["cuda"] == series)
        numbers = [int(word[3:].rstrip("af")) for word in entry["arch_list"] if word.startswith("sm_")]
        assert build["kernels"] == [f"{n // 10}.{n % 10}" for n in sorted(numbers)], entry["version"]
