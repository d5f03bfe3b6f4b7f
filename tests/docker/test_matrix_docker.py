"""`matrix run` on a real engine: killed in mid-build, resumed, reused; an emitted job run as written; a refresh."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.network]

SPEC = """schema: 1
name: {name}
python: "3.11"
base: {{image: "envforge/base:bookworm-py3.11"}}
packages: {{pip: ["six"]}}
env: {{ENVFORGE_TEST: "{salt}-{name}"}}
smoke: {{level: 0}}
"""
MATRIX = """schema: 1
name: killed
level: 0
specs: [kill-a, kill-b]
tests: [{name: docker-cpu, engine: docker, gpus: none}]
"""


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "envs").mkdir()
        for name in ("kill-a", "kill-b"):
            text = SPEC.format(name=name, salt=time.time_ns())  # nothing of an earlier test is in the build cache
            (folder / "envs" / f"{name}.yaml").write_text(text, encoding="utf-8")
        (folder / "m.yaml").write_text(MATRIX, encoding="utf-8")
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(folder / "home")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "envforge", *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> tuple[int, dict[str, Any], str]:
        child = self.start(*words, "--json")
        out, err = child.communicate(timeout=500)
        return child.returncode, json.loads(out), err


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    found = docker.from_env(timeout=120)
    yield found
    found.close()


@pytest.fixture
def lab(tmp_path: Path, client: docker.DockerClient, bookworm_base: str) -> Iterator[Lab]:
    yield Lab(tmp_path)
    for image in client.images.list():
        if any(tag.startswith(("envforge/kill-a:", "envforge/kill-b:")) for tag in image.tags):
            client.images.remove(image.id, force=True)


def stored(lab: Lab) -> dict[str, float]:
    """Cells with a stored pass, and when it began."""
    found = {}
    for path in (lab.folder / "home" / "matrix" / "killed" / "cells").glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["status"] == "passed":
            found[result["cell"]] = result["started"]
    return found


def wait_for_cell(pid: int) -> None:
    """Until this run has started the process of a cell."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text(encoding="utf-8").split():
                command = Path(f"/proc/{child}/cmdline")
                if command.exists() and b"build\0kill-" in command.read_bytes():
                    return
        time.sleep(0.02)
    raise AssertionError("no cell was started")


@pytest.mark.timeout(600)
def test_killed_in_mid_build_resumes_and_leaves_nothing(lab: Lab, client: docker.DockerClient) -> None:
    before = {container.id for container in client.containers.list(all=True)}
    for name in ("kill-a", "kill-b"):
        assert lab.run("lock", f"envs/{name}.yaml")[0] == 0
    passed: dict[str, float] = {}
    for delay in (0.3, 0.9, 1.5):
        child = lab.start("matrix", "run", "m.yaml", "--jobs", "2")
        if len(passed) < 2:
            wait_for_cell(child.pid)
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        now = stored(lab)
        assert delay > 0.3 or not now  # the first kill hits builds under way
        assert passed.items() <= now.items()  # what had passed was not run again
        passed = now
    code, document, err = lab.run("matrix", "run", "m.yaml")
    assert code == 0, err
    assert document["counts"] == {"passed": 2}
    assert passed.items() <= stored(lab).items()
    ours = [
        container.id
        for container in client.containers.list(all=True)
        if container.id not in before
        and "kill-" in json.dumps([container.labels, container.image.labels, container.image.tags])
    ]
    assert ours == []
    started = time.monotonic()
    code, document, _ = lab.run("matrix", "run", "m.yaml")
    assert code == 0 and all(cell["reused"] for cell in document["cells"])
    assert time.monotonic() - started < 10  # 0.2 s when the machine is idle


@pytest.mark.timeout(600)
def test_the_command_of_an_emitted_job_runs_as_written(lab: Lab) -> None:
    code, document, err = lab.run("matrix", "emit", "gitlab", "m.yaml")
    assert code == 0, err
    job = yaml.safe_load(document["text"])["kill-a/docker-cpu"]
    (line,) = job["script"]
    words = shlex.split(line)
    assert words[0] == "envforge"
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=lab.folder, env=lab.env, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    report = (lab.folder / "report.xml").read_text(encoding="utf-8")
    assert "kill-a/docker-cpu" in report and "kill-b" not in report
