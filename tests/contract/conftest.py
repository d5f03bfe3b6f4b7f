"""The engines the contract is held against. Each yields an engine and the way it makes its environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import podman, records
from tests.fakes import FakeEngine


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine under test. ``isolated``: it promises a read-only root and memory limits."""

    engine: Any
    base: str
    isolated: bool

    def build(self, digest: str, **changes: Any) -> Any:
        from envforge.engine import BuildOptions

        return self.engine.build(
            records.rendered(digest, base=self.base),
            records.resolution(),
            changes.get("lock", records.lock(digest)),
            BuildOptions(progress=changes.get("progress", lambda line: None)),
        )


def _docker_base(engine: Any) -> str:
    """A bootstrapped base in this engine; in a second engine it comes from the first, by export and import."""
    from envforge import base

    return base.bootstrap(engine, "3.11", note=lambda text: None).reference


@pytest.fixture(scope="session")
def podman_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if podman.program() is None:
        if "podman" in os.environ.get("ENVFORGE_TEST_REQUIRE", "").split():
            pytest.fail("Podman is required for this run and is not installed")
        pytest.skip("no podman here (ENVFORGE_TEST_REQUIRE=podman insists)")
    with podman.service(tmp_path_factory.mktemp("podman")) as address:
        yield address


def _fake(request: pytest.FixtureRequest, folder: Path) -> Subject:
    return Subject(engine=FakeEngine(folder), base="none", isolated=False)


def _local(request: pytest.FixtureRequest, folder: Path) -> Subject:
    from envforge.local_engine import LocalEngine

    return Subject(engine=LocalEngine(folder / "prefixes"), base="none", isolated=False)


def _docker(request: pytest.FixtureRequest, folder: Path) -> Subject:
    from envforge.docker_engine import DockerEngine

    engine = DockerEngine.connect()
    return Subject(engine=engine, base=_docker_base(engine), isolated=True)


def _podman(request: pytest.FixtureRequest, folder: Path) -> Subject:
    from envforge.docker_engine import DockerEngine

    address = request.getfixturevalue("podman_address")
    request.getfixturevalue("monkeypatch").setenv("DOCKER_HOST", address)
    engine = DockerEngine.connect()
    return Subject(engine=engine, base=_docker_base(engine), isolated=True)


_MAKERS: dict[str, Callable[[pytest.FixtureRequest, Path], Subject]] = {
    "fake": _fake,
    "local": _local,
    "docker": _docker,
    "podman": _podman,
}


@pytest.fixture(
    params=[
        "fake",
        pytest.param("local", marks=pytest.mark.network),
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.docker),
    ]
)
def subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path / "home"))
    found = _MAKERS[request.param](request, tmp_path)
    yield found
    for info in found.engine.images():
        if info.labels.get("envforge.name") == "contract":
            for name in info.tags or (info.image,):
                found.engine.remove(name)
    shutil.rmtree(tmp_path / "prefixes", ignore_errors=True)
