"""What the tests of the pip locker share: two local indexes, a clean uv, and short ways to lock and to be refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envforge.errors import EnvforgeError
from envforge.lock import LockedPackage
from envforge.lockers import pip
from envforge.resolve import PipRequirement
from tests.fixtures_index import Index
from tests.lock_samples import quiet_console, resolution
from tests.wheels import wheel

LINUX = "cp311-cp311-manylinux_2_28_x86_64"
NVIDIA = "py3-none-manylinux2014_x86_64"
TORCH = PipRequirement(text="torch==2.7.1+cu118", index="pytorch-cu118")


@pytest.fixture
def clean_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """uv with a cache of its own, no retries, and a machine full of settings that must not matter."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("UV_INDEX_URL", raising=False)


@pytest.fixture
def public() -> Iterator[Index]:
    dists = [
        wheel("filelock", "3.0"),
        wheel("torch", "2.7.1", tag=LINUX),
        wheel("nvidia-nccl-cu11", "2.99", tag=NVIDIA),
        wheel("nvidia-nccl-cu11", "2.21.5", tag=NVIDIA, files={"nvidia/other.py": b"# not the lab's\n"}),
    ]
    with Index(dists) as index:
        yield index


@pytest.fixture
def pytorch() -> Iterator[Index]:
    dists = [
        wheel("torch", "2.7.1+cu118", tag=LINUX, requires=["filelock", "nvidia-nccl-cu11==2.21.5"]),
        wheel("nvidia-nccl-cu11", "2.21.5", tag=NVIDIA),
        wheel("filelock", "9.0"),
    ]
    with Index(dists) as index:
        yield index


def lock(index: Index, *requirements: Any, **options: Any) -> dict[str, LockedPackage]:
    """Lock against a local default index; ``resolution`` fields may be given by name."""
    ours = {"as_of", "upgrade", "previous", "console"}
    made_for = resolution(*requirements, **{k: v for k, v in options.items() if k not in ours})
    options.setdefault("console", quiet_console())
    chosen = {k: v for k, v in options.items() if k in ours}
    return {package.name: package for package in pip.lock(made_for, index_url=index.url, **chosen)}


def refused(kind: type[EnvforgeError], index: Index, *requirements: Any, **options: Any) -> EnvforgeError:
    with pytest.raises(kind) as caught:
        lock(index, *requirements, **options)
    return caught.value


def bound(index: Index, *patterns: str) -> dict[str, Any]:
    return {
        "indexes": {"pytorch-cu118": index.url},
        "index_packages": {"pytorch-cu118": patterns or ("torch", "nvidia-*")},
    }


def hash_of(index: Index, filename: str) -> str:
    return f"sha256:{index.dists[filename].sha256}"
