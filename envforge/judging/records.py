"""What goes into a verdict and what comes out of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from envforge.compat import Build, Release
from envforge.versions import Requirement

# conflict: it will not work. unverified: newer than the tables. limit: works, with something to know.
# warning and info do not change the verdict.
Severity = Literal["conflict", "unverified", "limit", "warning", "info"]
Answer = Literal["ok", "ok-with-limits", "unverified", "conflict"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkRequest:
    """One framework as asked for. ``version`` may carry a local label; ``None`` means the newest that fits."""

    name: str
    version: str | None = None
    extras: tuple[str, ...] = ()
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    index: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Everything a verdict depends on.

    ``base``: an image reference or ``auto``. ``cuda``: a version, a series or only a major. ``cuda_source``:
    wheels, base, conda, or ``None`` when nobody said. ``bound``: (package pattern, index label or URL) pairs.
    ``glibc``: the oldest glibc of the targets. ``platform``: linux/amd64 or linux/arm64.
    """

    name: str = ""
    python: str = "3.11"
    platform: str = "linux/amd64"
    base: str = "auto"
    glibc: str | None = None
    cuda: str | None = None
    cuda_source: str | None = None
    toolchain: str = "none"
    compat: bool = False
    cudnn: str | None = None
    frameworks: tuple[FrameworkRequest, ...] = ()
    packages: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    bound: tuple[tuple[str, str], ...] = ()
    driver: str | None = None
    gpus: tuple[str, ...] = ()
    allow_untested: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing to say. ``reference`` is stable; ``hint`` is the next step."""

    reference: str
    severity: Severity
    message: str
    hint: str = ""

    def document(self) -> dict[str, str]:
        """The JSON form."""
        return {
            "reference": self.reference,
            "severity": self.severity,
            "message": self.message,
            "hint": self.hint,
        }


@dataclass(slots=True)
class Chosen:
    """A framework with everything decided that could be. ``cuda`` is the series its build runs with."""

    name: str
    version: str
    label: str | None
    accelerator: Literal["cpu", "cuda"]
    release: Release | None = None
    build: Build | None = None
    cuda: str | None = None
    index: str = "default"
    nightly: bool = False

    @property
    def text(self) -> str:
        """``torch 2.0.1+cu118``."""
        return f"{self.name} {self.version}" + (f"+{self.label}" if self.label else "")


@dataclass(slots=True)
class State:
    """What the parts hand to each other while one request is judged."""

    findings: list[Finding] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    on_gpu: list[Chosen] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)
    cuda: str | None = None
    cudnn: str | None = None
    cudnn_owner: str | None = None
    driver: dict[str, object] = field(default_factory=dict)
    driver_answer: str = "unknown"
    gpus: list[dict[str, object]] = field(default_factory=list)
    claims: Mapping[str, str] = field(default_factory=dict)
    cuda_low: bool = False

    def add(self, severity: Severity, reference: str, message: str, hint: str = "") -> None:
        """Record one finding."""
        self.findings.append(Finding(reference=reference, severity=severity, message=message, hint=hint))
