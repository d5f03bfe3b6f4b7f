"""Running cells: reuse, fail-fast, broken workers, and a run that is killed at a random moment."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from envforge import matrix_run
from envforge.console import Console
from envforge.matrix import Build, Cell, Plan, TestRow
from envforge.matrix_run import Payload, RunOptions
from envforge.spec import EnvSpec, PackagesSpec

ROOT = Path(__file__).resolve().parents[2]


def plan_of(*names: str, rows: tuple[str, ...] = ("cpu",), digest: str = "d1") -> Plan:
    builds = tuple(
        Build(
            id=name,
            spec=EnvSpec(name=name, packages=PackagesSpec(pip=("six",))),
            coordinates={"framework": name, "cuda": "cpu", "python": "3.11"},
            status="planned",
            digest=f"{name}-{digest}",
        )
        for name in names
    )
    cells = tuple(Cell(f"{name}/{row}", name, row, "planned") for name in names for row in rows)
    return Plan(name="t", builds=builds, cells=cells, tests={row: TestRow(name=row) for row in rows}, level=4)


class Direct(Executor):
    """Runs at once and remembers what it ran."""

    def __init__(self, answer: Callable[[Payload], dict[str, Any]]) -> None:
        self.answer = answer
        self.ran: list[str] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        payload: Payload = args[0]
        self.ran.append(payload.cell)
        future: Future[Any] = Future()
        try:
            future.set_result(self.answer(payload))
        except Exception as error:
            future.set_exception(error)
        return future


def passed(payload: Payload) -> dict[str, Any]:
    return {"cell": payload.cell, "status": "passed", "reason": "", "seconds": 0.1, "checks": []}


@pytest.fixture
def console() -> Console:
    return Console(verbosity=-1, stdout=io.StringIO(), stderr=io.StringIO())


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_run, "reap", lambda console: None)


def test_every_planned_cell_runs_once_and_is_reused(console: Console) -> None:
    plan = plan_of("a", "b", rows=("cpu", "gpu"))
    first = Direct(passed)
    document = matrix_run.run(plan, RunOptions(), console=console, executor=first)
    assert sorted(first.ran) == ["a/cpu", "a/gpu", "b/cpu", "b/gpu"]
    assert document["counts"] == {"passed": 4}
    second = Direct(passed)
    document = matrix_run.run(plan, RunOptions(), console=console, executor=second)
    assert second.ran == []
    assert all(cell["reused"] for cell in document["cells"])


def test_only_changed_inputs_run_again(console: Console) -> None:
    matrix_run.run(plan_of("a", "b"), RunOptions(), console=console, executor=Direct(passed))
    again = plan_of("a", "b")
    changed = Plan(
        name="t",
        builds=(again.builds[0], plan_of("b", digest="d2").builds[0]),
        cells=again.cells,
        tests=again.tests,
        level=4,
    )
    executor = Direct(passed)
    matrix_run.run(changed, RunOptions(), console=console, executor=executor)
    assert executor.ran == ["b/cpu"]


def test_a_failed_cell_is_not_reused(console: Console) -> None:
    bad = Direct(lambda p: passed(p) | {"status": "failed", "reason": "numerics.matmul"})
    document = matrix_run.run(plan_of("a"), RunOptions(), console=console, executor=bad)
    assert matrix_run.bad(document) == ["a/cpu"]
    executor = Direct(passed)
    matrix_run.run(plan_of("a"), RunOptions(), console=console, executor=executor)
    assert executor.ran == ["a/cpu"]


def test_changed_smoke_tests_run_everything_again(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix_run.run(plan_of("a"), RunOptions(), console=console, executor=Direct(passed))
    monkeypatch.setattr(matrix_run, "suite_digest", lambda: "another suite")
    executor = Direct(passed)
    matrix_run.run(plan_of("a"), RunOptions(), console=console, executor=executor)
    assert executor.ran == ["a/cpu"]


def test_fail_fast_leaves_the_rest_not_run(console: Console) -> None:
    failing = Direct(lambda p: passed(p) | {"status": "failed", "reason": "x"})
    document = matrix_run.run(
        plan_of("a", "b", "c"), RunOptions(fail_fast=True, jobs=1), console=console, executor=failing
    )
    assert [cell["status"] for cell in document["cells"]] == ["failed", "not_run", "not_run"]


def test_a_broken_worker_is_an_error_of_its_cell_only(console: Console) -> None:
    def answer(payload: Payload) -> dict[str, Any]:
        if payload.cell == "a/cpu":
            raise OSError("worker gone")
        return passed(payload)

    document = matrix_run.run(plan_of("a", "b"), RunOptions(), console=console, executor=Direct(answer))
    rows = {cell["id"]: cell for cell in document["cells"]}
    assert rows["a/cpu"]["status"] == "error"
    assert "worker gone" in rows["a/cpu"]["reason"]
    assert rows["b/cpu"]["status"] == "passed"


def test_allow_failure_and_require_decide_the_exit() -> None:
    cells = [
        {"id": "1", "status": "failed", "allow_failure": True, "required": False},
        {"id": "2", "status": "unavailable", "allow_failure": False, "required": True},
        {"id": "3", "status": "unavailable", "allow_failure": False, "required": False},
        {"id": "4", "status": "error", "allow_failure": False, "required": False},
    ]
    assert matrix_run.bad({"cells": cells}) == ["2", "4"]


def test_a_cell_runs_the_build_command_in_its_own_process(tmp_path: Path) -> None:
    payload = Payload(
        cell="x/cpu",
        build="x",
        name="x",
        spec="schema: 1\nname: x\nbogus: 1\n",
        catalogue=False,
        locks={},
        engine="local",
        gpus="none",
        level=0,
        timeout=60,
    )
    result = matrix_run.execute(payload, tmp_path / "log")
    assert result["status"] == "error"
    assert result["exit_code"] == 3
    assert result["reason"].startswith("spec-invalid")
    assert (tmp_path / "log").read_text(encoding="utf-8").strip()


DRIVER = """
import json, os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from envforge import matrix_run
from envforge.console import Console
from envforge.matrix_run import RunOptions
from test_matrix_run import plan_of
log = Path({log!r})
def execute(payload, path=None):
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.03)"])
    with log.open("a") as stream:
        stream.write(payload.cell + "\\n")
    return {{"cell": payload.cell, "status": "passed", "reason": "", "seconds": 0.0, "checks": []}}
matrix_run.execute = execute
matrix_run.reap = lambda console: None
document = matrix_run.run(plan_of(*[f"e{{n}}" for n in range(12)]), RunOptions(jobs=2), console=Console(verbosity=-1))
Path({done!r}).write_text(json.dumps(document))
"""


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    """kill -9 at random moments: finished cells stay finished, none is reported twice, the last run completes."""
    log, done = tmp_path / "ran", tmp_path / "done.json"
    code = DRIVER.format(tests=str(Path(__file__).parent), log=str(log), done=str(done))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(tmp_path / "home")}
    chance = random.Random(7)
    results = matrix_run.Results(tmp_path / "home" / "matrix" / "t")
    kept: set[str] = set()
    for _ in range(20):
        child = subprocess.Popen([sys.executable, "-c", code], env=env, start_new_session=True)
        time.sleep(chance.uniform(0.15, 0.6))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        finished = {path.name for path in results.path("x").parent.glob("*.json")}
        assert kept <= finished
        kept = finished
        for path in results.path("x").parent.glob("*.json"):
            assert json.loads(path.read_text(encoding="utf-8"))["status"] == "passed"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    document = json.loads(done.read_text(encoding="utf-8"))
    assert document["counts"] == {"passed": 12}
    # A cell whose process ended just before the kill may run again; one with a stored result never does.
    assert len({cell["id"] for cell in document["cells"]}) == 12
