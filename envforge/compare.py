"""The same numbers in two environments: operators, a tiny model, weights carried over, and known traps.

The first environment records what its operators give; the record travels by file into the second one, where the
cross-framework checks of the ladder run with it in the first one's place. Neither needs the other's framework.
An upgrade is judged in the same way: files written in the old environment are loaded in the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from envforge import smoke
from envforge.errors import NothingSelected, UsageError

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.engine import GpuRequest
    from envforge.inside import Environment, Said

SCHEMA = 1
SCRIPT = "compare_run.py"
TRAP = "trap_"
Status = Literal["equal", "differences", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """``checks`` are what must agree. ``traps`` are defaults that may differ when each side does what it documents;
    ``strict`` counts a differing one as a difference."""

    kind: Literal["frameworks", "upgrade"]
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    checks: tuple[smoke.Check, ...]
    traps: tuple[smoke.Check, ...]
    tolerance: Mapping[str, float]
    strict: bool = False
    noise: tuple[str, ...] = ()
    seconds: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of the files that travelled

    @property
    def status(self) -> Status:
        """differences: something was computed and does not agree; error: something planned did not come to an end."""
        outcomes = {check.outcome for check in (*self.checks, *self.traps)}
        if "failed" in outcomes or (self.strict and any(trap_differs(trap) for trap in self.traps)):
            return "differences"
        if outcomes & {"error", "not_run"} or not any(check.outcome == "passed" for check in self.checks):
            return "error"
        return "equal"

    def document(self) -> dict[str, Any]:
        """The `compare --json` document."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "a": dict(self.a),
            "b": dict(self.b),
            "status": self.status,
            "strict": self.strict,
            "tolerance": dict(self.tolerance),
            "seconds": round(self.seconds, 3),
            "checks": [_check_document(check) for check in self.checks],
            "traps": [{**_check_document(trap), "differs": trap_differs(trap)} for trap in self.traps],
            "travelled_bytes": dict(self.sizes),
            "noise": list(self.noise),
        }


def _check_document(check: smoke.Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "framework": check.framework,
        "outcome": check.outcome,
        "seconds": check.seconds,
        "detail": check.detail,
        "cause": check.cause,
        "facts": dict(check.facts),
    }


def _rules(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Every ``rules`` table (side → rule that it follows) in the facts of a trap, however deep."""
    found = []
    for key, value in facts.items():
        if key == "rules" and isinstance(value, Mapping):
            found.append({side: str(rule) for side, rule in value.items()})
        elif isinstance(value, Mapping):
            found += _rules(value)
    return found


def trap_differs(trap: smoke.Check) -> bool:
    """Whether the two sides follow different rules there."""
    if isinstance(trap.facts.get("differs"), bool):
        return bool(trap.facts["differs"])
    return any(len(set(rules.values())) > 1 for rules in _rules(trap.facts))


def pick(environment: Environment, wanted: str | None, other: Environment | None = None) -> str:
    """The framework to compare on a side: the wanted one, else the first that both hold, else the first it holds.

    Keras is compared through its backend. Raises NothingSelected or UsageError.
    """
    have = [name for name in smoke.COMPARED if name in environment.frameworks]
    if wanted is not None:
        if wanted not in have:
            raise UsageError(
                "usage",
                f"{environment.name} has no {wanted!r} to compare",
                hint=f"it holds: {', '.join(have) or 'none of ' + ', '.join(smoke.COMPARED)}",
            )
        return wanted
    if not have:
        raise NothingSelected(
            "no-framework",
            f"{environment.name} holds {', '.join(environment.frameworks) or 'no framework'}",
            hint=f"compared are: {', '.join(smoke.COMPARED)}",
        )
    shared = [name for name in have if other is not None and name in other.frameworks]
    return (shared or have)[0]


def planned(extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the checks, in order: those that the ladder makes in images that hold two frameworks."""
    return tuple(name.removeprefix("crossframework.") for name in smoke.known_checks()["cross"]) + tuple(extra)


def ladder_plan(gpus: GpuRequest, *, seed: int, timeout: int) -> dict[str, Any]:
    """The part of a ladder's plan that its checks read."""
    plan = smoke.SmokePlan(
        name="compare", level=4, gpus=gpus, checks=(), frameworks=(), seed=seed, timeout=timeout, scope="interpreter"
    )
    return plan.document()


def labels(a: Environment, b: Environment, first: str, second: str) -> tuple[str, str]:
    """How the sides are called in the texts: framework and version, told apart when that is the same."""
    one = f"{first} {a.frameworks[first]}".strip()
    two = f"{second} {b.frameworks[second]}".strip()
    return (one, two) if one != two else (f"{one} (A)", f"{two} (B)")


def judge(said: Said, names: Sequence[str], *, where: str, framework: str = "") -> tuple[smoke.Check, ...]:
    """Every planned check exactly once; one that was not reported is an error that says how the run ended."""
    reported = {str(line["check"]): line for line in said.lines if "check" in line}
    broken = next((line for line in said.lines if "broken" in line), None)
    why = str(broken["detail"]) if broken else said.ended or "no report came"
    cause = str(broken.get("cause") or "") if broken else ""
    found = []
    for name in names:
        line = reported.get(name)
        if line is None:
            line = {"outcome": "error", "detail": f"not reported: in {where} {why}", "cause": cause or "no-report"}
        outcome = line.get("outcome")
        found.append(
            smoke.Check(
                name=name,
                framework=framework,
                level=0,
                outcome=outcome if outcome in smoke.OUTCOMES else "error",
                seconds=float(line.get("seconds") or 0.0),
                detail=str(line.get("detail") or ""),
                cause=str(line.get("cause") or ""),
                facts=line.get("facts") or {},
            )
        )
    return tuple(found)


def _side(environment: Environment, framework: str, label: str, said: Said | None) -> dict[str, Any]:
    began = next((line for line in said.lines if "begin" in line), {}) if said is not None else {}
    return {
        **environment.document(),
        "framework": framework,
        "label": label,
        "versions": began.get("versions"),
        "device": began.get("device"),
        "seconds": round(said.seconds, 3) if said is not None else None,
    }


def _hear(console: Console) -> Any:
    def hear(line: str) -> None:
        for value in smoke.parse(line)[0]:
            if "check" in value:
                console.detail(f"  {value['outcome']:<12}{value['check']} {value.get('detail', '')}")

    return hear


def compare(
    a: Environment,
    b: Environment,
    *,
    frameworks: tuple[str, str],
    gpus: GpuRequest,
    console: Console,
    seed: int = 0,
    timeout: int = smoke.DEFAULT_TIMEOUT,
    strict: bool = False,
) -> Comparison:
    """Run the cross-framework checks between two environments. Raises EngineError when an engine is lost."""
    names, named = planned(), labels(a, b, *frameworks)
    job: dict[str, Any] = {
        "role": "first",
        "framework": frameworks[0],
        "labels": named,
        "checks": names,
        "plan": ladder_plan(gpus, seed=seed, timeout=timeout),
    }
    console.note(f"compare: {named[0]} in {a.name} …")
    limit = 120.0 + timeout
    record = ("record.npz", "record.json")
    one = a.run(SCRIPT, job, collect=record, gpus=gpus, timeout=limit, on_line=_hear(console))
    two: Said | None = None
    if all(item in one.collected for item in record):
        console.note(f"compare: {named[1]} in {b.name} …")
        job |= {"role": "second", "framework": frameworks[1]}
        two = b.run(SCRIPT, job, files=one.collected, gpus=gpus, timeout=limit, on_line=_hear(console))
        checks = judge(two, names, where=b.name)
    else:
        checks = judge(one, names, where=a.name)
    last = two or one
    return Comparison(
        kind="frameworks",
        a=_side(a, frameworks[0], named[0], one),
        b=_side(b, frameworks[1], named[1], two),
        checks=tuple(check for check in checks if not check.name.startswith(TRAP)),
        traps=tuple(check for check in checks if check.name.startswith(TRAP)),
        tolerance=smoke.TOLERANCE,
        strict=strict,
        noise=last.noise if any(check.outcome in ("failed", "error") for check in checks) else (),
        seconds=one.seconds + (two.seconds if two else 0.0),
        sizes={name: len(content) for name, content in one.collected.items()},
    )


# -- upgrade -------------------------------------------------------------------------------------------------


def upgraded(old: Environment, wanted: str | None = None) -> tuple[str, ...]:
    """The frameworks whose files an upgrade must carry over; Keras is TensorFlow's own where that is there."""
    found = [name for name in old.frameworks if name != "keras" or "tensorflow" not in old.frameworks]
    if wanted is None:
        return tuple(found)
    if wanted not in old.frameworks:
        raise UsageError("usage", f"{old.name} has no {wanted!r}", hint=f"it holds: {', '.join(old.frameworks)}")
    return (wanted,)


def _backend(environment: Environment, framework: str) -> str | None:
    if framework != "keras":
        return None
    return next((name for name in smoke.BACKENDS if name in environment.frameworks), "tensorflow")


def _written(said: Said, framework: str, where: str) -> tuple[list[str], list[smoke.Check]]:
    """Names of what was written well, and a check for each export that was not (unavailable stays that)."""
    good, bad = [], []
    for line in said.lines:
        if "written" not in line:
            continue
        if line["outcome"] == "passed":
            good.append(str(line["written"]))
            continue
        outcome: smoke.Outcome = "unavailable" if line["outcome"] == "unavailable" else "error"
        bad.append(
            smoke.Check(
                name=str(line["written"]),
                framework=framework,
                level=0,
                outcome=outcome,
                seconds=0.0,
                detail=f"not written in {where}: {line.get('detail') or ''}",
                cause=str(line.get("cause") or ""),
            )
        )
    return good, bad


def _upgrade_one(
    old: Environment,
    new: Environment,
    framework: str,
    job: dict[str, Any],
    gpus: GpuRequest,
    limit: float,
    console: Any,
) -> tuple[Said, Said | None, list[smoke.Check]]:
    """One framework: what OLD writes, and what NEW makes of it."""
    console.note(f"compare: {framework} {old.frameworks[framework]} writes in {old.name} …")
    job = {**job, "role": "write", "framework": framework, "backend": _backend(old, framework)}
    one = old.run(SCRIPT, job, collect=("old.zip",), gpus=gpus, timeout=limit)
    names, checks = _written(one, framework, old.name)
    if "old.zip" not in one.collected:
        return one, None, [*judge(one, ["upgrade.write"], where=old.name, framework=framework), *checks]
    if framework not in new.frameworks:
        holds = ", ".join(f"{name} {version}" for name, version in new.frameworks.items())
        absent = smoke.Check(
            name="upgrade.framework",
            framework=framework,
            level=0,
            outcome="failed",
            seconds=0.0,
            detail=f"{new.name} has no {framework}: nothing there can load its files (it holds {holds})",
            cause="framework-absent",
        )
        return one, None, [absent, *checks]
    console.note(f"compare: {framework} {new.frameworks[framework]} reads in {new.name} …")
    job |= {"role": "read", "backend": _backend(new, framework)}
    two = new.run(SCRIPT, job, files=one.collected, gpus=gpus, timeout=limit, on_line=_hear(console))
    return one, two, [*judge(two, names, where=new.name, framework=framework), *checks]


def upgrade(
    old: Environment,
    new: Environment,
    *,
    frameworks: Sequence[str],
    gpus: GpuRequest,
    console: Console,
    seed: int = 0,
    timeout: int = smoke.DEFAULT_TIMEOUT,
    strict: bool = False,
) -> Comparison:
    """Write checkpoints and exported models in ``old``, load them in ``new`` in a fresh process, compare outputs.

    Raises EngineError when an engine is lost.
    """
    job = {"plan": ladder_plan(gpus, seed=seed, timeout=timeout)}
    checks: list[smoke.Check] = []
    noise: tuple[str, ...] = ()
    seconds, sides = 0.0, []
    sizes: dict[str, int] = {}
    for framework in frameworks:
        one, two, found = _upgrade_one(old, new, framework, job, gpus, 120.0 + timeout, console)
        checks += found
        seconds += one.seconds + (two.seconds if two else 0.0)
        sizes |= {f"{framework}/{name}": len(content) for name, content in one.collected.items()}
        sides.append((one, two))
        if any(check.outcome in ("failed", "error") for check in found):
            noise = (two or one).noise
    first = frameworks[0]
    return Comparison(
        kind="upgrade",
        a=_side(old, first, f"{first} {old.frameworks[first]}", sides[0][0]),
        b=_side(new, first, f"{first} {new.frameworks.get(first, 'absent')}", sides[0][1]),
        checks=tuple(check for check in checks if not check.name.startswith(TRAP)),
        traps=tuple(check for check in checks if check.name.startswith(TRAP)),
        tolerance=smoke.TOLERANCE,
        strict=strict,
        noise=noise,
        seconds=seconds,
        sizes=sizes,
    )
