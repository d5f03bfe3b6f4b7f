"""Will it work, on which driver and GPU, and why not: one pure function over a request and the tables.

``judge`` is cheap (tens of microseconds); the nearest combinations that work are searched for only when they are
asked for (``Verdict.nearest``), each judged by the same function.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from envforge.compat import Tables
from envforge.judging import frameworks, hardware, images, packages
from envforge.judging.records import Answer, Chosen, Finding, FrameworkRequest, Request, Severity, State
from envforge.versions import is_version, key, series

if TYPE_CHECKING:
    from envforge.spec import EnvSpec

__all__ = ["Answer", "Finding", "FrameworkRequest", "Nearest", "Request", "Verdict", "judge", "request_from_spec"]

SCHEMA = 1
# Causes are told in this order: driver, CUDA, Python, framework, the rest.
_ORDER = (
    ("driver", "forward", "minor-version", "ptx-needs-driver", "base-requires-driver"),
    ("no-kernels", "ptx", "gpu", "jetson", "kernels", "toolkit", "unknown-gpu"),
    (
        "cuda",
        "two-cuda",
        "label",
        "no-such",
        "no-cuda",
        "index",
        "default-index",
        "broken",
        "cudnn",
        "two-cudnn",
        "shared-library",
    ),
    ("python", "no-wheel"),
)
_SEVERITIES = ("conflict", "unverified", "limit", "warning", "info")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nearest:
    """A combination that works: what to change, and its own verdict."""

    changes: tuple[str, ...]
    verdict: Answer
    request: Request

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {"changes": list(self.changes), "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to one request. ``chosen`` holds the frameworks as decided; ``cuda`` the series they run with."""

    request: Request
    verdict: Answer
    cuda: str | None
    cudnn: str | None
    driver: dict[str, object]
    gpus: tuple[dict[str, object], ...]
    findings: tuple[Finding, ...]
    chosen: tuple[Chosen, ...] = field(compare=False)
    tables: Tables = field(compare=False, repr=False)

    @property
    def works(self) -> bool:
        """Whether it is not a conflict."""
        return self.verdict != "conflict"

    @property
    def conflicts(self) -> tuple[Finding, ...]:
        """The findings that make it a conflict."""
        return tuple(found for found in self.findings if found.severity == "conflict")

    @cached_property
    def nearest(self) -> tuple[Nearest, ...]:
        """The combinations nearest to the request that work, smallest change first; empty unless it is a conflict."""
        if self.verdict != "conflict":
            return ()
        from envforge.nearest import search

        return search(self)

    def document(self) -> dict[str, Any]:
        """The JSON document of ``check``."""
        return {
            "schema": SCHEMA,
            "name": self.request.name,
            "verdict": self.verdict,
            "python": self.request.python,
            "platform": self.request.platform,
            "cuda": self.cuda,
            "cudnn": self.cudnn,
            "frameworks": [
                {
                    "name": item.name,
                    "version": item.version + (f"+{item.label}" if item.label else ""),
                    "accelerator": item.accelerator,
                    "cuda": item.cuda,
                    "build": item.build.cuda if item.build else None,
                }
                for item in self.chosen
            ],
            "driver": dict(self.driver),
            "gpus": [dict(item) for item in self.gpus],
            "findings": [found.document() for found in self.findings],
            "nearest": [found.document() for found in self.nearest],
        }


def judge(request: Request, tables: Tables) -> Verdict:
    """Judge one request. Never raises for what a request can hold: faults become findings."""
    state = State()
    if request.python.count(".") == 2 and is_version(request.python):
        request = replace(request, python=series(request.python))
    _interpreter(request, tables, state)
    packages.read(request, state)
    frameworks.choose(request, tables, state)
    hardware.judge_driver(request, tables, state)
    packages.judge_packages(request, tables, state)
    images.judge_base(request, tables, state)
    hardware.judge_gpus(request, tables, state)
    return Verdict(
        request=request,
        verdict=_total(state),
        cuda=state.cuda,
        cudnn=state.cudnn,
        driver=state.driver,
        gpus=tuple(state.gpus),
        findings=_sorted(state.findings),
        chosen=tuple(state.chosen),
        tables=tables,
    )


def _interpreter(request: Request, tables: Tables, state: State) -> None:
    row = tables.python_row(request.python)
    if row is not None:
        if row["ends"] <= images.CHECKED:
            state.add(
                "warning",
                "python-ended",
                f"support of Python {request.python} ended {row['ends']}",
                "move to a newer Python when the frameworks allow it",
            )
        return
    rows = tables.raw("rules")["pythons"]
    parts = request.python.split(".")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        state.add("conflict", "bad-python", f"{request.python!r} is not a Python version", 'write it like "3.11"')
    elif key(request.python) > key(rows[-1]["python"]):
        state.add("unverified", "python-newer-than-tables", f"Python {request.python} is newer than the tables")
    else:
        state.add(
            "conflict",
            "no-such-python",
            f"Python {request.python} cannot be used here",
            f"{rows[0]['python']} to {rows[-1]['python']} are known",
        )


def _total(state: State) -> Answer:
    found = {item.severity for item in state.findings}
    if "conflict" in found:
        return "conflict"
    if "unverified" in found:
        return "unverified"
    return "ok-with-limits" if "limit" in found else "ok"


@lru_cache(maxsize=512)
def _place(severity: Severity, reference: str) -> int:
    """Where a finding stands: conflicts first, and within a severity in the order of causes."""
    place = next((number for number, starts in enumerate(_ORDER) if reference.startswith(starts)), len(_ORDER))
    return _SEVERITIES.index(severity) * 100 + place


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    if len(findings) < 2:
        return tuple(findings)
    return tuple(sorted(dict.fromkeys(findings), key=lambda f: _place(f.severity, f.reference)))


def _oldest(drivers: tuple[str, ...]) -> str | None:
    """The oldest of the target drivers: what runs there is judged; an unreadable one is judged as it is."""
    unreadable = [text for text in drivers if not is_version(text)]
    return unreadable[0] if unreadable else min(drivers, key=key, default=None)


def request_from_spec(spec: EnvSpec) -> Request:
    """The request a spec amounts to; uses the fields of the record only."""
    cuda = spec.cuda
    return Request(
        name=spec.name,
        python=spec.python,
        platform=spec.platform,
        base=spec.base.image,
        glibc=spec.targets.glibc,
        cuda=cuda.version if cuda else None,
        cuda_source=cuda.source if cuda else None,
        toolchain=cuda.toolchain if cuda else "none",
        compat=cuda.compat if cuda else False,
        cudnn=cuda.cudnn if cuda else None,
        frameworks=tuple(
            FrameworkRequest(
                name=name,
                version=item.version,
                extras=item.extras,
                accelerator=item.accelerator,
                # A label of the spec's own says nothing; its address may.
                index=spec.indexes[item.index].url if item.index and item.index in spec.indexes else item.index,
            )
            for name, item in spec.frameworks.items()
        ),
        packages=spec.packages.pip,
        conda=spec.packages.conda,
        bound=tuple((pattern, f"{label} {row.url}") for label, row in spec.indexes.items() for pattern in row.packages),
        driver=_oldest(spec.targets.drivers),
        gpus=spec.targets.gpus,
        allow_untested=spec.allow_untested,
    )
