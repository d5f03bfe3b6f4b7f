"""Runs the cells of a matrix: here in parallel, or on Dask workers. Results survive a kill and are reused.

Every cell is one process (``envforge build`` or ``envforge smoke``) with its own log. A result is a file written by
rename after the cell has ended; a run that was killed finds the finished ones and runs the rest. A result is used
again when its key is unchanged: inputs digest, digest of the smoke tests, engine, driver and GPU class.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envforge import paths, process, spec_text
from envforge.console import Console
from envforge.errors import EngineError, LockError
from envforge.matrix import Build, Cell, Plan, TestRow

RESULT_SCHEMA = 1
PARENT_VARIABLE = "ENVFORGE_PARENT"  # a cell ends itself when this process is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """How to run. ``jobs`` 0: as many as cores and memory allow; ``scheduler``: address of a Dask scheduler."""

    jobs: int = 0
    fail_fast: bool = False
    fresh: bool = False  # ignore earlier results
    scheduler: str | None = None
    timeout: float = 3600.0  # seconds for one cell
    keep: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """Everything a worker needs for one cell, on this machine or another: plain data, no local paths."""

    cell: str
    build: str
    name: str  # the spec's name; also its lock's
    spec: str  # YAML, or the catalogue name when the spec is a catalogue entry
    catalogue: bool
    locks: Mapping[str, bytes]
    engine: str
    gpus: str
    level: int
    timeout: float
    resources: Mapping[str, float] = field(default_factory=dict)
    registry: str | None = None


def state_folder(name: str) -> Path:
    """Where a matrix keeps its results and logs."""
    return paths.home() / "matrix" / name


def safe(identifier: str) -> str:
    """A file name for a cell id."""
    return (
        re.sub(r"[^A-Za-z0-9._-]", "_", identifier)
        + "-"
        + hashlib.sha256(identifier.encode()).hexdigest()[:8]
    )


def suite_digest() -> str:
    """Digest of the smoke tests: a changed test means that nothing is proven any more."""
    from envforge.resources import shipped

    folder = shipped("smoke_tests")
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def result_key(build: Build, row: TestRow, level: int, suite: str) -> str:
    """What a result depends on; equal keys mean an equal experiment."""
    parts = (build.digest or build.id, suite, row.engine, row.driver, row.gpu, row.gpus, row.level or level)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Results:
    """One file per cell, written whole; and one history file per run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: str) -> Path:
        return self.folder / "cells" / f"{safe(cell)}.json"

    def log(self, cell: str) -> Path:
        return self.folder / "logs" / f"{safe(cell)}.log"

    def read(self, cell: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self.path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("schema") == RESULT_SCHEMA else None

    def write(self, cell: str, result: Mapping[str, Any]) -> None:
        text = json.dumps({"schema": RESULT_SCHEMA, **result}, indent=1, ensure_ascii=False)
        paths.write_atomic(self.path(cell), text.encode())

    def reusable(self, cell: str, key: str) -> dict[str, Any] | None:
        """The passed result of this cell when its key is unchanged."""
        found = self.read(cell)
        return found if found and found.get("key") == key and found.get("status") == "passed" else None

    def remember(self, document: Mapping[str, Any]) -> Path:
        """Keep a finished run for the report's history."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = self.folder / "runs" / f"{stamp}-{os.getpid()}.json"
        paths.write_atomic(path, json.dumps(document, ensure_ascii=False).encode())
        return path

    def history(self) -> list[dict[str, Any]]:
        """Earlier runs, oldest first."""
        found = []
        for path in sorted((self.folder / "runs").glob("*.json")):
            try:
                found.append(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                continue
        return found


# -- one cell -------------------------------------------------------------------------------------------------------


def execute(payload: Payload, log: Path | None = None) -> dict[str, Any]:
    """Run one cell in a process of its own and return its result; called here or on a worker.

    Never raises for a failing cell: status is passed, failed, error or unavailable, with the reason.
    """
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="envforge-cell-") as name:
        folder = Path(name)
        target = payload.name
        if not payload.catalogue:
            (folder / "envs").mkdir()
            (folder / "envs" / f"{payload.name}.yaml").write_text(payload.spec, encoding="utf-8")
        for relative, content in payload.locks.items():
            path = folder / "lockfiles" / payload.name / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        argv = [sys.executable, "-m", "envforge", "build", target, "--engine", payload.engine]
        argv += ["--gpus", payload.gpus, "--level", str(payload.level), "--json", "-v"]
        outcome = _cell_process(argv, folder, payload.timeout, log)
    return _result(payload, outcome, started)


def _cell_process(argv: Sequence[str], folder: Path, timeout: float, log: Path | None) -> process.Outcome:
    root = Path(__file__).resolve().parents[1]
    env = dict(os.environ)
    env[PARENT_VARIABLE] = str(os.getpid())
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH", "")]))
    outcome = process.run(argv, env=env, cwd=folder, timeout=timeout)
    if log is not None:
        paths.write_atomic(log, outcome.stderr.encode())
    return outcome


_STATUS = {0: "passed", 4: "removed", 6: "unavailable", 8: "failed"}


def _result(payload: Payload, outcome: process.Outcome, started: float) -> dict[str, Any]:
    try:
        document = json.loads(outcome.stdout)
    except ValueError:
        document = {}
    status = _STATUS.get(outcome.code, "error")
    reason = ""
    if outcome.timed_out:
        status, reason = "error", f"no end after {payload.timeout:.0f} s"
    elif "error" in document:
        error = document["error"]
        reason = f"{error['reference']}: {error['message']}"
    elif status == "failed":
        bad = [c for c in document.get("checks", ()) if c["outcome"] in ("failed", "error")]
        reason = "; ".join(f"{c['name']}: {c['detail']}" for c in bad[:3])
    elif status == "error":
        reason = " ".join(outcome.stderr.splitlines()[-1:]) or f"exit code {outcome.code}"
    elif status == "passed" and document.get("status") != "passed":
        status, reason = "error", "the build did not say that it passed"
    return {
        "cell": payload.cell,
        "status": status,
        "reason": reason[:2000],
        "exit_code": outcome.code,
        "seconds": round(time.time() - started, 2),
        "started": started,
        "inputs_digest": document.get("inputs_digest"),
        "image": document.get("tag") or document.get("image"),
        "size_bytes": document.get("size_bytes"),
        "build_seconds": document.get("seconds"),
        "checks": document.get("checks", []),
        "image_reused": document.get("reused", False),
        "log_tail": outcome.stderr.splitlines()[-40:],
    }


class PlacingExecutor(Executor):
    """An executor whose workers differ: it knows which cells nobody can take. ``grace``: seconds before giving up."""

    grace: float = 20.0

    def capacity(self) -> int:
        """Cells to hand over at once."""
        raise NotImplementedError

    def missing(self, payload: Payload) -> str:
        """Why no worker can take this cell now; empty when one can."""
        raise NotImplementedError

    def abandon(self, future: Future[Any]) -> None:
        """Take a cell back that nobody has started."""
        raise NotImplementedError


# -- the run --------------------------------------------------------------------------------------------------------


def payload_of(
    build: Build, row: TestRow, cell: Cell, level: int, timeout: float, locks: Mapping[str, bytes] | None = None
) -> Payload:
    """What is sent to the worker for a cell. ``locks``: instead of the project's lock."""
    from envforge import lock as lockfile
    from envforge.resources import catalog

    assert build.spec is not None
    spec = build.spec
    in_catalogue = spec.path is not None and spec.path.parent == catalog()
    if locks is None:
        try:
            folder = lockfile.find(spec.full_name)
            locks = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        except LockError:  # never locked: the cell makes the lock
            locks = {}
    resources: dict[str, float] = {}
    if row.engine != "auto":
        resources[f"engine-{row.engine}"] = 1
    if row.gpu:
        resources[f"gpu-{re.sub('[^a-z0-9]', '', row.gpu.lower())}"] = 1
    if row.driver:
        resources[f"driver-{row.driver.split('.')[0]}"] = 1
    return Payload(
        cell=cell.id,
        build=build.id,
        name=spec.full_name,
        spec="" if in_catalogue else spec_text.dumps(spec),
        catalogue=in_catalogue,
        locks=locks,
        engine=row.engine,
        gpus=row.gpus,
        level=row.level or level,
        timeout=timeout,
        resources=resources,
    )


def default_jobs() -> int:
    """Cells at once: one per core, at most one per 3 GiB of memory that is available."""
    cores = os.cpu_count() or 1
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        available = int(re.search(r"MemAvailable:\s+(\d+)", text)[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        available = 8 << 30
    return max(1, min(cores, available // (3 << 30)))


class _Progress:
    """A live table on a terminal, one line per finished cell elsewhere."""

    def __init__(self, total: int, console: Console) -> None:
        self.total, self.console, self.done = total, console, 0
        self.started = time.monotonic()
        self.counts: dict[str, int] = {}

    def finished(self, cell: str, status: str, seconds: float, reason: str) -> None:
        self.done += 1
        self.counts[status] = self.counts.get(status, 0) + 1
        passed = time.monotonic() - self.started
        left = passed / self.done * (self.total - self.done)
        tail = f"  {reason[:120]}" if reason else ""
        self.console.note(
            f"[{self.done}/{self.total}] {status:<11} {cell}  {seconds:.0f} s{tail}  (about {left:.0f} s left)"
        )


def run(
    plan: Plan,
    options: RunOptions,
    *,
    console: Console,
    executor: Executor | None = None,
    unlockable: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run every planned cell that has no reusable result; returns the document of `matrix run`.

    With ``fail_fast`` cells not yet started after the first failure are ``not_run``. ``executor`` replaces the
    threads of this process (tests, Dask). ``unlockable``: builds that have no lock, with the reason.
    """
    results = Results(state_folder(plan.name))
    suite = suite_digest()
    builds = {build.id: build for build in plan.builds}
    rows: dict[str, dict[str, Any]] = {}
    todo: list[tuple[Cell, str]] = []
    for cell in plan.cells:
        if cell.status != "planned":
            rows[cell.id] = {"status": cell.status, "reason": cell.reason}
            continue
        if unlockable and cell.build in unlockable:
            rows[cell.id] = {"status": "error", "reason": unlockable[cell.build]}
            continue
        key = result_key(builds[cell.build], plan.tests[cell.test], plan.level, suite)
        old = None if options.fresh else results.reusable(cell.id, key)
        if old is not None:
            rows[cell.id] = old | {"reused": True}
        else:
            todo.append((cell, key))
    reused = sum(1 for row in rows.values() if row.get("reused"))
    if reused:
        console.note(
            f"{reused} cells reused: same inputs, tests, engine, driver and GPU class as when they passed"
        )
    if todo:
        reap(console)
        _run_cells(todo, plan, builds, options, results, rows, console, executor)
    document = run_document(plan, rows)
    results.remember(document)
    return document


def _run_cells(
    todo: list[tuple[Cell, str]],
    plan: Plan,
    builds: Mapping[str, Build],
    options: RunOptions,
    results: Results,
    rows: dict[str, dict[str, Any]],
    console: Console,
    executor: Executor | None,
) -> None:
    progress = _Progress(len(todo), console)
    waiting = list(todo)
    running: dict[Future[dict[str, Any]], tuple[Cell, str]] = {}
    placing = _Placing(executor) if isinstance(executor, PlacingExecutor) else None
    busy: set[str] = set()  # a build is made once; its other cells wait for it
    jobs = options.jobs or (placing.executor.capacity() if placing else default_jobs())
    stop = False
    own = executor is None
    pool = executor if executor is not None else ThreadPoolExecutor(jobs)
    try:
        while waiting or running:
            if not stop:
                for cell, key in list(waiting):
                    if len(running) >= jobs:
                        break
                    if cell.build in busy:
                        continue
                    payload = payload_of(
                        builds[cell.build], plan.tests[cell.test], cell, plan.level, options.timeout
                    )
                    future = pool.submit(execute, payload, results.log(cell.id))
                    running[future] = (cell, key)
                    if placing:
                        placing.watch(future, payload)
                    busy.add(cell.build)
                    waiting.remove((cell, key))
            if not running:
                break
            finished = wait(running, timeout=1.0 if placing else None, return_when=FIRST_COMPLETED).done
            nowhere = placing.nowhere(finished) if placing else {}
            for future in (*finished, *nowhere):
                cell, key = running.pop(future)
                busy.discard(cell.build)
                found = _unavailable(cell, nowhere[future]) if future in nowhere else _outcome(future, cell)
                result = found | {"key": key}
                results.write(cell.id, result)
                rows[cell.id] = result
                progress.finished(cell.id, result["status"], result["seconds"], result["reason"])
                stop = stop or (
                    options.fail_fast and result["status"] in ("failed", "error") and not cell.allow_failure
                )
    finally:
        if own:
            pool.shutdown(wait=True, cancel_futures=True)
    for cell, _ in waiting:
        rows[cell.id] = {"status": "not_run", "reason": "an earlier cell failed (--fail-fast)"}


class _Placing:
    """Which handed-over cells have had no worker that could take them for longer than the executor's grace."""

    def __init__(self, executor: PlacingExecutor) -> None:
        self.executor = executor
        self._payloads: dict[Future[dict[str, Any]], Payload] = {}
        self._since: dict[Future[dict[str, Any]], float] = {}

    def watch(self, future: Future[dict[str, Any]], payload: Payload) -> None:
        self._payloads[future] = payload

    def nowhere(self, finished: set[Future[dict[str, Any]]]) -> dict[Future[dict[str, Any]], str]:
        """Cells to give up, with what is missing; they are taken back from the executor."""
        for future in finished:
            self._payloads.pop(future, None)
            self._since.pop(future, None)
        found = {}
        now = time.monotonic()
        for future, payload in list(self._payloads.items()):
            reason = self.executor.missing(payload)
            if not reason:
                self._since.pop(future, None)
            elif now - self._since.setdefault(future, now) >= self.executor.grace:
                found[future] = reason
                del self._payloads[future]
                self.executor.abandon(future)
        return found


def _unavailable(cell: Cell, reason: str) -> dict[str, Any]:
    return {
        "cell": cell.id,
        "status": "unavailable",
        "reason": reason,
        "seconds": 0.0,
        "checks": [],
        "log_tail": [],
    }


def _outcome(future: Future[dict[str, Any]], cell: Cell) -> dict[str, Any]:
    """The result of a cell; a worker that broke is an ``error`` of its cell, not of the run."""
    try:
        return future.result()
    except Exception as error:
        reason = f"the cell could not be run: {type(error).__name__}: {error}"
        return {
            "cell": cell.id,
            "status": "error",
            "reason": reason,
            "seconds": 0.0,
            "checks": [],
            "log_tail": [],
        }


def run_document(plan: Plan, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON of `matrix run`: every cell of the plan, whatever became of it."""
    counts: dict[str, int] = {}
    cells = []
    coordinates = {build.id: dict(build.coordinates) for build in plan.builds}
    for cell in plan.cells:
        row = rows.get(cell.id, {"status": "not_run", "reason": "the run ended before this cell"})
        status = str(row["status"])
        counts[status] = counts.get(status, 0) + 1
        cells.append(
            {
                "id": cell.id,
                "build": cell.build,
                "test": cell.test,
                **coordinates.get(cell.build, {}),
                "required": cell.required,
                "allow_failure": cell.allow_failure,
                "reused": bool(row.get("reused")),
                **{k: v for k, v in row.items() if k not in ("schema", "cell", "key", "reused")},
            }
        )
    return {
        "schema": 1,
        "name": plan.name,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tests": {
            name: {"engine": row.engine, "driver": row.driver, "gpu": row.gpu, "gpus": row.gpus}
            for name, row in plan.tests.items()
        },
        "cells": cells,
        "counts": counts,
    }


def bad(document: Mapping[str, Any]) -> list[str]:
    """Ids of cells that make the run fail: failed or error without allow-failure, or required and not passed."""
    found = []
    for cell in document["cells"]:
        broken = cell["status"] in ("failed", "error") and not cell["allow_failure"]
        missing = cell["required"] and cell["status"] != "passed"
        if broken or missing:
            found.append(cell["id"])
    return found


# -- after a kill ---------------------------------------------------------------------------------------------------


def reap(console: Console) -> None:
    """Remove containers whose envforge process is gone (a killed run); says how many."""
    from envforge.docker_engine import DockerEngine

    try:
        engine = DockerEngine.connect()
    except EngineError:
        return
    stray = engine.stray_containers()
    for container in stray:
        engine.remove_container(container)
    if stray:
        console.note(f"removed {len(stray)} containers that a killed run had left")


def watch_parent(interval: float = 0.5) -> None:
    """In a cell's process: end like Ctrl-C when the run that started it is gone. Does nothing elsewhere."""
    parent = os.environ.get(PARENT_VARIABLE)
    if not parent or not parent.isdigit():
        return

    def watch() -> None:
        import _thread

        while True:
            time.sleep(interval)
            if os.getppid() != int(parent):
                _thread.interrupt_main()
                return

    threading.Thread(target=watch, daemon=True, name="envforge-parent-watch").start()
