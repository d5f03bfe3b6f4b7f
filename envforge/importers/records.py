"""What an import gives, and the draft that every format fills. Pure.

A format calls ``requirement``, ``conda``, ``apt``, ``index`` …; each returns the fate of what it was given, so that
every line of the file is accounted for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from envforge import spec as specs
from envforge.compat import Tables
from envforge.errors import SpecError
from envforge.judging.records import Finding, Severity
from envforge.spec import EnvSpec
from envforge.yamlmodel import Pattern

Fate = Literal["kept", "changed", "ignored", "not-understood"]
Reader = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One entry of the file: ``number`` from 1, ``file`` when it stands in an included file."""

    number: int
    text: str
    fate: Fate
    why: str = ""
    file: str = ""

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {"number": self.number, "text": self.text, "fate": self.fate, "why": self.why, "file": self.file}


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """The spec, what became of each line, and what a person should know. ``why``: spec path -> comment."""

    format: str
    spec: EnvSpec
    lines: tuple[Line, ...]
    notes: tuple[Finding, ...]
    why: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How many lines met which fate."""
        found = {"lines": len(self.lines)}
        for fate in ("kept", "changed", "ignored", "not-understood"):
            found[fate] = sum(1 for line in self.lines if line.fate == fate)
        return found


def unreadable(place: str, problem: str, hint: str = "") -> SpecError:
    """The error of a file that cannot be read at all."""
    return SpecError("import-unreadable", f"{place}: {problem}", hint=hint or "see: envforge import --help")


def fits(pattern: Pattern, text: str) -> bool:
    """Whether a spec accepts this text there."""
    return re.fullmatch(pattern.expression, text) is not None


@dataclass(slots=True)
class Draft:
    """A spec in the making."""

    name: str
    place: str
    tables: Tables
    read: Reader = lambda name: None
    strict: bool = False
    file: str = ""
    python: str | None = None
    base: str = "auto"
    platform: str = "linux/amd64"
    workdir: str = "/work"
    frameworks: dict[str, dict[str, Any]] = field(default_factory=dict)
    pip: list[str] = field(default_factory=list)
    conda: list[str] = field(default_factory=list)
    apt: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    indexes: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: list[tuple[str, str, str]] = field(default_factory=list)  # (version, who says so, source)
    env: dict[str, str] = field(default_factory=dict)
    files: list[specs.FileSpec] = field(default_factory=list)
    user: specs.UserSpec | None = None
    gpus: list[str] = field(default_factory=list)
    cudnn: str | None = None
    lines: list[Line] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    included: set[str] = field(default_factory=set)
    last: tuple[str, int] = ("", 0)

    def line(self, number: int, text: str, fate: Fate, why: str = "") -> None:
        """Account for one entry."""
        shown = " ".join(text.split())
        shown = re.sub(r"://[^/@\s]+@", "://***@", shown)
        self.lines.append(Line(number=number, text=shown[:500], fate=fate, why=why, file=self.file))

    def note(self, severity: Severity, reference: str, message: str, hint: str = "") -> None:
        """Tell something once."""
        found = Finding(reference=reference, severity=severity, message=message, hint=hint)
        if found not in self.notes:
            self.notes.append(found)

    def claim(self, version: str, who: str, source: str) -> None:
        """Somebody in the file says which CUDA it is."""
        if fits(specs.CUDA, version):
            self.claims.append((version, who, source))
