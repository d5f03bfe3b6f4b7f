"""The `torch-cu118` spec built end to end from a local index of stand-in ``+cu118`` wheels.

PyTorch's own index holds gigabytes and cannot be reached everywhere; the stand-ins carry its names, local versions and
platform tags, and a module that answers as far as the ladder's first level.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.fixtures_index import Index
from tests.wheels import wheel

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.network]

TORCH = """\
__version__ = "2.7.1+cu118"
class version:
    cuda = {cuda!r}
    hip = None
class backends:
    class cudnn:
        benchmark = False
        deterministic = True
        @staticmethod
        def is_available(): return False
class cuda:
    @staticmethod
    def is_available(): return False
    @staticmethod
    def device_count(): return 0
    @staticmethod
    def get_arch_list(): return ["sm_80", "sm_90"]
def __getattr__(name):
    return lambda *args, **kwargs: None
"""


def stand_ins(cuda: str | None = "11.8") -> list[Any]:
    files = {"torch/__init__.py": TORCH.format(cuda=cuda).encode()}
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    return [
        wheel("torch", "2.7.1+cu118", tag=tag, files=files, requires=["filelock"]),
        wheel("torchvision", "0.22.1+cu118", tag=tag, requires=["torch==2.7.1"]),
    ]


@pytest.fixture
def gateway() -> str:
    """The address of this host as containers on the default bridge see it."""
    client = docker.from_env()
    try:
        return str(client.networks.get("bridge").attrs["IPAM"]["Config"][0].get("Gateway") or "172.17.0.1")
    finally:
        client.close()


@pytest.fixture
def index(gateway: str, bookworm_base: str) -> Iterator[Index]:
    with Index(stand_ins(), host=gateway) as found:
        yield found


def envforge(folder: Path, index: Index, *words: str) -> tuple[int, dict[str, Any], str]:
    config = folder / "config.yaml"
    config.write_text(f"schema: 1\nindexes: {{pytorch-cu118: {json.dumps(index.url)}}}\n", encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(folder / "home"), "ENVFORGE_CONFIG": str(config)}
    done = subprocess.run(
        [sys.executable, "-m", "envforge", *words, "--json"], cwd=folder, env=env, capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def clean() -> None:
    client = docker.from_env()
    for image in client.images.list(filters={"label": "envforge.name=torch-cu118"}):
        client.images.remove(image.id, force=True)
    client.close()


@pytest.mark.heavy
def test_lock_and_build_from_the_local_index(tmp_path: Path, index: Index) -> None:
    code, locked, err = envforge(tmp_path, index, "lock", "torch-cu118")
    assert code == 0, err
    folder = tmp_path / "lockfiles" / "torch-cu118"
    pinned = (folder / "pip.pytorch-cu118.txt").read_text(encoding="utf-8")
    assert "torch==2.7.1+cu118" in pinned and "torchvision==0.22.1+cu118" in pinned
    assert index.root not in "".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    try:
        words = ("build", "torch-cu118", "--engine", "docker", "--level", "1")
        code, document, err = envforge(tmp_path, index, *words)
        assert code == 0, err[-3000:] + json.dumps(document)[-2000:]
        outcomes = {check["name"]: check["outcome"] for check in document["checks"]}
        assert outcomes["visibility.import"] == "passed"
        assert outcomes["structure.packages"] == "passed"
        assert outcomes["visibility.devices"] == "unavailable"
        assert document["inputs_digest"] == locked["inputs_digest"]
        assert document["tag"] is None  # the tag asks for level 4
    finally:
        clean()


@pytest.mark.heavy
def test_a_cpu_wheel_under_the_cuda_name_fails_level_1(tmp_path: Path, index: Index) -> None:
    index.add(*stand_ins(cuda=None))
    assert envforge(tmp_path, index, "lock", "torch-cu118")[0] == 0
    try:
        words = ("build", "torch-cu118", "--engine", "docker", "--level", "1")
        code, document, _ = envforge(tmp_path, index, *words)
        assert code == 8
        failed = {check["name"]: check["detail"] for check in document["checks"] if check["outcome"] == "failed"}
        assert "CUDA" in failed["visibility.import"] or "cuda" in failed["visibility.import"]
    finally:
        clean()


def test_a_tampered_wheel_is_refused_and_named(tmp_path: Path, index: Index) -> None:
    assert envforge(tmp_path, index, "lock", "torch-cu118")[0] == 0
    index.tampered.add(stand_ins()[0].filename)
    code, document, _ = envforge(tmp_path, index, "build", "torch-cu118", "--engine", "docker", "--no-smoke")
    assert code == 7
    assert document["error"]["reference"] == "hash-mismatch"
    assert "torch" in " ".join(document["error"]["context"])
    code, document, _ = envforge(tmp_path, index, "build", "torch-cu118", "--engine", "local", "--no-smoke")
    assert code == 7
    assert document["error"]["reference"] == "hash-mismatch"
    assert not any((tmp_path / "home" / "prefixes").glob("torch-cu118-*"))


def test_an_index_that_answers_500_stops_the_lock(tmp_path: Path, index: Index) -> None:
    index.status = 500
    code, document, _ = envforge(tmp_path, index, "lock", "torch-cu118")
    assert code == 11
    assert "pytorch-cu118" in document["error"]["message"]
    assert not (tmp_path / "lockfiles" / "torch-cu118").exists()
