"""Cells on other machines: the workers of a Dask scheduler, started by hand, by a batch system or over SSH.

A worker advertises what it has as Dask resources (``engine-docker=1,driver-535=1,gpu-a100=1``); a cell goes where all
that it needs is offered. Workers need envforge installed and no shared disk: a cell carries its spec and lock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge import paths
from envforge.errors import EngineError, SpecError
from envforge.matrix_run import Payload, PlacingExecutor

if TYPE_CHECKING:
    from envforge.matrix import ClusterSpec


class DaskExecutor(PlacingExecutor):
    """Cells on the workers of a Dask scheduler; the cells of a lost worker are run elsewhere by the scheduler.

    ``grace``: seconds to wait for a worker that can take a cell before the cell is unavailable. Raises EngineError
    ``scheduler-unreachable`` and ``dask-missing``.
    """

    def __init__(self, address: str, *, timeout: float = 30.0, grace: float = 20.0) -> None:
        try:
            import distributed  # noqa: F401
        except ImportError as error:
            raise EngineError(
                "dask-missing",
                "Dask is not installed here",
                hint="python -m pip install distributed dask-jobqueue",
            ) from error
        self.grace = grace
        try:
            self._client: Any = _client(address, timeout=timeout, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineError(
                "scheduler-unreachable",
                f"no Dask scheduler answers at {address}: {error}",
                hint="start one with `dask scheduler`, and workers with `dask worker ADDRESS --resources …`",
            ) from error
        self._remote: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        payload: Payload = args[0]
        log: Path | None = args[1] if len(args) > 1 else None
        # `retries` counts errors of the function; a lost worker is counted by the scheduler on its own.
        remote = self._client.submit(fn, payload, resources=dict(payload.resources) or None, pure=False, retries=0)
        local: Future[Any] = Future()
        self._remote[local] = remote

        def done(finished: Any) -> None:
            if not local.set_running_or_notify_cancel():
                return
            try:
                result = finished.result()
            except BaseException as error:
                local.set_exception(error)
                return
            if log is not None:
                paths.write_atomic(log, "\n".join(result.get("log_tail", [])).encode())
            local.set_result(result)

        remote.add_done_callback(done)
        return local

    def workers(self) -> Mapping[str, Mapping[str, float]]:
        """Address -> advertised resources of every worker."""
        info = self._client.scheduler_info(n_workers=-1)["workers"]
        return {address: dict(worker.get("resources", {})) for address, worker in info.items()}

    def capacity(self) -> int:
        """Cells to hand over at once; the scheduler holds back what does not fit yet."""
        return max(4, 2 * len(self.workers()))

    def missing(self, payload: Payload) -> str:
        """Why no worker can take this cell now, in words; empty when one can."""
        wanted = payload.resources
        offers = self.workers()
        if any(all(offer.get(k, 0) >= v for k, v in wanted.items()) for offer in offers.values()):
            return ""
        if not offers:
            return "the scheduler has no worker"
        nobody = [name for name in wanted if not any(offer.get(name) for offer in offers.values())]
        shown = sorted({"+".join(sorted(offer)) or "nothing" for offer in offers.values()})
        have = f"{len(offers)} workers offer: {'; '.join(shown[:6])}"
        if nobody:
            return f"no worker offers {', '.join(nobody)} ({have})"
        return f"no single worker offers {', '.join(wanted)} together ({have})"

    def abandon(self, future: Future[Any]) -> None:
        remote = self._remote.pop(future, None)
        future.cancel()
        if remote is not None:
            remote.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._client.close()


def job_settings(kind: str, options: ClusterSpec) -> dict[str, Any]:
    """The keyword arguments for dask-jobqueue's cluster class of this batch system."""
    found: dict[str, Any] = {
        "cores": options.cores,
        "processes": 1,
        "memory": options.memory,
        "walltime": options.walltime,
        "python": options.python or sys.executable,
        "job_name": "envforge-worker",
        "job_extra_directives": list(options.directives),
        "job_script_prologue": list(options.prologue),
        "worker_extra_args": ["--resources", ",".join(options.resources)] if options.resources else [],
    }
    if options.queue:
        found["queue"] = options.queue
    if options.interface:
        found["interface"] = options.interface
    if options.account:
        found["project" if kind == "lsf" else "account"] = options.account
    if kind == "lsf":
        found["ncpus"] = options.cores
    return found


def open_cluster(kind: str, options: ClusterSpec) -> Any:
    """A running Dask cluster whose workers are jobs of a batch system, or processes on hosts reached by SSH.

    Close it when done. Raises SpecError ``cluster-hosts`` and EngineError ``dask-missing`` or ``cluster-failed``.
    """
    try:
        import dask_jobqueue
        import distributed
    except ImportError as error:
        raise EngineError(
            "dask-missing", f"this needs {error.name}", hint="python -m pip install distributed dask-jobqueue"
        ) from error
    try:
        if kind == "ssh":
            if not options.hosts:
                raise SpecError(
                    "cluster-hosts",
                    "an SSH cluster needs hosts",
                    hint="give `cluster: {hosts: [gpu1, gpu2]}`",
                )
            settings = {"nthreads": options.cores}
            if options.resources:
                settings["resources"] = resource_numbers(options.resources)  # type: ignore[assignment]
            return distributed.SSHCluster(
                ["localhost", *options.hosts],
                worker_options=settings,
                remote_python=options.python,
            )
        maker = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster"}[kind]
        cluster = getattr(dask_jobqueue, maker)(**job_settings(kind, options))
        cluster.scale(jobs=options.jobs)
        return cluster
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineError("cluster-failed", f"the {kind} cluster did not start: {error}") from error


def resource_numbers(entries: tuple[str, ...]) -> dict[str, float]:
    """``("engine-docker=1",)`` -> ``{"engine-docker": 1.0}``."""
    return {name: float(number or 1) for name, _, number in (entry.partition("=") for entry in entries)}


def _client(address: str, **settings: Any) -> Any:
    import distributed

    maker: Any = distributed.Client
    return maker(address, **settings)
