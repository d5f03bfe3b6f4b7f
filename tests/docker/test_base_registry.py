"""A base image from a registry: locked by tag and digest, reported when the tag moves, built from the digest.

The reported case (BC-17): a publisher put another image under the same tag, and hosts that had worked were refused.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envforge.docker_engine import DockerEngine
from envforge.errors import EngineError
from tests.docker.registries import Registry, publish_index
from tests.docker.registries import registry as serve

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.network]
NAME = "moved-base"
TAG = "3.11-slim-bookworm"
SPEC = f"""\
schema: 1
name: {NAME}
python: "3.11"
base: {{image: "python:{TAG}"}}
packages: {{pip: ["six==1.17.0"]}}
"""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A project whose Docker Hub is a local registry. ``manifests``: of the good base, of another image."""

    folder: Path
    registry: Registry
    engine: DockerEngine
    manifests: tuple[str, str]

    @property
    def repository(self) -> str:
        return f"{self.registry.host}/library/python"

    def publish(self, number: int) -> str:
        return publish_index(self.registry.host, "library/python", TAG, self.manifests[number])

    def envforge(self, *words: str) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(
            [sys.executable, "-m", "envforge", *words, "--json"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(self.folder / "home")},
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    def locked(self) -> str:
        return (self.folder / "lockfiles" / NAME / "envforge.lock.yaml").read_text(encoding="utf-8")

    def forget(self) -> None:
        """Remove the base from the engine, so that a build has to pull it."""
        for info in self.engine.images():
            if info.labels.get("envforge.name") == NAME:
                self.engine.remove(info.image)
        for reference in (f"{self.repository}:{TAG}", *self._digests()):
            try:
                self.engine.remove(reference)
            except EngineError as problem:
                assert problem.reference == "image-not-found", problem

    def _digests(self) -> list[str]:
        rows = self.engine._api.images(name=self.repository)
        return [one for row in rows for one in row.get("RepoDigests") or ()]


@pytest.fixture
def lab(tmp_path: Path, bookworm_base: str) -> Iterator[Lab]:
    engine = DockerEngine.connect()
    folder = tmp_path / "lab"
    (folder / "envs").mkdir(parents=True)
    (folder / "envs" / f"{NAME}.yaml").write_text(SPEC, encoding="utf-8")
    with serve(tmp_path / "registry") as registry:
        config = f'schema: 1\nregistries: {{"docker.io": "{registry.host}"}}\n'
        (folder / "envforge.config.yaml").write_text(config, encoding="utf-8")
        repository = f"{registry.host}/library/python"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("other"))
        buffer.seek(0)
        engine.import_rootfs(buffer, repository, "other", ["LABEL case=moved-base"])
        engine.tag(bookworm_base, repository, "good")
        manifests = (engine.push(repository, "good"), engine.push(repository, "other"))
        for tag in ("good", "other"):
            engine.remove(f"{repository}:{tag}")
        found = Lab(folder=folder, registry=registry, engine=engine, manifests=manifests)
        try:
            yield found
        finally:
            found.forget()
            engine.close()


def test_a_moved_tag_is_reported_and_the_locked_image_is_built(lab: Lab) -> None:
    digest = lab.publish(0)
    code, _, err = lab.envforge("lock", NAME)
    assert code == 0, err
    assert f"python:{TAG}" in lab.locked() and digest in lab.locked(), "tag and digest"

    code, built, err = lab.envforge("build", NAME, "--engine", "docker", "--locked")
    assert code == 0, (built, err)
    assert built["base"]["reference"] == f"{lab.repository}:{TAG}@{digest}"
    labels = lab.engine.inspect(built["image"]).labels
    assert labels["org.opencontainers.image.base.digest"] == digest
    assert "envforge.base-substituted" not in labels

    code, same, err = lab.envforge("build", NAME, "--engine", "docker", "--locked")
    assert (code, same["reused"]) == (0, True), err

    moved = lab.publish(1)
    assert moved != digest
    code, _, err = lab.envforge("lock", NAME)
    assert code == 0 and moved[:19] in err and digest[:19] in err, err
    assert digest in lab.locked() and moved not in lab.locked()

    lab.forget()
    code, again, err = lab.envforge("build", NAME, "--engine", "docker", "--locked", "--no-cache")
    assert code == 0, (again, err)
    assert again["inputs_digest"] == built["inputs_digest"]
    assert (
        lab.engine.inspect(again["image"]).layers[:1] == lab.engine.inspect("envforge/base:bookworm-py3.11").layers[:1]
    )

    code, _, err = lab.envforge("lock", NAME, "--upgrade-all")
    assert code == 0 and moved in lab.locked(), err


def test_a_digest_of_one_platform_is_not_locked(lab: Lab) -> None:
    """Registries drop such a manifest when the tag moves, and it is another image on another platform."""
    lab.engine.tag("envforge/base:bookworm-py3.11", lab.repository, TAG)
    digest = lab.engine.push(lab.repository, TAG)
    code, _, err = lab.envforge("lock", NAME)
    assert code == 0, err
    assert digest not in lab.locked() and "one platform" in lab.locked()
