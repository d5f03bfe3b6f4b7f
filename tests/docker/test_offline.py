"""`vendor`, then `build --offline` with the network cut off: for envforge itself and inside the build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.fixtures_index import Index
from tests.wheels import wheel

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.network]
NAME = "offline-case"
SPEC = """\
schema: 1
name: offline-case
python: "3.11"
base: {{image: "python:3.11-slim-bookworm"}}
packages: {{pip: ["six==1.17.0", "{package}"]}}
indexes:
  lab: {{url: "{url}", packages: ["{package}"]}}
"""


def envforge(project: Path, *words: str, cut: bool = False) -> tuple[int, dict[str, Any], str]:
    """With ``cut`` in a network namespace of its own, where not even loopback is up; the engine's socket is a file."""
    inside = [sys.executable, "-m", "envforge", *words, "--json"]
    done = subprocess.run(
        ["unshare", "--net", *inside] if cut else inside,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(project / "home")},
        capture_output=True,
        text=True,
        timeout=900,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


class Project:
    """A locked project and its bundle; the index it was locked from is gone afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Nobody has seen this package before, so no cache on this machine can supply it.
        self.package = f"unseen-{uuid.uuid4().hex[:10]}"
        (folder / "envs").mkdir(parents=True)
        with Index([wheel(self.package, "1.0", files={f"{self.module}.py": b"WORD = 'from the bundle'\n"})]) as index:
            spec = SPEC.format(package=self.package, url=index.url)
            (folder / "envs" / f"{NAME}.yaml").write_text(spec, encoding="utf-8")
            for words in (("lock", NAME), ("vendor", NAME, "-o", "bundle")):
                code, found, err = envforge(folder, *words)
                assert code == 0, (found, err)
        self.bundle = folder / "bundle"

    @property
    def module(self) -> str:
        return self.package.replace("-", "_")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, bookworm_base: str) -> Project:
    return Project(tmp_path_factory.mktemp("offline") / "project")


@pytest.fixture(autouse=True)
def no_image_stays() -> Iterator[None]:
    yield
    client = docker.from_env(timeout=120)
    for image in client.images.list(filters={"label": f"envforge.name={NAME}"}):
        client.images.remove(image.id, force=True)
    client.close()


def test_the_bundle_holds_the_installer_too(project: Project) -> None:
    names = [path.name for path in project.bundle.glob("*.whl")]
    assert sorted(name.partition("-")[0] for name in names) == sorted(["six", "uv", project.module])
    code, found, _ = envforge(project.folder, "vendor", NAME, "-o", "bundle", "--check", cut=True)
    assert (code, found["files"]) == (0, 3)


def test_docker_builds_from_the_bundle_alone(project: Project) -> None:
    words = ("build", NAME, "--engine", "docker", "--offline", "bundle", "--no-cache", "--reproducible")
    code, found, err = envforge(project.folder, *words, cut=True)
    assert code == 0, (found, err)
    assert found["status"] == "passed" and found["reproducible"]["level"] == "same bytes"
    client = docker.from_env(timeout=120)
    code_text = f"import six, {project.module} as m; print(six.__version__, m.WORD)"
    said = client.containers.run(found["tag"], ["python", "-c", code_text], network_mode="none", remove=True)
    assert said.decode().split("\n")[0] == "1.17.0 from the bundle"
    client.close()


def test_the_local_engine_installs_from_the_bundle_alone(project: Project) -> None:
    code, found, err = envforge(project.folder, "build", NAME, "--engine", "local", "--offline", "bundle", cut=True)
    assert code == 0, (found, err)
    assert found["status"] == "passed"
    python = Path(found["image"]) / "bin" / "python"
    said = subprocess.run(
        [python, "-c", f"import {project.module} as m; print(m.WORD)"], capture_output=True, text=True
    )
    assert said.stdout == "from the bundle\n"


@pytest.mark.parametrize("engine", ["docker", "local"])
def test_without_the_bundle_the_cut_is_felt(project: Project, engine: str) -> None:
    """The control: the same build without --offline cannot work, because the index of the lock is gone."""
    code, found, _ = envforge(project.folder, "build", NAME, "--engine", engine, "--no-cache", "--no-smoke", cut=True)
    assert code in (6, 7, 11), found
    assert found["error"]["reference"]


@pytest.mark.parametrize("damage", ["missing", "changed", "foreign"])
def test_a_bundle_that_does_not_fit_is_refused_before_the_build(project: Project, tmp_path: Path, damage: str) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(project.bundle, bundle)
    uv = next(bundle.glob("uv-*.whl"))
    if damage == "missing":
        uv.unlink()
    elif damage == "changed":
        uv.write_bytes(uv.read_bytes() + b"x")
    else:
        (bundle / "manifest.json").unlink()
    code, found, _ = envforge(
        project.folder, "build", NAME, "--engine", "docker", "--offline", str(bundle), "--no-cache", cut=True
    )
    assert code == 5
    wanted = {"missing": "uv-", "changed": "changed since", "foreign": "not a complete bundle"}[damage]
    assert wanted in json.dumps(found["error"])
