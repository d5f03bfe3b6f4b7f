"""Cells on Dask workers: placement by resources, a worker that dies, a cell that nobody can take."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envforge import matrix_cluster, matrix_run
from envforge.console import Console
from envforge.errors import EngineError, SpecError
from envforge.matrix import Build, Cell, ClusterSpec, Plan, TestRow
from envforge.matrix_run import Payload, RunOptions
from envforge.spec import EnvSpec, PackagesSpec

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.network

OFFERS = ("engine-local=1", "engine-docker=1", "engine-docker=1,driver-535=1")


class Lab:
    """A scheduler and its workers, each a process with its own working folder; no disk is shared by design."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = (folder / "scheduler.json").as_posix()
        self.children: list[subprocess.Popen[bytes]] = []
        env = {**os.environ, "PYTHONPATH": str(ROOT), "MARKS": str(folder)}
        self.env = env
        self._start("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", self.address)
        self.workers = {
            offer: self._start(
                "worker", "--scheduler-file", self.address, "--resources", offer, "--no-dashboard", "--no-nanny",
                "--nthreads", "1", "--local-directory", str(folder / f"w{n}"), "--name", offer,
            )
            for n, offer in enumerate(OFFERS)
        }  # fmt: skip

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{words[0]}-{len(self.children)}.log").open("wb")
        child = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]],
            env=self.env,
            cwd=self.folder,
            stdout=log,
            stderr=log,
        )
        self.children.append(child)
        return child

    def tcp(self) -> str:
        import json

        limit = time.monotonic() + 90
        while time.monotonic() < limit:
            try:
                return str(json.loads(Path(self.address).read_text(encoding="utf-8"))["address"])
            except (OSError, ValueError):
                time.sleep(0.2)
        raise AssertionError("the scheduler did not start")

    def stop(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def executor(lab: Lab) -> Iterator[matrix_cluster.DaskExecutor]:
    made = matrix_cluster.DaskExecutor(lab.tcp(), timeout=60, grace=4)
    limit = time.monotonic() + 90
    while len(made.workers()) < len(OFFERS):
        assert time.monotonic() < limit, "the workers did not come"
        time.sleep(0.2)
    yield made
    made.shutdown()


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(matrix_run, "reap", lambda console: None)


def plan_of(rows: dict[str, TestRow], names: tuple[str, ...] = ("a",)) -> Plan:
    builds = tuple(
        Build(
            id=name,
            spec=EnvSpec(name=name, packages=PackagesSpec(pip=("six",))),
            coordinates={"framework": name, "cuda": "cpu", "python": "3.11"},
            status="planned",
            digest=name,
        )
        for name in names
    )
    cells = tuple(Cell(f"{name}/{row}", name, row, "planned") for name in names for row in rows)
    return Plan(name="dask", builds=builds, cells=cells, tests=rows, level=0)


def work(seconds: float) -> Callable[..., dict[str, Any]]:
    """A stand-in for a cell that says where it ran; by value, as a worker has no copy of this test."""

    def execute(payload: Payload, log: Path | None = None) -> dict[str, Any]:
        import pathlib

        from distributed import get_worker

        name = str(get_worker().name)
        mark = pathlib.Path(os.environ["MARKS"]) / f"started-{payload.cell.replace('/', '_')}-{os.getpid()}"
        mark.write_text(name, encoding="utf-8")
        time.sleep(seconds)
        return {
            "cell": payload.cell, "status": "passed", "reason": "", "seconds": seconds, "checks": [], "worker": name,
        }  # fmt: skip

    return execute


def console() -> Console:
    return Console(verbosity=-1, stdout=io.StringIO(), stderr=io.StringIO())


@pytest.fixture
def by_value() -> Iterator[None]:
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_cells_go_where_they_can_run_and_the_impossible_one_says_what_is_missing(
    executor: matrix_cluster.DaskExecutor, monkeypatch: pytest.MonkeyPatch, by_value: None
) -> None:
    monkeypatch.setattr(matrix_run, "execute", work(0.1))
    rows = {
        "local": TestRow(name="local", engine="local"),
        "docker": TestRow(name="docker", engine="docker"),
        "r535": TestRow(name="r535", engine="docker", driver="535.104.05"),
        "a100": TestRow(name="a100", engine="docker", gpu="A100"),
        "split": TestRow(name="split", engine="local", driver="535.104.05"),
    }
    started = time.monotonic()
    document = matrix_run.run(plan_of(rows), RunOptions(), console=console(), executor=executor)
    cells = {cell["test"]: cell for cell in document["cells"]}
    assert cells["local"]["worker"] == "engine-local=1"
    assert "engine-docker=1" in cells["docker"]["worker"]
    assert cells["r535"]["worker"] == "engine-docker=1,driver-535=1"
    assert cells["a100"]["status"] == "unavailable"
    assert "no worker offers gpu-a100" in cells["a100"]["reason"]
    assert cells["split"]["status"] == "unavailable"
    assert "no single worker offers engine-local, driver-535 together" in cells["split"]["reason"]
    assert time.monotonic() - started < 60


def test_the_cell_of_a_killed_worker_runs_elsewhere(
    lab: Lab,
    executor: matrix_cluster.DaskExecutor,
    monkeypatch: pytest.MonkeyPatch,
    by_value: None,
    tmp_path: Path,
) -> None:
    import threading

    monkeypatch.setattr(matrix_run, "execute", work(3.0))
    rows = {"docker": TestRow(name="docker", engine="docker")}
    killed: list[str] = []

    def kill_the_first() -> None:
        while not killed:
            for mark in tmp_path.glob("started-*"):
                name = mark.read_text(encoding="utf-8")
                if name:
                    os.kill(lab.workers[name].pid, signal.SIGKILL)
                    killed.append(name)
                    return
            time.sleep(0.05)

    thread = threading.Thread(target=kill_the_first)
    thread.start()
    document = matrix_run.run(
        plan_of(rows, ("a", "b", "c")), RunOptions(), console=console(), executor=executor
    )
    thread.join()
    assert document["counts"] == {"passed": 3}
    assert killed and all(cell["worker"] != killed[0] for cell in document["cells"])
    assert len(list(tmp_path.glob("started-*"))) == 4  # three cells, one of them begun twice


def test_when_the_only_fitting_worker_dies_its_cell_is_unavailable(
    lab: Lab, executor: matrix_cluster.DaskExecutor, monkeypatch: pytest.MonkeyPatch, by_value: None
) -> None:
    monkeypatch.setattr(matrix_run, "execute", work(0.1))
    lab.workers["engine-local=1"].kill()
    rows = {"local": TestRow(name="local", engine="local"), "docker": TestRow(name="docker", engine="docker")}
    document = matrix_run.run(plan_of(rows), RunOptions(), console=console(), executor=executor)
    cells = {cell["test"]: cell for cell in document["cells"]}
    assert cells["local"]["status"] == "unavailable"
    assert "engine-local" in cells["local"]["reason"]
    assert cells["docker"]["status"] == "passed"


def test_a_worker_runs_the_real_build_command(executor: matrix_cluster.DaskExecutor) -> None:
    rows = {"local": TestRow(name="local", engine="local")}
    plan = plan_of(rows)
    wrong = EnvSpec(name="a", packages=PackagesSpec(pip=("six ===",)))
    build = Build(id="a", spec=wrong, coordinates=plan.builds[0].coordinates, status="planned", digest="a")
    plan = Plan(name="dask", builds=(build,), cells=plan.cells, tests=rows, level=0)
    document = matrix_run.run(plan, RunOptions(), console=console(), executor=executor)
    (cell,) = document["cells"]
    assert (cell["status"], cell["exit_code"]) == ("error", 3)
    assert cell["reason"].startswith("spec-invalid")


def test_no_scheduler_is_an_error_with_the_next_step() -> None:
    with pytest.raises(EngineError, match="no Dask scheduler answers") as caught:
        matrix_cluster.DaskExecutor("tcp://127.0.0.1:9", timeout=1)
    assert "dask scheduler" in caught.value.hint


@pytest.mark.parametrize(("kind", "head"), [("slurm", "#SBATCH"), ("pbs", "#PBS"), ("lsf", "#BSUB")])
def test_the_job_script_asks_for_what_the_matrix_file_says(kind: str, head: str) -> None:
    options = ClusterSpec(
        queue="gpu", account="lab7", cores=3, memory="5GB", walltime="00:30" if kind == "lsf" else "00:30:00",
        resources=("engine-docker=1", "driver-535=1"), prologue=("module load docker",), python="/opt/envforge/python",
    )  # fmt: skip
    import dask
    import dask_jobqueue

    maker = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster"}[kind]
    with dask.config.set({"jobqueue.lsf.use-stdin": True, "jobqueue.lsf.lsf-units": "mb"}):
        cluster = getattr(dask_jobqueue, maker)(**matrix_cluster.job_settings(kind, options))
    try:
        script = cluster.job_script()
    finally:
        cluster.close()
    assert head in script
    for wanted in ("gpu", "lab7", "00:30", "module load docker", "/opt/envforge/python"):
        assert wanted in script
    assert "--resources engine-docker=1,driver-535=1" in script
    assert "--nthreads 3" in script


def test_an_ssh_cluster_needs_hosts() -> None:
    with pytest.raises(SpecError, match="needs hosts"):
        matrix_cluster.open_cluster("ssh", ClusterSpec())
