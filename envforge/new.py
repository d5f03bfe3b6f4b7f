"""The newest combination that works for a framework, a driver and GPUs: a search judged like any request. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envforge import spec as specs
from envforge.compat import Tables
from envforge.errors import ConflictError, UsageError
from envforge.verdict import Verdict, judge, request_from_spec
from envforge.versions import key

_PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A spec that works, its verdict, and the reasons by spec path."""

    spec: specs.EnvSpec
    verdict: Verdict
    why: Mapping[str, str]


def propose(
    name: str,
    frameworks: Sequence[str],
    tables: Tables,
    *,
    driver: str | None = None,
    gpus: Sequence[str] = (),
    python: str | None = None,
    cpu: bool = False,
) -> Proposal:
    """The newest release, then the newest CUDA, that is no conflict. ``driver`` 535 means its first release.

    The first framework is the one searched over; the others take their newest release that goes with it. Raises
    UsageError for an unknown framework or nothing asked, ConflictError ``no-combination`` when nothing works.
    """
    known = [tables.framework_name(text)[0] or "" for text in frameworks]
    if not known or "" in known:
        wrong = next((text for text in frameworks if tables.framework_name(text)[0] is None), "none")
        raise UsageError(
            "usage", f"--framework {wrong}: not known", hint=f"one of {', '.join(tables.known_frameworks())}"
        )
    first, *others = known
    asked, driver = driver, first_release(driver, tables)
    last: Verdict | None = None
    for release in reversed(tables.releases(first)):
        if release.yanked:
            continue
        builds = [None] if cpu else sorted(release.builds, key=key, reverse=True)
        pythons = [python] if python else [text for text in _PYTHONS if text in release.python]
        for text in pythons[:1] if python else pythons[:2]:
            for cuda in builds:
                found = _spec(name, first, release.version, others, cuda, text, driver, gpus, tables)
                last = judge(request_from_spec(found), tables)
                if last.works and last.verdict != "unverified":
                    return Proposal(
                        spec=found, verdict=last, why=_why(first, cuda, text, driver, gpus, python, last, asked)
                    )
    raise ConflictError(
        "no-combination",
        f"no known release of {first} works there",
        context=tuple(item.message for item in last.conflicts[:5]) if last else (),
        hint="a newer driver, another GPU, or --cpu",
    )


def first_release(driver: str | None, tables: Tables) -> str | None:
    """580 -> 580.65.06, the oldest driver of that branch in the tables; anything else as it is."""
    if driver is None or not re.fullmatch(r"\d+", driver):
        return driver
    named = [str(row["driver"]) for row in tables.raw("cuda")["toolkits"]]
    same = [text for text in named if text.startswith(f"{driver}.")]  # a row may name only the branch
    return min(same, key=key, default=driver)


def _spec(
    name: str,
    first: str,
    version: str,
    others: Sequence[str],
    cuda: str | None,
    python: str,
    driver: str | None,
    gpus: Sequence[str],
    tables: Tables,
) -> specs.EnvSpec:
    accelerator: specs.Accelerator = "cuda" if cuda else "cpu"
    rows: dict[specs.FrameworkName, specs.FrameworkSpec] = {
        first: specs.FrameworkSpec(version=version, accelerator=accelerator)  # type: ignore[dict-item]
    }
    for other in others:
        found = tables.newest_for(other, python, cuda) or tables.newest(other)
        rows[other] = specs.FrameworkSpec(version=found.version, accelerator=accelerator)  # type: ignore[index]
    return specs.EnvSpec(
        name=name,
        python=python,
        cuda=specs.CudaSpec(version=cuda) if cuda else None,
        frameworks=rows,
        targets=specs.TargetsSpec(drivers=(driver,) if driver else (), gpus=tuple(gpus)),
    )


def _why(
    first: str,
    cuda: str | None,
    python: str,
    driver: str | None,
    gpus: Sequence[str],
    asked: str | None,
    found: Verdict,
    branch: str | None,
) -> dict[str, str]:
    where = " and ".join([*([f"driver {driver}"] if driver else []), *gpus]) or "any machine"
    why = {f"frameworks.{first}.version": f"the newest known that works with {where}"}
    if not asked:
        why["python"] = f"{first} has wheels for {python}"
    if cuda:
        floor = found.driver.get("floor")
        why["cuda.version"] = f"the newest of its builds that works with {where}" + (
            f"; made for driver {floor}" if floor else ""
        )
    if branch and re.fullmatch(r"\d+", branch):
        why["targets.drivers"] = f"{branch}: the first release of that branch that the tables know"
    return why


def from_packages(name: str, python: str, packages: Sequence[tuple[str, str]]) -> str:
    """The installed packages of an interpreter as requirement lines, for the importer."""
    del name
    rows = [f"{item}=={version}" for item, version in packages if item.lower() not in ("pip", "setuptools", "wheel")]
    return "\n".join([f"python=={python}", *sorted(rows, key=str.lower)]) + "\n"
