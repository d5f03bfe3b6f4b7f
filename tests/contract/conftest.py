"""The engines the contract is held against. Each yields an engine and the way it makes its environment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import podman, records
from tests.fakes import FakeEngine


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine under test."""

    engine: Any
    base: str
    made: list[str] = field(default_factory=list)

    def build(self, digest: str, **changes: Any) -> Any:
        from envforge.engine import BuildOptions

        self.made.append(digest)
        return self.engine.build(
            records.rendered(digest, base=self.base),
            records.resolution(),
            changes.get("lock", records.lock(digest)),
            BuildOptions(progress=changes.get("progress", lambda line: None)),
        )


def _docker_base(engine: Any) -> str:
    """A bootstrapped base in this engine."""
    from envforge import base

    return base.bootstrap(engine, "3.11", note=lambda text: None).reference


def _copied_base(engine: Any) -> str:
    """The base of the Docker engine, copied into a second engine: making it anew would take another minute."""
    import docker

    from envforge import base
    from envforge.docker_engine import DockerEngine

    if not engine.bases():
        reference = _docker_base(DockerEngine.connect())
        client = docker.from_env()
        made = client.api.create_container(reference, command=["true"])
        try:
            with tempfile.TemporaryFile() as tar:
                for chunk in client.api.export(made["Id"]):
                    tar.write(chunk)
                tar.seek(0)
                changes = ["LABEL envforge.bootstrap=bookworm", "LABEL envforge.bootstrap-python=3.11"]
                engine.import_rootfs(tar, base.REPOSITORY, "bookworm-py3.11", changes)
        finally:
            client.api.remove_container(made["Id"], v=True)
            client.close()
    return str(engine.bases()[0].tags[0])


@pytest.fixture(scope="session")
def podman_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if podman.program() is None:
        if "podman" in os.environ.get("ENVFORGE_TEST_REQUIRE", "").split():
            pytest.fail("Podman is required for this run and is not installed")
        pytest.skip("no podman here (ENVFORGE_TEST_REQUIRE=podman insists)")
    with podman.service(tmp_path_factory.mktemp("podman")) as address:
        yield address


def _fake(request: pytest.FixtureRequest, folder: Path) -> Subject:
    return Subject(engine=FakeEngine(folder), base="none")


def _local(request: pytest.FixtureRequest, folder: Path) -> Subject:
    from envforge.local_engine import LocalEngine

    return Subject(engine=LocalEngine(folder / "prefixes"), base="none")


def _docker(request: pytest.FixtureRequest, folder: Path) -> Subject:
    from envforge.docker_engine import DockerEngine

    engine = DockerEngine.connect()
    return Subject(engine=engine, base=_docker_base(engine))


def _podman(request: pytest.FixtureRequest, folder: Path) -> Subject:
    from envforge.docker_engine import DockerEngine

    address = request.getfixturevalue("podman_address")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        engine = DockerEngine.connect()
    return Subject(engine=engine, base=_copied_base(engine))


_MAKERS: dict[str, Callable[[pytest.FixtureRequest, Path], Subject]] = {
    "fake": _fake,
    "local": _local,
    "docker": _docker,
    "podman": _podman,
}


_CONTAINERS = [
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("podman", marks=pytest.mark.docker),
]
_LOCAL = pytest.param("local", marks=pytest.mark.network)


def _subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path / "home"))
    found = _MAKERS[request.param](request, tmp_path)
    yield found
    for info in found.engine.images():
        if info.labels.get("envforge.inputs-digest") in found.made:
            for name in info.tags or (info.image,):
                found.engine.remove(name)
    shutil.rmtree(tmp_path / "prefixes", ignore_errors=True)


# Every engine; those with a device layer of their own; those that isolate in containers.
subject = pytest.fixture(_subject, params=["fake", _LOCAL, *_CONTAINERS], name="subject")
gpu_subject = pytest.fixture(_subject, params=["fake", *_CONTAINERS], name="gpu_subject")
container_subject = pytest.fixture(_subject, params=_CONTAINERS, name="container_subject")
