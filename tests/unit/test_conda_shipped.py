"""The shipped conda locks are what their sources give, closed, and say that they were not rebuilt."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from envforge import compat, lock, spec
from envforge.lockers import conda
from envforge.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    found = importlib.util.spec_from_file_location("transcribe", ROOT / "tools" / "transcribe_conda_locks.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "count", "torch", "cuda"),
    [
        ("torch-conda-cu118", 186, "py3.10_cuda11.8_cudnn8.7.0_0", "11.8"),
        ("torch-conda-cu129", 121, "cuda129_mkl_py313_h1e53aa0_304", "12.9"),
    ],
)
def test_shipped_lock(tool: ModuleType, name: str, count: int, torch: str, cuda: str) -> None:
    made, problems = tool.make(name)
    assert problems == []
    kept = lock.read_folder(ROOT / "lockfiles" / name)
    assert kept == made
    assert len(kept.conda) == count
    packages = {one.name: one for one in kept.conda}
    assert packages["pytorch"].build == torch
    assert conda.effective_cuda(kept.conda) == cuda
    assert any("not rebuilt here" in note for note in kept.notes)
    assert lock.status(kept, resolve(spec.load(name), compat.load())).verdict == "ok"


def test_a_set_with_a_hole_is_not_closed(tool: ModuleType) -> None:
    source = yaml.safe_load((ROOT / "lockfiles/torch-conda-cu129/source.yaml").read_text())
    resolution = resolve(spec.load("torch-conda-cu129"), compat.load())
    source["packages"] = [one for one in source["packages"] if one["name"] != "libcublas"]
    lines = tool.unmet(source, resolution)
    assert lines and all("libcublas" in line for line in lines)


def test_a_row_that_cannot_be_right_is_refused(tool: ModuleType) -> None:
    row = {
        "name": "a",
        "version": "1",
        "build": "0",
        "channel": "c",
        "subdir": "noarch",
        "file": "a-2-0.conda",
        "sha256": "0" * 64,
    }
    with pytest.raises(ValueError, match="another version"):
        tool.packages({"packages": [row]})
    with pytest.raises(ValueError, match="not a sha256"):
        tool.packages({"packages": [row | {"file": "a-1-0.conda", "sha256": "1"}]})
