"""Plans the smoke ladder from a resolution and its lock, runs it in an engine or an interpreter, judges the report.

What is expected is decided here, outside the framework: the plan says which build, which packages, which export
routes and whether a GPU was promised. A planned check that does not report is an error, never a pass.
Importing this module needs the standard library only, so that ``smoke --python`` works on a bare GPU host.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.engine import Engine, GpuRequest, RunResult
    from envforge.lock import Lock
    from envforge.resolve import FrameworkChoice, Resolution

Outcome = Literal["passed", "failed", "unavailable", "error", "not_run"]
Status = Literal["passed", "failed", "error"]
OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "unavailable", "error", "not_run")

REPORT_SCHEMA = 1
PLAN_SCHEMA = 1
MARKER = "@envforge "
DEFAULT_LEVEL = 4
DEFAULT_TIMEOUT = 300
HOST_INTERRUPTED = "host-interrupted"
# Relative to the largest expected value. float32: matrix products and convolutions; tf32: 10 mantissa bits.
TOLERANCE = {"float32": 1e-5, "tf32": 2e-3, "training": 5e-3, "export": 1e-4}
BACKENDS = ("tensorflow", "jax", "torch")
# Frameworks that are compared with each other when an image holds two; Keras is compared through its backend.
COMPARED = ("torch", "tensorflow", "jax", "paddle")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCheck:
    """A check that must report. ``framework`` is empty for checks of the image as a whole."""

    name: str
    framework: str
    level: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedFramework:
    """One process of the ladder: ``key`` names it in the report, ``adapter`` is the file that knows the framework.

    ``accelerator`` None: not known beforehand, whatever build is there is right. ``required`` are the export
    routes that must work; the others may be unavailable for want of a package.
    """

    key: str
    adapter: str
    version: str | None = None
    accelerator: Literal["cpu", "cuda"] | None = None
    cuda: str | None = None
    kernels: tuple[str, ...] = ()
    backend: str | None = None
    required: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    frameworks: tuple[str, ...] = ()  # of the cross-framework process


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokePlan:
    """Everything the ladder is told. ``packages`` None: there is no lock to compare with."""

    name: str
    level: int
    gpus: GpuRequest
    checks: tuple[PlannedCheck, ...]
    frameworks: tuple[PlannedFramework, ...]
    inputs_digest: str = ""
    timeout: int = DEFAULT_TIMEOUT
    seed: int = 0
    scope: Literal["image", "interpreter"] = "image"
    packages: Mapping[str, str] | None = None
    packages_partial: bool = False  # conda packages are there too: more than the pip lock names is no fault
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    user: Mapping[str, Any] | None = None
    labels_expected: Mapping[str, str] = field(default_factory=dict)
    labels_seen: Mapping[str, str] | None = None
    without: Mapping[str, str] = field(default_factory=dict)  # left out by the spec: check → reason
    cuda: str | None = None

    @property
    def expect_gpu(self) -> Literal["promised", "auto", "none"]:
        if self.gpus.kind == "none":
            return "none"
        return "promised" if self.gpus.promised else "auto"

    def document(self) -> dict[str, Any]:
        """The plan file as the ladder reads it."""
        count = self.gpus.count or len(self.gpus.devices) or None
        return {
            "schema": PLAN_SCHEMA,
            "marker": MARKER,
            "name": self.name,
            "level": self.level,
            "expect_gpu": self.expect_gpu,
            "gpu_count": count,
            "seed": self.seed,
            "timeout": self.timeout,
            "tolerance": dict(TOLERANCE),
            "scope": self.scope,
            "cuda": self.cuda,
            "packages": dict(self.packages) if self.packages is not None else None,
            "packages_partial": self.packages_partial,
            "env": dict(self.env),
            "files": list(self.files),
            "user": dict(self.user) if self.user is not None else None,
            "labels_expected": dict(self.labels_expected),
            "labels_seen": dict(self.labels_seen) if self.labels_seen is not None else None,
            "checks": [
                {"name": c.name, "framework": c.framework, "level": c.level}
                for c in self.checks
                if not self.reason_left_out(c)
            ],
            "frameworks": [_framework_document(item) for item in self.frameworks],
        }

    def reason_left_out(self, check: PlannedCheck) -> str:
        """Why the spec leaves this check out ("export.onnx" or "torch:export.onnx"), or an empty text."""
        return self.without.get(check.name) or self.without.get(f"{check.framework}:{check.name}") or ""


def _framework_document(item: PlannedFramework) -> dict[str, Any]:
    return {
        "key": item.key,
        "adapter": item.adapter,
        "version": item.version,
        "accelerator": item.accelerator,
        "cuda": item.cuda,
        "kernels": list(item.kernels) or None,
        "backend": item.backend,
        "required": list(item.required),
        "env": dict(item.env),
        "frameworks": list(item.frameworks),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One reported check. ``cause`` is a kebab-case kind of fault, empty when nothing is known about it."""

    name: str
    framework: str
    level: int
    outcome: Outcome
    seconds: float
    detail: str
    cause: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "framework": self.framework,
            "level": self.level,
            "outcome": self.outcome,
            "seconds": self.seconds,
            "detail": self.detail,
            "cause": self.cause,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeReport:
    """What the ladder found. ``facts``: driver, gpus and versions seen inside. ``interrupted``: a run that the host
    spoiled and that was repeated, with the reason."""

    name: str
    engine: str
    image: str
    inputs_digest: str
    level: int
    checks: tuple[Check, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: str = ""
    noise: tuple[str, ...] = ()  # last lines of the run that were no report, kept when something went wrong

    @property
    def status(self) -> Status:
        """failed: a check found a fault; error: a check that was planned did not run or report."""
        outcomes = {check.outcome for check in self.checks}
        if "failed" in outcomes:
            return "failed"
        if not self.checks or outcomes & {"error", "not_run"}:
            return "error"
        return "passed"

    @property
    def gpu_tested(self) -> bool:
        """Whether a kernel really ran on a GPU."""
        return any(c.name == "visibility.kernels" and c.outcome == "passed" for c in self.checks)

    def document(self) -> dict[str, Any]:
        """The `smoke --json` document (data/smoke_report.schema.json); ``record`` is filled in by who stores it."""
        return {
            "schema": REPORT_SCHEMA,
            "name": self.name,
            "engine": self.engine,
            "image": self.image,
            "inputs_digest": self.inputs_digest,
            "status": self.status,
            "level": self.level,
            "gpu_tested": self.gpu_tested,
            "gpu_note": "" if self.gpu_tested else "not tested on a GPU",
            "earns_tag": earns_tag(self),
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            "facts": dict(self.facts),
            "checks": [check.document() for check in self.checks],
            "noise": list(self.noise),
            "record": None,
        }


def earns_tag(report: SmokeReport) -> bool:
    """Every expected check passed. GPU checks that were unavailable do not block; a report of nothing does."""
    return report.status == "passed" and any(check.outcome == "passed" for check in report.checks)


# -- planning ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def known_checks() -> Mapping[str, Any]:
    """``smoke_tests/checks.json``: the names of all checks, and per framework its module and export routes."""
    from envforge.resources import shipped

    found: dict[str, Any] = json.loads((shipped("smoke_tests") / "checks.json").read_text(encoding="utf-8"))
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _needs(adapter: str, route: str, backend: str | None) -> tuple[str, ...]:
    """Distributions without which a route cannot work."""
    needs = known_checks()["frameworks"][adapter]["exports"][route]
    if isinstance(needs, dict):
        needs = needs.get(backend or "", ["unknown-backend"])
    return tuple(needs)


def _required(adapter: str, backend: str | None, packages: Iterable[str]) -> tuple[str, ...]:
    """The routes that must work: the framework's own, and those whose every package is locked."""
    have = {_normal(name) for name in packages}
    # "tensorflow" is also there when it came as tensorflow-cpu.
    have |= {name for name, entry in known_checks()["frameworks"].items() if have & set(entry["distributions"])}
    routes = known_checks()["frameworks"][adapter]["exports"]
    return tuple(
        route
        for route in routes
        if route != "export.tensorrt" and all(_normal(need) in have for need in _needs(adapter, route, backend))
    )


def _entry_checks(entry: PlannedFramework, level: int) -> list[PlannedCheck]:
    known = known_checks()
    if entry.adapter == "crossframework":
        first, second = entry.frameworks[0], entry.frameworks[1]
        names = {
            f"crossframework.import_{first}_{second}": 1,
            f"crossframework.import_{second}_{first}": 1,
        } | known["cross"]
    else:
        exports = dict.fromkeys(known["frameworks"][entry.adapter]["exports"], 4)
        names = known["framework"] | exports | known["stress"]
    return [PlannedCheck(name=n, framework=entry.key, level=at) for n, at in names.items() if at <= level]


def _planned(entries: Sequence[PlannedFramework], level: int) -> tuple[PlannedCheck, ...]:
    checks = [PlannedCheck(name=n, framework="", level=at) for n, at in known_checks()["image"].items() if at <= level]
    for entry in entries:
        checks += _entry_checks(entry, level)
    return tuple(checks)


def _with_cross(entries: list[PlannedFramework]) -> list[PlannedFramework]:
    """Add one process per pair of frameworks that are compared with each other."""
    names = [entry.adapter for entry in entries if entry.adapter in COMPARED]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    for first, second in pairs:
        key = "crossframework" if len(pairs) == 1 else f"crossframework-{first}-{second}"
        cpu = {entry.accelerator for entry in entries if entry.adapter in (first, second)} == {"cpu"}
        entries.append(
            PlannedFramework(
                key=key,
                adapter="crossframework",
                frameworks=(first, second),
                accelerator="cpu" if cpu else None,
            )
        )
    return entries


def _keras_entries(
    version: str | None, others: Mapping[str, PlannedFramework], wanted: str | None, packages: Iterable[str]
) -> list[PlannedFramework]:
    """One process per backend: the backend is fixed when Keras is imported."""
    names = set(packages)
    found = [name for name in BACKENDS if name in others] or [n for n in BACKENDS if n in names]
    backends = [wanted] if wanted else found or ["tensorflow"]
    entries = []
    for backend in backends:
        base = others.get(backend)
        entries.append(
            PlannedFramework(
                key="keras" if len(backends) == 1 else f"keras-{backend}",
                adapter="keras",
                version=version,
                accelerator=base.accelerator if base else None,
                cuda=base.cuda if base else None,
                backend=backend,
                required=_required("keras", backend, [*names, *others]),
                env=(("KERAS_BACKEND", backend),),
            )
        )
    return entries


def _entries(
    choices: Sequence[FrameworkChoice], packages: Iterable[str], keras_backend: str | None
) -> list[PlannedFramework]:
    plain: dict[str, PlannedFramework] = {}
    names = list(packages)
    for choice in choices:
        if choice.name == "keras":
            continue
        plain[choice.name] = PlannedFramework(
            key=choice.name,
            adapter=choice.name,
            version=choice.version,
            accelerator=choice.accelerator,
            cuda=choice.cuda,
            required=_required(choice.name, None, names),
        )
    entries = list(plain.values())
    for choice in choices:
        if choice.name == "keras":
            entries += _keras_entries(choice.version, plain, keras_backend, names)
    return _with_cross(entries)


def make_plan(
    resolution: Resolution | None,
    lock: Lock | None,
    *,
    level: int = DEFAULT_LEVEL,
    gpus: GpuRequest,
    found: Mapping[str, Any] | None = None,
    name: str = "",
) -> SmokePlan:
    """The plan for an environment, or (``resolution`` None) for what ``found``, a probe's answer, holds.

    Nothing is read from this machine. ``level`` 0 to 5.
    """
    if resolution is None:
        return _plan_of_found(found or {"frameworks": [], "packages": {}}, level=level, gpus=gpus, name=name)
    packages = None
    locked: list[str] = [_normal(re.split(r"[\s\[<>=!~;@]", r.text, maxsplit=1)[0]) for r in resolution.requirements]
    if lock is not None:
        packages = {_normal(p.name): p.version for p in lock.pip}
        locked = [*packages, *(c.name for c in lock.conda)]
    env = {key: value for key, value in resolution.env if "$" not in value}
    entries = _entries(resolution.frameworks, locked, env.get("KERAS_BACKEND"))
    labels = {}
    if lock is not None:
        labels = {"envforge.name": lock.name, "envforge.inputs-digest": lock.inputs_digest}
    root = resolution.user.name == "root"
    return SmokePlan(
        name=resolution.name,
        level=level,
        gpus=gpus,
        checks=_planned(entries, level),
        frameworks=tuple(entries),
        inputs_digest=lock.inputs_digest if lock is not None else "",
        timeout=resolution.smoke.timeout,
        packages=packages,
        packages_partial=bool(resolution.conda or (lock is not None and lock.conda)),
        env=env,
        files=(resolution.workdir, *(item.target for item in resolution.files)),
        user={"uid": 0 if root else resolution.user.uid, "writable": [resolution.workdir, "~", "$TMPDIR"]},
        labels_expected=labels,
        without=dict(resolution.smoke.without),
        cuda=resolution.cuda.version if resolution.cuda else None,
    )


def _plan_of_found(found: Mapping[str, Any], *, level: int, gpus: GpuRequest, name: str) -> SmokePlan:
    packages: Mapping[str, str] = found["packages"]
    plain = {
        item["name"]: PlannedFramework(
            key=item["name"], adapter=item["name"], required=_required(item["name"], None, packages)
        )
        for item in found["frameworks"]
        if item["name"] != "keras"
    }
    entries = list(plain.values())
    if any(item["name"] == "keras" for item in found["frameworks"]) and plain.keys() & set(BACKENDS):
        entries += _keras_entries(None, plain, None, packages)
    entries = _with_cross(entries)
    return SmokePlan(
        name=name,
        level=level,
        gpus=gpus,
        checks=_planned(entries, level),
        frameworks=tuple(entries),
        scope="interpreter",
    )


# -- reading what the ladder says ----------------------------------------------------------------------------


def parse(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Marked lines as objects, and everything else as noise. A damaged marked line is noise."""
    found, noise = [], []
    for line in text.splitlines():
        start = line.find(MARKER)
        if start >= 0:
            try:
                value = json.loads(line[start + len(MARKER) :])
            except ValueError:
                value = None
            if isinstance(value, dict):
                found.append(value)
                continue
        if line.strip():
            noise.append(line)
    return found, noise


def _check_of(value: Mapping[str, Any], planned: PlannedCheck) -> Check:
    outcome = value.get("outcome")
    return Check(
        name=planned.name,
        framework=planned.framework,
        level=planned.level,
        outcome=outcome if outcome in OUTCOMES else "error",
        seconds=float(value.get("seconds") or 0.0),
        detail=str(value.get("detail") or ""),
        cause=str(value.get("cause") or ""),
        facts=value.get("facts") or {},
    )


def judge(plan: SmokePlan, text: str, *, engine: str, image: str, ended: str = "", seconds: float = 0.0) -> SmokeReport:
    """The report: every planned check exactly once, in the plan's order.

    ``ended`` says how a run ended that did not come to its end ("time limit", "killed for memory"); it becomes the
    detail of the checks that are missing.
    """
    lines, noise = parse(text)
    reported = {(str(v.get("framework", "")), v["check"]): v for v in lines if isinstance(v.get("check"), str)}
    checks = []
    for planned in plan.checks:
        reason = plan.reason_left_out(planned)
        value = reported.get((planned.framework, planned.name))
        if reason:
            value = {"outcome": "unavailable", "detail": f"left out by the spec: {reason}"}
        elif value is None:
            detail = "planned, but the tests never reported it" + (f" ({ended})" if ended else "")
            value = {"outcome": "error", "detail": detail, "cause": "no-report"}
        checks.append(_check_of(value, planned))
    good = all(check.outcome in ("passed", "unavailable") for check in checks)
    return SmokeReport(
        name=plan.name,
        engine=engine,
        image=image,
        inputs_digest=plan.inputs_digest,
        level=plan.level,
        checks=tuple(checks),
        facts=_facts(checks, lines),
        seconds=seconds,
        noise=() if good else tuple(noise[-40:]),
    )


def _facts(checks: Sequence[Check], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Driver, GPUs and versions seen inside, gathered from the visibility checks."""
    found: dict[str, Any] = {"driver": None, "gpus": [], "versions": {}}
    for line in lines:
        if line.get("event") == "begin":
            found["python"] = line.get("python")
    for check in checks:
        if check.name == "visibility.import" and check.facts.get("versions"):
            found["versions"][check.framework] = check.facts["versions"]
        if check.name == "visibility.devices":
            found["driver"] = found["driver"] or check.facts.get("driver")
            found["gpus"] = found["gpus"] or check.facts.get("nvml") or []
    return found


# -- running -------------------------------------------------------------------------------------------------


def suite() -> dict[str, bytes]:
    """The ladder's own files by their path, without caches."""
    from envforge.resources import shipped

    root = shipped("smoke_tests")
    return {
        f"smoke_tests/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix in (".py", ".json") and "__pycache__" not in path.parts
    }


def _whole_limit(plan: SmokePlan) -> float:
    """Seconds after which the run as a whole is stopped: far beyond what the limit per check lets happen."""
    return 60.0 + plan.timeout * max(4, len(plan.checks))


def _for_engine(plan: SmokePlan, engine: Engine, image: str) -> SmokePlan:
    """The plan with what this engine can show: labels seen; nothing of user and folders where there is no image."""
    seen = dict(engine.inspect(image).labels)
    if engine.name == "docker":
        # Paths of the caches and of the home folder are set anew for the isolated run.
        ours = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "PYTHONDONTWRITEBYTECODE", "ENVFORGE_DIR")
        return replace(plan, labels_seen=seen, env={k: v for k, v in plan.env.items() if k not in ours})
    env = {k: v for k, v in plan.env.items() if not v.startswith("/") and k != "HOME"}
    return replace(plan, labels_seen=seen, user=None, files=(), env=env)


def _ended(result: RunResult) -> str:
    if result.timed_out:
        return "the run was stopped at its time limit"
    if result.oom_killed or result.code == 137:
        return "the run was killed for memory"
    return f"the run ended with exit code {result.code}" if result.code else ""


def _listener(console: Console) -> Any:
    """Shows each check as it finishes."""

    def hear(line: str) -> None:
        for value in parse(line)[0]:
            if "check" in value:
                where = f"{value.get('framework') or 'image'} {value['check']}"
                console.detail(
                    f"  {value['outcome']:<12}{where} {value.get('seconds', 0):.2f} s {value.get('detail', '')}"
                )

    return hear


def run_in_engine(engine: Engine, image: str, plan: SmokePlan, *, console: Console) -> SmokeReport:
    """Run the plan in a built environment: no network, read-only root, one container.

    A run whose GPU the host took away in the middle ("Failed to initialize NVML: Unknown Error") is repeated once
    in a new container and marked. Raises EngineError (GpuUnavailable when a promised GPU cannot be passed in).
    """
    plan = _for_engine(plan, engine, image)
    report = _once_in_engine(engine, image, plan, console)
    if not any(check.cause == HOST_INTERRUPTED for check in report.checks):
        return report
    console.warn("host interrupted: the container lost its GPU (NVML: Unknown Error); trying once in a new container")
    again = _once_in_engine(engine, image, plan, console)
    lost = any(check.cause == HOST_INTERRUPTED for check in again.checks)
    reason = (
        "host interrupted: the GPU was lost twice (the host's cgroup rules were rebuilt while the container ran)"
        if lost
        else "host interrupted: the first container lost its GPU, the second was sound"
    )
    return replace(again, interrupted=reason)


def _once_in_engine(engine: Engine, image: str, plan: SmokePlan, console: Console) -> SmokeReport:
    from envforge.engine import RunRequest

    files = suite()
    files["plan.json"] = json.dumps(plan.document(), indent=1).encode()
    request = RunRequest(
        argv=("python", "/envforge/smoke_tests/run.py", "/envforge/plan.json"),
        files=files,
        gpus=plan.gpus,
        shm_bytes=1 << 30,
        timeout=_whole_limit(plan),
        on_line=_listener(console),
    )
    result = engine.run(image, request)
    return judge(
        plan,
        result.stdout + "\n" + result.stderr,
        engine=engine.name,
        image=image,
        ended=_ended(result),
        seconds=result.seconds,
    )


def _visible(gpus: GpuRequest, env: Mapping[str, str]) -> dict[str, str]:
    """How an interpreter on this host is shown the GPUs that were asked for."""
    if gpus.kind == "none":
        return {"CUDA_VISIBLE_DEVICES": ""}
    if gpus.kind == "devices":
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus.devices)}
    if gpus.kind == "count":
        given = [word for word in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
        return {"CUDA_VISIBLE_DEVICES": ",".join((given or [str(n) for n in range(gpus.count)])[: gpus.count])}
    return {}


def _python_env(folder: Path, gpus: GpuRequest) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")}
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    env |= {
        "TMPDIR": str(temporary),
        "ENVFORGE_DIR": str(folder),
        "TRITON_CACHE_DIR": str(temporary / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(temporary / "inductor"),
        "MPLCONFIGDIR": str(temporary / "matplotlib"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return env | _visible(gpus, env)


def probe_python(python: Path) -> dict[str, Any]:
    """``{"python", "frameworks", "packages"}`` of an interpreter, frameworks not imported.

    Raises EngineError ``no-interpreter`` when it does not answer.
    """
    from envforge import process
    from envforge.errors import EngineError
    from envforge.resources import shipped

    try:
        outcome = process.run([python, shipped("smoke_tests") / "run.py", "--probe"], timeout=120)
        found = parse(outcome.stdout)[0]
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise EngineError("no-interpreter", f"{python} cannot be started: {error.strerror}") from error
    if not outcome.ok or not found:
        raise EngineError(
            "no-interpreter", f"{python} does not answer like a Python interpreter", context=outcome.tail(10)
        )
    return found[-1]


def run_python(python: Path, plan: SmokePlan | None = None, *, console: Console, **found_options: Any) -> SmokeReport:
    """Run the ladder in any interpreter of this host, outside any container.

    Without a plan the frameworks found there are tested; then ``level`` and ``gpus`` are the keyword arguments.
    Raises EngineError ``no-interpreter``, NothingSelected ``no-framework`` when none of the known ones is there.
    """
    import tempfile

    from envforge import process

    if plan is None:
        found = probe_python(python)
        if not found["frameworks"]:
            from envforge.errors import NothingSelected

            raise NothingSelected(
                "no-framework",
                f"{python} holds none of {', '.join(known_checks()['frameworks'])}",
                hint="give the interpreter of the environment that holds the framework",
            )
        plan = make_plan(None, None, found=found, name=str(python), **found_options)
    else:
        plan = replace(plan, scope="interpreter", user=None, files=(), env={}, labels_expected={})
    with tempfile.TemporaryDirectory(prefix="envforge-smoke-") as name:
        folder = Path(name)
        for path, content in suite().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        (folder / "plan.json").write_text(json.dumps(plan.document()), encoding="utf-8")
        outcome = process.run(
            [python, folder / "smoke_tests" / "run.py", folder / "plan.json"],
            env=_python_env(folder, plan.gpus),
            cwd=folder,
            timeout=_whole_limit(plan),
            on_line=_listener(console),
        )
    ended = "the run was stopped at its time limit" if outcome.timed_out else ""
    if outcome.code and not ended:
        ended = f"the run ended with exit code {outcome.code}"
    return judge(
        plan,
        outcome.stdout + "\n" + outcome.stderr,
        engine="python",
        image=str(python),
        ended=ended,
        seconds=outcome.seconds,
    )
