"""Joins the stages of a build: check, lock, render, build, smoke, record. The engine and the console are handed in."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from envforge import lock as lockfile
from envforge import paths, record
from envforge.console import Console
from envforge.engine import BuildOptions, Built, Engine, EngineInfo, GpuRequest
from envforge.errors import BudgetError, BuildError, ConflictError, EngineError, LockError
from envforge.lock import Lock
from envforge.plan import Form, Rendered, repository
from envforge.resolve import Resolution
from envforge.spec import EnvSpec

EngineChoice = Literal["auto", "docker", "local"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """What `build` was asked for, beside the spec."""

    engine: EngineChoice = "auto"
    gpus: GpuRequest = GpuRequest(kind="auto")
    locked: bool = False
    smoke: bool = True
    level: int | None = None  # None: the spec's own
    offline: Path | None = None
    ca_bundle: Path | None = None
    no_cache: bool = False
    reproducible: bool = False
    timeout: float | None = None


@dataclass(slots=True)
class _Clock:
    """Seconds per stage, for the record."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - start, 3)


def choose_engine(choice: EngineChoice, console: Console) -> Engine:
    """The engine to use; with ``auto`` Docker when one answers, else the local one, said in one line.

    Raises EngineError when Docker was asked for and does not answer.
    """
    from envforge import config
    from envforge.local_engine import LocalEngine

    if choice == "auto":
        choice = config.load().engine
    if choice == "local":
        console.note("engine: local (asked for)")
        return LocalEngine()
    from envforge.docker_engine import DockerEngine

    try:
        engine = DockerEngine.connect()
    except EngineError as error:
        if choice == "docker":
            raise
        console.note(f"engine: local, because no Docker engine answers ({error.message})")
        return LocalEngine()
    info = engine.info()
    console.note(f"engine: {info.flavour} {info.version}" + ("" if choice == "docker" else ", because it answers"))
    return engine


def resolved(spec: EnvSpec) -> Resolution:
    """Tables and resolver in one step. Raises ConflictError."""
    from envforge import compat
    from envforge.resolve import resolve

    return resolve(spec, compat.load())


def locked(
    spec: EnvSpec, resolution: Resolution, *, may_lock: bool, ca_bundle: Path | None, console: Console
) -> tuple[Lock, bool]:
    """The environment's lock, made when there is none and ``may_lock``; a stale or foreign one is refused.

    Returns the lock and whether it was made just now. Raises LockError (exit 5).
    """
    from envforge.sources import with_code

    name = resolution.name
    again = f"envforge lock {spec.path if spec.path and not _in_catalog(spec.path) else name}"
    found = lockfile.read(name)
    if found is None:
        if not may_lock:
            raise LockError("lock-missing", f"there is no lock for {name!r}", hint=again)
        from envforge.commands.lock import make_lock

        console.note(f"locking {name} …")
        return with_code(make_lock(resolution, console=console, ca_bundle=ca_bundle), resolution), True
    lockfile.require(found, resolution)
    return with_code(found, resolution), False


def _in_catalog(path: Path) -> bool:
    from envforge.resources import catalog

    return path.parent == catalog()


def _untested_guard(resolution: Resolution, smoke: bool) -> None:
    if resolution.untested and not smoke:
        raise ConflictError(
            "untested-needs-smoke",
            f"{resolution.name!r} uses a combination newer than the tables; without smoke tests nothing vouches for it",
            hint="leave out --no-smoke",
        )


@contextmanager
def _one_at_a_time(digest: str, console: Console) -> Iterator[None]:
    """Two builds of one identity: the second waits for the first and then finds its result."""
    from filelock import FileLock, Timeout

    folder = paths.locks()
    folder.mkdir(parents=True, exist_ok=True)
    guard = FileLock(folder / f"build-{digest.removeprefix('sha256:')[:24]}.lock")
    try:
        guard.acquire(timeout=0)
    except Timeout:
        console.note("another envforge builds this environment; waiting for it …")
        guard.acquire()
    try:
        yield
    finally:
        guard.release()


def build(spec: EnvSpec, request: BuildRequest, *, engine: Engine | None = None, console: Console) -> dict[str, Any]:
    """The whole main job for one spec; returns the document that `build --json` prints.

    ``status`` is passed, failed (a check failed: no tag was given), or ``not_run`` with --no-smoke. Raises
    the errors of each stage; BudgetError when the image is over the spec's budget.
    """
    clock = _Clock()
    with clock.stage("check"):
        resolution = resolved(spec)
    _untested_guard(resolution, request.smoke)
    console.note(f"check: {resolution.verdict} — {_summary(resolution)}")
    engine = engine if engine is not None else choose_engine(request.engine, console)
    with clock.stage("lock"):
        lock, made = locked(spec, resolution, may_lock=not request.locked, ca_bundle=request.ca_bundle, console=console)
    if made:
        console.note(f"lock: {len(lock.pip)} pip and {len(lock.conda)} conda packages")
    with _one_at_a_time(f"{engine.name}-{lock.inputs_digest.removeprefix('sha256:')}", console):
        return _build_locked(resolution, lock, request, engine, clock, console)


def _summary(resolution: Resolution) -> str:
    names = ", ".join(f"{item.name} {item.version}" for item in resolution.frameworks) or "no framework"
    cuda = f"CUDA {resolution.cuda.version}" if resolution.cuda else "CPU"
    return f"{names}, {cuda}, Python {resolution.python}"


def _build_locked(
    resolution: Resolution, lock: Lock, request: BuildRequest, engine: Engine, clock: _Clock, console: Console
) -> dict[str, Any]:
    base, base_note = _base(engine, resolution, lock, console)
    if not request.no_cache:
        reused = _unchanged(resolution, lock, request, engine, base, console)
        if reused is not None:
            return reused
    if request.offline is not None:
        from envforge import vendor

        vendor.check(request.offline, lock)
    info = engine.info()
    with clock.stage("render"):
        rendered = _rendered(resolution, lock, info, base)
    options = BuildOptions(
        progress=None if console.is_terminal and not console.json_mode and console.verbosity >= 0 else console.detail,
        ca_bundle=request.ca_bundle,
        offline=request.offline,
        no_cache=request.no_cache,
        timeout=request.timeout,
        reproducible=request.reproducible,
    )
    console.note(f"build: {resolution.name} ({lock.inputs_digest.removeprefix('sha256:')[:12]}) …")
    with clock.stage("build"), _diagnosed():
        built = engine.build(rendered, resolution, lock, options)
    console.note(f"built: {built.image} ({built.size_bytes / 1e6:.0f} MB) in {clock.seconds['build']:.1f} s")
    proof: dict[str, Any] | None = None
    if request.reproducible:
        from envforge import reproducible

        with clock.stage("proof"):
            proof = reproducible.prove(engine, built, rendered, resolution, lock, options, console=console)
    report: dict[str, Any] | None = None
    checks: list[dict[str, Any]] = []
    status = "not_run"
    if request.smoke:
        with clock.stage("smoke"):
            report, checks, status = _smoke(engine, built, resolution, lock, request, console)
    document = _document(resolution, lock, request, engine, info, built, base, base_note, checks, status, clock)
    if report is not None:
        document["facts"] = report["facts"]
    if proof is not None:
        document["reproducible"] = proof
    over = _over_budget(resolution, built, clock, engine)
    enough = request.level is None or request.level >= resolution.smoke.level
    tagged = status == "passed" and not over and enough and _earned(report)
    if status == "passed" and not enough:
        console.note(f"no tag: levels 0-{request.level} were run, and the tag asks for 0-{resolution.smoke.level}")
    if tagged:
        name, tag = repository(resolution.name), lock.inputs_digest.removeprefix("sha256:")[:12]
        engine.tag(built.image, name, tag)
        document["tag"] = f"{name}:{tag}"
    document["record"] = str(record.write(resolution.name, lock.inputs_digest, document))
    if over:
        raise BudgetError(
            "budget-exceeded",
            f"{resolution.name!r} is over its budget",
            context=over,
            hint="raise `budget`, or leave packages out",
        )
    return document


def _earned(report: dict[str, Any] | None) -> bool:
    return report is not None and bool(report["earns_tag"])


def _base(engine: Engine, resolution: Resolution, lock: Lock, console: Console) -> tuple[str, str]:
    """The base image reference this build stands on, and why that one. The lock's digest counts, not the tag."""
    if engine.name == "local":
        return "none (local engine)", "the local engine uses this machine's Python"
    from envforge import base, config

    wanted = resolution.base if lock.base.digest is None else replace(resolution.base, digest=lock.base.digest)
    chosen = base.choose(engine, wanted, config.load())
    if chosen.substituted:
        console.note(f"base: {chosen.reference} instead of {resolution.base.image} ({chosen.reason})")
    return chosen.reference, chosen.reason


def _rendered(resolution: Resolution, lock: Lock, info: EngineInfo, base: str) -> Rendered:
    from envforge.plan import make_plan
    from envforge.render import render
    from envforge.sources import with_files

    if info.name == "local":
        return Rendered(dockerfile="", files={})
    own = resolution.base.image + (f"@{resolution.base.digest}" if resolution.base.digest else "")
    form: Form = "buildkit" if info.buildkit else "plain"
    made = make_plan(resolution, lock, form, base=base if base != own else None)
    return with_files(render(made), resolution.files)


def _unchanged(
    resolution: Resolution, lock: Lock, request: BuildRequest, engine: Engine, base: str, console: Console
) -> dict[str, Any] | None:
    """The record of this identity when it is built, tagged and nothing asked for is newer; starts no container."""
    found = engine.find(lock.inputs_digest)
    if found is None or not request.smoke:
        return None
    if engine.name == "docker":
        # The label holds the name of the spec, or the substitute; a mapped registry stands before it.
        label, name = found.labels.get("org.opencontainers.image.base.name", ""), base.partition("@")[0]
        if not label or not f"/{name}".endswith(f"/{label}"):
            return None
    old = record.latest(resolution.name, lock.inputs_digest, engine.name)
    if old is None or old.get("status") != "passed" or old.get("image") not in (found.image, *found.tags):
        return None
    level = request.level if request.level is not None else resolution.smoke.level
    if old.get("level", 0) < level or (request.gpus.promised and not old.get("gpu_tested")):
        return None
    if request.reproducible and not old.get("reproducible"):
        return None
    console.note(f"unchanged: {resolution.name} is built and tested ({old.get('tag', found.image)})")
    return old | {"reused": True}


@contextmanager
def _diagnosed() -> Iterator[None]:
    """Add the known cause and fix to a build error whose log matches one."""
    try:
        yield
    except BuildError as error:
        raise type(error)(
            error.reference,
            error.message,
            context=error.context,
            hint=_known_cause("\n".join(error.context)) or error.hint,
        ) from error


def _known_cause(text: str) -> str:
    from envforge import diagnose

    matches = diagnose.match(text)
    if not matches:
        return ""
    best = matches[0]
    return f"{best.cause} — {best.fix} [{best.reference}]"


def _smoke(
    engine: Engine, built: Built, resolution: Resolution, lock: Lock, request: BuildRequest, console: Console
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    from envforge import smoke

    level = request.level if request.level is not None else resolution.smoke.level
    plan = smoke.make_plan(resolution, lock, level=level, gpus=request.gpus)
    console.note(f"smoke: levels 0-{level} …")
    report = smoke.run_in_engine(engine, built.image, plan, console=console)
    document = report.document()
    document["earns_tag"] = smoke.earns_tag(report)
    return document, document["checks"], document["status"]


def _document(
    resolution: Resolution,
    lock: Lock,
    request: BuildRequest,
    engine: Engine,
    info: EngineInfo,
    built: Built,
    base: str,
    base_note: str,
    checks: Sequence[dict[str, Any]],
    status: str,
    clock: _Clock,
) -> dict[str, Any]:
    gpu_checks = [item for item in checks if item["name"] == "visibility.kernels" and item["outcome"] == "passed"]
    return {
        "schema": 1,
        "name": resolution.name,
        "engine": engine.name,
        "engine_version": f"{info.flavour} {info.version}",
        "image": built.image,
        "tag": None,
        "inputs_digest": lock.inputs_digest,
        "resolution_digest": lock.resolution_digest,
        "lock_digest": lockfile.lock_digest(lock),
        "base": {"reference": base, "note": base_note, "locked": lock.base.image, "digest": lock.base.digest},
        "status": status,
        "level": (request.level if request.level is not None else resolution.smoke.level) if checks else 0,
        "gpu_tested": bool(gpu_checks),
        "checks": list(checks),
        "size_bytes": built.size_bytes,
        "seconds": dict(clock.seconds),
        "steps": [{"name": s.name, "seconds": round(s.seconds, 3), "cached": s.cached} for s in built.steps],
        "log": str(built.log),
        "reused": False,
    }


def _over_budget(resolution: Resolution, built: Built, clock: _Clock, engine: Engine) -> tuple[str, ...]:
    """What is over the budget, with the largest parts; () when nothing is."""
    from envforge import budget as budgets

    return budgets.over(resolution.budget, built, clock.seconds.get("build", 0.0), engine)
