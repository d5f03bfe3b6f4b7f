"""Versions and bounds, fast enough to judge thousands of combinations a second.

Only what the tables need of PEP 440: releases, a/b/rc, post, dev and local labels. Comparison ignores the local
label and trailing zeros, as the standard says for bounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

# (release without trailing zeros, pre-release rank, pre number, post, dev): compares as versions do.
Key = tuple[tuple[int, ...], int, int, int, int]

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|c|rc|alpha|beta|pre|preview)[-_.]?(?P<pre_n>\d*))?"
    r"(?:(?:[-_.]?(?:post|rev|r)[-_.]?(?P<post>\d*))|-(?P<post2>\d+))?"
    r"(?:[-_.]?dev[-_.]?(?P<dev>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE,
)
_PRE = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_FINAL = 3
_NO_DEV = 1 << 60


@lru_cache(maxsize=8192)
def key(text: str) -> Key:
    """The sorting key of a version. Raises ``ValueError`` when the text is no version."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre, dev = match["pre"], match["dev"]
    post = match["post"] if match["post"] is not None else match["post2"]
    # X.devN comes before X.a1: it has no pre part but sorts below every pre-release.
    rank = _PRE[pre.lower()] if pre else (-1 if dev is not None and post is None else _FINAL)
    return (
        tuple(release),
        rank,
        int(match["pre_n"] or 0) if pre else 0,
        -1 if post is None else int(post or 0),
        _NO_DEV if dev is None else int(dev or 0),
    )


@lru_cache(maxsize=4096)
def is_version(text: str) -> bool:
    """Whether the text is a version."""
    return _VERSION.fullmatch(text.strip()) is not None


@lru_cache(maxsize=4096)
def is_prerelease(text: str) -> bool:
    """a, b, rc and dev releases."""
    found = key(text)
    return found[1] != _FINAL or found[4] != _NO_DEV


@lru_cache(maxsize=4096)
def split_local(text: str) -> tuple[str, str | None]:
    """``2.0.1+cu118`` -> (``2.0.1``, ``cu118``)."""
    public, plus, local = text.strip().partition("+")
    return public, (local.lower() if plus else None)


@lru_cache(maxsize=4096)
def series(text: str) -> str:
    """Major and minor: ``12.4.1`` -> ``12.4``."""
    return ".".join(text.strip().split(".")[:2])


@lru_cache(maxsize=4096)
def major(text: str) -> str:
    """The part before the first point."""
    return text.strip().split(".")[0]


@dataclass(frozen=True, slots=True)
class Range:
    """A set of versions: an interval with single exclusions. ``text`` is what was written."""

    text: str = ""
    lower: Key | None = None
    lower_in: bool = True
    upper: Key | None = None
    upper_in: bool = False
    excluded: frozenset[Key] = frozenset()

    def __contains__(self, version: str) -> bool:
        found = key(version)
        if found in self.excluded:
            return False
        if self.lower is not None and (found < self.lower or (found == self.lower and not self.lower_in)):
            return False
        return not (self.upper is not None and (found > self.upper or (found == self.upper and not self.upper_in)))

    def meet(self, other: Range) -> Range:
        """The versions in both."""
        lower, lower_in = self.lower, self.lower_in
        if other.lower is not None:
            if lower is None or other.lower > lower:
                lower, lower_in = other.lower, other.lower_in
            elif other.lower == lower:
                lower_in = lower_in and other.lower_in
        upper, upper_in = self.upper, self.upper_in
        if other.upper is not None:
            if upper is None or other.upper < upper:
                upper, upper_in = other.upper, other.upper_in
            elif other.upper == upper:
                upper_in = upper_in and other.upper_in
        text = ",".join(part for part in (self.text, other.text) if part)
        return Range(text, lower, lower_in, upper, upper_in, self.excluded | other.excluded)

    @property
    def empty(self) -> bool:
        """Whether no version can be in it."""
        if self.lower is None or self.upper is None:
            return False
        if self.lower > self.upper:
            return True
        if self.lower == self.upper:
            return not (self.lower_in and self.upper_in) or self.lower in self.excluded
        return False


ANY = Range()
_CLAUSE = re.compile(r"(===|==|!=|~=|<=|>=|<|>)\s*([^\s,;]+)")


def _clause(operator: str, version: str) -> Range:
    if operator in ("==", "===") and not version.endswith(".*"):
        found = key(version)
        return Range("", found, True, found, True)
    if operator in ("==", "!=") and version.endswith(".*"):
        parts = [int(part) for part in version[:-2].split(".")]
        low, high = ".".join(map(str, parts)), ".".join(map(str, [*parts[:-1], parts[-1] + 1]))
        return Range("", key(low), True, key(high), False) if operator == "==" else ANY
    if operator == "!=":
        return Range("", excluded=frozenset({key(version)}))
    if operator == "~=":
        parts = [int(part) for part in re.match(r"\d+(?:\.\d+)*", version)[0].split(".")]  # type: ignore[index]
        high = ".".join(map(str, [*parts[:-2], parts[-2] + 1])) if len(parts) > 1 else str(parts[0] + 1)
        return Range("", key(version), True, key(high), False)
    if operator == ">=":
        return Range("", key(version), True)
    if operator == ">":
        return Range("", key(version), False)
    return Range("", None, True, key(version), operator == "<=")


@lru_cache(maxsize=4096)
def parse_range(text: str) -> Range:
    """``>=1.2,<2`` as a Range. Raises ``ValueError`` when a part cannot be read."""
    body = text.strip()
    found = ANY
    rest = _CLAUSE.sub("", body).replace(",", "").strip()
    if rest:
        raise ValueError(f"not a version bound: {text!r}")
    for operator, version in _CLAUSE.findall(body):
        found = found.meet(_clause(operator, version))
    return Range(body, found.lower, found.lower_in, found.upper, found.upper_in, found.excluded)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A pip requirement: canonical name, extras (canonical), bounds, exact version when pinned, local label."""

    text: str
    name: str
    extras: tuple[str, ...] = ()
    range: Range = ANY
    pinned: str | None = None
    local: str | None = None
    url: str | None = None


_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[^\]]*)\])?\s*"
    r"(?:@\s*(?P<url>\S+)|\(?(?P<spec>[^;()@#]*)\)?)?\s*(?P<rest>[;#].*)?"
)


def canonical(name: str) -> str:
    """A package or extra name in its one spelling."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@lru_cache(maxsize=4096)
def parse_requirement(text: str) -> Requirement:
    """Read one requirement. Raises ``ValueError`` when it is none."""
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"not a requirement: {text!r}")
    extras = tuple(canonical(part) for part in (match["extras"] or "").split(",") if part.strip())
    spec = (match["spec"] or "").strip()
    local = None
    pinned = None
    exact = re.fullmatch(r"={2,3}\s*([^\s,*]+)", spec)
    if exact is not None:
        pinned, local = split_local(exact[1])
    bounds = parse_range(re.sub(r"\+[A-Za-z0-9.]+", "", spec))
    return Requirement(text.strip(), canonical(match["name"]), extras, bounds, pinned, local, match["url"])
