"""The ladder in real containers: isolation holds, and images broken on purpose fail with the right cause."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from smoke_kit import copy_suite, fake_plan, outcome

from envforge import smoke
from envforge.console import Console
from envforge.engine import ImageInfo, RunRequest, RunResult

pytestmark = [pytest.mark.docker, pytest.mark.network]

SOUND = """
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-numpy && \\
    ln -sf python3 /usr/bin/python && install -d -o 1000 -g 1000 /work
USER 1000:1000
"""
BROKEN = """
FROM {sound}
USER 0
RUN install -d /usr/local/cuda-12.4/lib64/stubs /usr/local/cuda-11.8/lib64 && \\
    touch /usr/local/cuda-12.4/lib64/stubs/libcuda.so && \\
    echo a > /usr/local/cuda-12.4/lib64/libcublas.so.12 && echo b > /usr/local/cuda-11.8/lib64/libcublas.so.11 && \\
    chown 0:0 /work
USER 1000:1000
ENV LD_LIBRARY_PATH=/usr/local/cuda-12.4/lib64/stubs
"""


def build(client: Any, text: str) -> str:
    import io

    tag = f"envforge-test-smoke:{uuid.uuid4().hex[:8]}"
    client.images.build(fileobj=io.BytesIO(text.encode()), tag=tag, rm=True, forcerm=True)
    return tag


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, str]]:
    import subprocess

    import docker

    done = subprocess.run([sys.executable, "-m", "envforge", "base", "bootstrap", "--python", "3.11"])
    assert done.returncode == 0
    client = docker.from_env(timeout=300)
    made: list[str] = []
    try:
        made.append(build(client, SOUND.format(base="envforge/base:bookworm-py3.11")))
        made.append(build(client, BROKEN.format(sound=made[0])))
        yield {"sound": made[0], "broken": made[1]}
    finally:
        for tag in reversed(made):
            client.images.remove(tag, force=True)
        client.close()


class Engine:
    """The Docker engine, with a memory limit where a test asks for one."""

    name = "docker"

    def __init__(self, memory_bytes: int | None = None) -> None:
        from envforge.docker_engine import DockerEngine

        self.real, self.memory_bytes = DockerEngine.connect(), memory_bytes

    def inspect(self, image: str) -> ImageInfo:
        return self.real.inspect(image)

    def run(self, image: str, request: RunRequest) -> RunResult:
        return self.real.run(image, replace(request, memory_bytes=self.memory_bytes))


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_suite(tmp_path)
    files = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.setattr(smoke, "suite", lambda: dict(files))


def with_structure(plan: smoke.SmokePlan, **more: Any) -> smoke.SmokePlan:
    checks = [smoke.PlannedCheck(name=name, framework="", level=0) for name in smoke.known_checks()["image"]]
    return replace(plan, checks=(*checks, *plan.checks), **more)


def climb(image: str, plan: smoke.SmokePlan, memory_bytes: int | None = None) -> smoke.SmokeReport:
    return smoke.run_in_engine(Engine(memory_bytes), image, plan, console=Console(verbosity=-1))  # type: ignore[arg-type]


@pytest.mark.usefixtures("suite")
def test_a_sound_image_passes_without_network_on_a_read_only_root(images: dict[str, str]) -> None:
    plan = with_structure(fake_plan(), user={"uid": 1000, "writable": ["/work", "$TMPDIR"]}, files=("/work",))
    report = climb(images["sound"], plan)
    assert report.status == "passed", json.dumps(report.document(), indent=1)
    assert "/work writable by its mode (read-only test run)" in outcome(report, "structure.user").detail


@pytest.mark.usefixtures("suite")
def test_a_broken_image_fails_with_every_cause_named(images: dict[str, str]) -> None:
    plan = with_structure(fake_plan(level=1), user={"uid": 1000, "writable": ["/work"]})
    report = climb(images["broken"], plan)
    causes = {check.name: check.cause for check in report.checks if check.outcome == "failed"}
    assert causes == {
        "structure.user": "ownership",
        "structure.cuda_libraries": "second-cuda-library",
        "structure.stub_driver": "stub-driver",
    }
    assert "/usr/local/cuda-11.8/lib64/libcublas.so.11" in outcome(report, "structure.cuda_libraries").detail
    assert not smoke.earns_tag(report)


@pytest.mark.usefixtures("suite")
def test_a_check_that_eats_all_memory_fails_and_the_next_still_runs(images: dict[str, str]) -> None:
    report = climb(images["sound"], fake_plan({"matmul": "eat"}, level=3), memory_bytes=400 << 20)
    killed = outcome(report, "numerics.matmul")
    assert (killed.outcome, killed.cause) == ("failed", "out-of-memory")
    assert outcome(report, "training.mlp").outcome == "passed"
