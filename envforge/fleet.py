"""Machines with different drivers and GPUs: what runs where, which images cover them, what an upgrade unlocks.

The file is strict YAML (docs/examples/fleet.yaml): ``hosts`` with driver, GPUs, MIG, container toolkit and OS,
``wishes`` with the frameworks wanted together in one image. Every answer stands on ``verdict.judge``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from envforge import yamlmodel
from envforge.compat import Tables
from envforge.errors import SpecError
from envforge.spec import DRIVER
from envforge.verdict import FrameworkRequest, Request, Verdict, judge
from envforge.versions import key, major
from envforge.yamlmodel import Pattern, rule

FLEET_SCHEMA = 1
SCHEMA = 1
_RANK = {"ok": 0, "ok-with-limits": 1, "unverified": 2, "conflict": 3}
_NAME = Pattern(expression=r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", meaning="a host name", example="gpu-01")
_GPU = Pattern(expression=r"[A-Za-z0-9][A-Za-z0-9 ._()/-]{0,60}", meaning="a GPU model", example="A100")
_MIG = Pattern(expression=r"[1-9]g\.[0-9]{1,3}gb(\+me)?", meaning="a MIG profile", example="1g.10gb")
_TOOLKIT = Pattern(
    expression=r"none|[0-9]+\.[0-9]+(\.[0-9]+)?",
    meaning="the version of the NVIDIA container toolkit, or none",
    example='"1.17.4"',
    version=True,
)
_OS = Pattern(expression=r"(debian|ubuntu|rhel|rocky|sles)-?[0-9]+(\.[0-9]+)?", meaning="an OS", example="ubuntu22.04")
_FRAMEWORK = Pattern(
    expression=r"[a-z]+((==|>=)[0-9][0-9a-z.]*)?",
    meaning="a framework, exact or at least a version",
    example="torch>=2.6",
)
_PYTHON = Pattern(expression=r"3\.[0-9]{1,2}", meaning="a Python version", example='"3.11"', version=True)
_MIG_CAPABLE = ("A30", "A100", "H100", "H200", "H20", "GH200", "B100", "B200", "B300", "GB200", "GB300", "RTX PRO 6000")
_CDI_SINCE = "1.12.0"
_MOST_COMBINATIONS = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One machine, or ``count`` equal ones. No GPUs: a CPU machine. ``toolkit``: NVIDIA container toolkit."""

    name: str = field(metadata=rule(pattern=_NAME))
    driver: str | None = field(default=None, metadata=rule(pattern=DRIVER))
    gpus: tuple[str, ...] = field(default=(), metadata=rule(pattern=_GPU))
    mig: tuple[str, ...] = field(default=(), metadata=rule(pattern=_MIG))
    toolkit: str | None = field(default=None, metadata=rule(pattern=_TOOLKIT))
    os: str | None = field(default=None, metadata=rule(pattern=_OS))
    platform: Literal["linux/amd64", "linux/arm64"] = "linux/amd64"
    count: int = field(default=1, metadata=rule(low=1, high=100_000))


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """Frameworks wanted in one image (``torch``, ``torch>=2.6``, ``jax==0.10.2``)."""

    frameworks: tuple[str, ...] = field(metadata=rule(pattern=_FRAMEWORK))
    python: str | None = field(default=None, metadata=rule(pattern=_PYTHON))

    @property
    def name(self) -> str:
        """``torch+jax``."""
        return "+".join(self.frameworks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """The file as read."""

    hosts: tuple[Host, ...]
    schema: int = FLEET_SCHEMA
    wishes: tuple[Wish, ...] = ()


def loads(text: str | bytes, *, source: str, tables: Tables) -> Fleet:
    """Read a fleet file. Raises SpecError with every problem and its place."""

    def check_rules(fleet: Fleet) -> Iterator[tuple[str, str]]:
        if fleet.schema != FLEET_SCHEMA:
            yield "schema", f"this envforge reads fleet schema {FLEET_SCHEMA}, not {fleet.schema}"
        if not fleet.hosts:
            yield "hosts", "a fleet needs at least one host"
        names = [host.name for host in fleet.hosts]
        for place, host in enumerate(fleet.hosts):
            if host.name in names[:place]:
                yield f"hosts[{place}].name", f"{host.name!r} stands twice"
            if host.mig and not host.gpus:
                yield f"hosts[{place}].mig", "MIG needs `gpus`"
            for number, name in enumerate(host.gpus):
                if tables.gpu(name) is None:
                    vendor = tables.gpu_vendor(name)
                    what = f"GPUs of {vendor} are not supported" if vendor else "write a model (A100) or sm_80"
                    yield f"hosts[{place}].gpus[{number}]", f"no such NVIDIA GPU is known: {name!r}; {what}"
        for place, wish in enumerate(fleet.wishes):
            if not wish.frameworks:
                yield f"wishes[{place}].frameworks", "name at least one framework"
            for number, text in enumerate(wish.frameworks):
                if not tables.releases(_split(text)[0]):
                    known = ", ".join(tables.known_frameworks())
                    yield f"wishes[{place}].frameworks[{number}]", f"{text!r} is no framework (known: {known})"

    return yamlmodel.load_model(text, Fleet, source=source, what="fleet file", check=check_rules)


def load(path: Path, tables: Tables) -> Fleet:
    """Read a fleet file from disk. Raises SpecError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecError(
            "fleet-unreadable", f"{path}: {error.strerror or error}", hint="see docs/examples/fleet.yaml"
        ) from None
    return loads(text, source=str(path), tables=tables)


# --- one request on every host -----------------------------------------------------------------------------


def on_host(request: Request, host: Host, tables: Tables) -> Verdict:
    """The verdict of a request on one host."""
    return judge(
        replace(
            request,
            platform=host.platform,
            driver=host.driver if host.gpus else None,
            gpus=tuple(dict.fromkeys(host.gpus)),
        ),
        tables,
    )


def host_findings(host: Host, found: Verdict, tables: Tables) -> list[dict[str, str]]:
    """What the machine itself adds to a verdict: no GPU, MIG, toolkit, an operating system past its end."""
    out: list[dict[str, str]] = []

    def add(severity: str, reference: str, message: str, hint: str = "") -> None:
        out.append({"reference": reference, "severity": severity, "message": message, "hint": hint})

    on_gpu = any(item.accelerator == "cuda" for item in found.chosen)
    if on_gpu and not host.gpus:
        add("limit", "host-without-gpu", f"{host.name} has no GPU: the image starts and computes on the CPU only")
    if on_gpu and host.gpus and host.driver is None:
        add("limit", "host-driver-unknown", f"the driver of {host.name} is not stated", "add `driver:` to the host")
    if host.mig and not any(_mig_capable(name, tables) for name in host.gpus):
        add("limit", "mig-not-possible", f"none of the GPUs of {host.name} can be divided with MIG", "check the host")
    elif host.mig and on_gpu:
        add("info", "mig", "a process sees one MIG instance only; instances cannot reduce among each other")
    if host.toolkit == "none" and host.gpus and on_gpu:
        add(
            "limit",
            "no-container-toolkit",
            f"{host.name} has no NVIDIA container toolkit: containers see no GPU",
            "install nvidia-container-toolkit, or use --engine local there",
        )
    elif host.toolkit and host.toolkit != "none" and key(host.toolkit) < key(_CDI_SINCE) and host.gpus and on_gpu:
        add("info", "toolkit-without-cdi", f"container toolkit {host.toolkit} has no CDI: the legacy runtime is used")
    return out


def _mig_capable(name: str, tables: Tables) -> bool:
    gpu = tables.gpu(name)
    words = gpu.name.upper().replace("NVIDIA", "") if gpu else ""
    return any(f" {model} " in f" {words.strip()} " or words.strip().startswith(model) for model in _MIG_CAPABLE)


def _verdict(found: Verdict, extra: Sequence[Mapping[str, str]]) -> str:
    limited = any(item["severity"] == "limit" for item in extra)
    return "ok-with-limits" if found.verdict == "ok" and limited else found.verdict


def _host_row(request: Request, host: Host, tables: Tables) -> dict[str, Any]:
    found = on_host(request, host, tables)
    extra = host_findings(host, found, tables)
    document = found.document()
    driver = dict(document["driver"])
    if not host.gpus:
        driver |= {"given": None, "answer": "not-needed"}
    return {
        "name": host.name,
        "count": host.count,
        "verdict": _verdict(found, extra),
        "driver": driver,
        "gpus": document["gpus"],
        "findings": [*document["findings"], *extra],
        "nearest": document["nearest"],
    }


def check(request: Request, path: Path, tables: Tables) -> dict[str, Any]:
    """``check NAME --fleet FILE``: one verdict per host; ``verdict`` is the worst of them. Raises SpecError."""
    fleet = load(path, tables)
    rows = [_host_row(request, host, tables) for host in fleet.hosts]
    plain = judge(request, tables).document()
    plain["verdict"] = max((row["verdict"] for row in rows), key=_RANK.__getitem__)
    runs = sum(host.count for host, row in zip(fleet.hosts, rows, strict=True) if row["verdict"] != "conflict")
    return plain | {
        "fleet": str(path),
        "hosts": rows,
        "runs_on": runs,
        "machines": sum(host.count for host in fleet.hosts),
    }


# --- plan --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One possible image for a wish, newest first in every list. ``request`` has no driver and no GPU."""

    request: Request
    cuda: str | None
    tables: Tables = field(compare=False, repr=False)

    @property
    def text(self) -> str:
        """``torch 2.10.0, CUDA 12.8, Python 3.11``."""
        names = " + ".join(f"{item.name} {item.version}" for item in self.request.frameworks)
        return f"{names}, {f'CUDA {self.cuda}' if self.cuda else 'CPU'}, Python {self.request.python}"

    @cached_property
    def _answers(self) -> dict[tuple[str, str | None, tuple[str, ...]], bool]:
        return {}

    def runs_on(self, host: Host) -> bool:
        """Whether it works on a host (limits allowed, unverified combinations not)."""
        place = (host.platform, host.driver, host.gpus)
        if place not in self._answers:
            self._answers[place] = _RANK[on_host(self.request, host, self.tables).verdict] <= 1
        return self._answers[place]

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "frameworks": [{"name": i.name, "version": i.version} for i in self.request.frameworks],
            "cuda": self.cuda,
            "python": self.request.python,
            "check": " ".join(
                [
                    "envforge check",
                    *(f"--framework {i.name}={i.version}" for i in self.request.frameworks),
                    f"--cuda {self.cuda or 'none'} --python {self.request.python}",
                ]
            ),
        }


def _split(text: str) -> tuple[str, str, str]:
    for sign in ("==", ">="):
        if sign in text:
            name, _, version = text.partition(sign)
            return name, sign, version
    return text, "", ""


def _versions(text: str, tables: Tables) -> list[str]:
    """Releases a wish allows, newest first."""
    name, sign, wanted = _split(text)
    out = [row.version for row in reversed(tables.releases(name)) if row.yanked is None]
    if sign == "==":
        return [v for v in out if key(v) == key(wanted)]
    return [v for v in out if not sign or key(v) >= key(wanted)]


def _pythons(wish: Wish, versions: Sequence[str], tables: Tables) -> list[str]:
    """The Python all have wheels for: the wished one, else 3.11, else the next newer, else the newest older one."""
    sets = []
    for text, version in zip(wish.frameworks, versions, strict=True):
        row = tables.release(_split(text)[0], version)
        sets.append(set(row.python) if row else set())
    common = set.intersection(*sets)
    if wish.python:
        return [wish.python] if wish.python in common else []
    newer = sorted((v for v in common if key(v) >= key("3.11")), key=key)
    older = sorted((v for v in common if key(v) < key("3.11")), key=key, reverse=True)
    return (newer or older)[:1]


def candidates(wish: Wish, tables: Tables, *, gpu: bool = True, limit: int = 2000) -> list[Candidate]:
    """The combinations a wish allows, newest first: releases before CUDA builds. At most ``limit``."""
    names = [_split(text)[0] for text in wish.frameworks]
    # Three frameworks or more: the newest releases of each only, or the product grows without bound.
    lists = [_versions(text, tables)[: 80 if len(names) <= 2 else 12] for text in wish.frameworks]
    out: list[Candidate] = []
    # Newest first: the first framework of a wish decides, the others follow as new as they can.
    for versions in itertools.product(*lists):
        for python in _pythons(wish, versions, tables):
            for cuda in _cudas(names, versions, tables) if gpu else [None]:
                asked = tuple(
                    FrameworkRequest(name=n, version=v, accelerator=_accelerator(n, v, cuda, tables))
                    for n, v in zip(names, versions, strict=True)
                )
                request = Request(name=wish.name, python=python, cuda=cuda, frameworks=asked)
                if _RANK[judge(request, tables).verdict] <= 1:
                    out.append(Candidate(request=request, cuda=cuda, tables=tables))
        if len(out) >= limit:
            break
    return out[:limit]


def _accelerator(name: str, version: str, cuda: str | None, tables: Tables) -> Literal["auto", "cpu", "cuda"]:
    if tables.build(name, version, cuda) if cuda else False:
        return "cuda"
    return "auto" if name == "keras" else "cpu"


def _cudas(names: Sequence[str], versions: Sequence[str], tables: Tables) -> list[str | None]:
    """CUDA versions every framework with CUDA builds can use, newest first; CPU when none of them has any."""
    able = [(n, v) for n, v in zip(names, versions, strict=True) if any(r.builds for r in tables.releases(n))]
    if not able:
        return [None]
    found = {c for n, v in able for c in tables.cuda_builds(n, v)}
    fits = [c for c in found if all(tables.build(n, v, c) for n, v in able)]
    return [*sorted(fits, key=key, reverse=True)]


def _cover(found: Sequence[Candidate], hosts: Sequence[Host]) -> list[Candidate]:
    """The fewest candidates that together run on every host any of them runs on; newest ones first among equals."""
    sets: dict[frozenset[int], Candidate] = {}
    for candidate in found:
        where = frozenset(i for i, host in enumerate(hosts) if candidate.runs_on(host))
        if where:
            sets.setdefault(where, candidate)
    everything = frozenset().union(*sets) if sets else frozenset()
    useful = [where for where in sets if not any(where < other for other in sets)]
    for size in range(1, len(useful) + 1):
        if math.comb(len(useful), size) > _MOST_COMBINATIONS:
            break
        for chosen in itertools.combinations(useful, size):
            if frozenset().union(*chosen) == everything:
                return [sets[where] for where in chosen]
    out, left = [], set(everything)  # too many to try them all: take the largest remaining part each time
    while left:
        best = max(useful, key=lambda where: len(where & left))
        out.append(sets[best])
        left -= best
    return out


def _targets(host: Host, tables: Tables) -> list[str]:
    """Drivers one could upgrade a host to: the first of each CUDA series above its own that its GPUs still get."""
    if not host.gpus or host.driver is None:
        return []
    last = [tables.last_driver(gpu) for name in host.gpus if (gpu := tables.gpu(name))]
    limit = min((int(text) for text in last if text), default=None)
    floors = {f.native for cuda in tables.cuda_series() if (f := tables.driver_floors(cuda))}
    return [
        driver
        for driver in sorted(floors, key=key)
        if key(driver) > key(host.driver) and (limit is None or int(major(driver)) <= limit)
    ]


def _upgrades(found: Sequence[Candidate], hosts: Sequence[Host], tables: Tables) -> list[dict[str, Any]]:
    """For each host: the smallest driver that lets it run something newer than now, and what."""
    out = []
    common = next((c for c in found if all(c.runs_on(h) for h in hosts)), None)
    for place, host in enumerate(hosts):
        now = next((i for i, c in enumerate(found) if c.runs_on(host)), len(found))
        best = now
        for driver in _targets(host, tables):
            moved = replace(host, driver=driver)
            then = next((i for i, c in enumerate(found[:best]) if c.runs_on(moved)), best)
            if then >= best:
                continue
            fleet = [moved if i == place else other for i, other in enumerate(hosts)]
            shared = next((c for c in found if all(c.runs_on(h) for h in fleet)), None)
            out.append(
                {
                    "host": host.name,
                    "from": host.driver,
                    "to": driver,
                    "now": found[now].document() if now < len(found) else None,
                    "unlocks": found[then].document(),
                    "unlocks_text": found[then].text,
                    "everywhere": shared.document() if shared is not None and shared is not common else None,
                }
            )
            best = then
    return out


def plan(fleet: Fleet, tables: Tables) -> dict[str, Any]:
    """``fleet plan``: per wish the newest combination for all hosts, the fewest images, and upgrades. Pure."""
    gpu = any(host.gpus for host in fleet.hosts)
    wishes = fleet.wishes or (Wish(frameworks=("torch",)),)
    rows = []
    for wish in wishes:
        found = candidates(wish, tables, gpu=gpu)
        common = next((c for c in found if all(c.runs_on(host) for host in fleet.hosts)), None)
        images = [common] if common else _cover(found, fleet.hosts)
        runs = [
            {
                "host": host.name,
                "count": host.count,
                "image": next((i for i, image in enumerate(images) if image.runs_on(host)), None),
                "newest": next((c.document() for c in found if c.runs_on(host)), None),
            }
            for host in fleet.hosts
        ]
        rows.append(
            {
                "wish": wish.name,
                "everywhere": common.document() if common else None,
                "images": [image.document() | {"text": image.text} for image in images],
                "hosts": runs,
                "uncovered": [row["host"] for row in runs if row["image"] is None],
                "upgrades": _upgrades(found, fleet.hosts, tables),
            }
        )
    return {"schema": SCHEMA, "wishes": rows, "images": _distinct(rows), "machines": sum(h.count for h in fleet.hosts)}


def _distinct(rows: Sequence[Mapping[str, Any]]) -> int:
    return len({image["text"] for row in rows for image in row["images"]})


__all__ = ["Fleet", "Host", "Wish", "candidates", "check", "load", "loads", "on_host", "plan"]
