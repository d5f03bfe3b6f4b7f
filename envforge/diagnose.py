"""Error text in, cause and fix out. Pure over the text; the patterns are data (data/pitfalls.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from envforge import resources

Role = Literal["cause", "symptom", "noise"]
_ROLE_ORDER: dict[str, int] = {"cause": 0, "symptom": 1, "noise": 2}
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# A build log can be hundreds of MB; a person's question is at its end, and the first error is kept too.
MAX_CHARS = 4_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Pitfall:
    """One known error text.

    ``pattern`` is searched; ``near`` (optional) must be found within 40 lines of it; ``less`` names two
    captured numbers of which the first must be smaller. ``over`` lists pitfalls that this one replaces
    when both are found. ``role``: a cause, a symptom (the cause usually stands elsewhere) or noise that
    looks like an error. ``cause`` and ``fix`` may use the pattern's named groups in braces.
    """

    reference: str
    area: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    versions: str
    source: tuple[str, ...]
    role: Role = "cause"
    confidence: str = "high"
    near: re.Pattern[str] | None = None
    less: tuple[str, str] | None = None
    over: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A pitfall found in a text; ``line`` is the text line it was seen on, ``number`` its place (from 1)."""

    reference: str
    area: str
    cause: str
    fix: str
    versions: str
    line: str
    number: int
    role: Role
    confidence: str
    source: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The JSON form of `diagnose`."""
        return {
            "reference": self.reference,
            "area": self.area,
            "cause": self.cause,
            "fix": self.fix,
            "versions": self.versions,
            "line": self.line,
            "line_number": self.number,
            "role": self.role,
            "confidence": self.confidence,
            "source": list(self.source),
        }


def _pitfall(row: Mapping[str, Any]) -> Pitfall:
    near = row.get("near")
    less = row.get("less")
    return Pitfall(
        reference=row["id"],
        area=row["area"],
        pattern=re.compile(row["pattern"], re.MULTILINE),
        cause=row["cause"],
        fix=row["fix"],
        versions=row["versions"],
        source=tuple(row["source"]),
        role=row.get("role", "cause"),
        confidence=row.get("confidence", "high"),
        near=re.compile(near) if near else None,
        less=(less[0], less[1]) if less else None,
        over=tuple(row.get("over", ())),
    )


@lru_cache(maxsize=1)
def pitfalls() -> tuple[Pitfall, ...]:
    """The known error texts, in file order."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is there
    rows = yaml.load(resources.data("pitfalls.yaml").read_text(encoding="utf-8"), Loader=loader)
    return tuple(_pitfall(row) for row in rows["pitfalls"])


def clean(text: str) -> str:
    """``text`` as a person reads it: no colour codes, lines overwritten by a progress bar kept as lines, bounded."""
    if len(text) > MAX_CHARS:
        text = text[: MAX_CHARS // 2] + "\n" + text[-MAX_CHARS // 2 :]
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def _around(text: str, start: int, end: int, lines: int = 40) -> str:
    """The text from ``lines`` lines before ``start`` to as many after ``end``."""
    left = start
    for _ in range(lines + 1):
        left = text.rfind("\n", 0, max(left, 0))
        if left < 0:
            left = 0
            break
    right = end
    for _ in range(lines + 1):
        found = text.find("\n", right + 1)
        if found < 0:
            right = len(text)
            break
        right = found
    return text[left:right]


def _search(pitfall: Pitfall, text: str) -> re.Match[str] | None:
    """The first place where the pitfall really applies."""
    for found in pitfall.pattern.finditer(text):
        if pitfall.near and not pitfall.near.search(_around(text, found.start(), found.end())):
            continue
        if pitfall.less and not float(found[pitfall.less[0]]) < float(found[pitfall.less[1]]):
            continue
        return found
    return None


def _filled(text: str, found: re.Match[str]) -> str:
    return text.format_map({name: value or "" for name, value in found.groupdict().items()})


def match(text: str, *, table: tuple[Pitfall, ...] | None = None) -> tuple[Match, ...]:
    """Every known cause found in ``text``, likeliest first; empty when none is known.

    Causes stand before symptoms and symptoms before noise; within one kind, sure before unsure, then in
    the order of the text, because later errors are often consequences of the first.
    """
    body = clean(text)
    hits: list[tuple[Pitfall, re.Match[str]]] = []
    for pitfall in pitfalls() if table is None else table:
        found = _search(pitfall, body)
        if found:
            hits.append((pitfall, found))
    replaced = {other for pitfall, _ in hits for other in pitfall.over}
    kept = [(pitfall, found) for pitfall, found in hits if pitfall.reference not in replaced]
    kept.sort(
        key=lambda hit: (_ROLE_ORDER[hit[0].role], hit[0].confidence == "low", hit[1].start(), hit[0].reference)
    )
    return tuple(_made(pitfall, found, body) for pitfall, found in kept)


def _made(pitfall: Pitfall, found: re.Match[str], body: str) -> Match:
    # A pattern over several lines is shown by its last line, which is where the error itself stands.
    end = max(found.start(), found.end() - 1)
    begin = body.rfind("\n", 0, end) + 1
    stop = body.find("\n", end)
    return Match(
        reference=pitfall.reference,
        area=pitfall.area,
        cause=_filled(pitfall.cause, found),
        fix=_filled(pitfall.fix, found),
        versions=pitfall.versions,
        line=body[begin : stop if stop >= 0 else len(body)].strip()[:400],
        number=body.count("\n", 0, begin) + 1,
        role=pitfall.role,
        confidence=pitfall.confidence,
        source=pitfall.source,
    )
