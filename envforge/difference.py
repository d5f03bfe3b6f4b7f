"""Two environments side by side: packages, CUDA libraries, size, test results. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envforge.inventory import Inventory, normalise
from envforge.lock import Lock


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two. ``packages``: (kind, name) -> version; ``cuda``: library -> version of every copy.

    ``tests`` name -> outcome; ``size_bytes`` None and ``tests`` empty: not known (a lock nothing was built from).
    """

    name: str
    source: str  # "image", "prefix", "interpreter" or "lock"
    python: str
    base: str
    packages: Mapping[tuple[str, str], str]
    cuda: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int | None = None
    tests: Mapping[str, str] = field(default_factory=dict)


def of_lock(lock: Lock) -> Side:
    """What a lock says."""
    packages = {("pip", normalise(one.name)): one.version for one in lock.pip}
    packages |= {("conda", one.name): f"{one.version} {one.build}" for one in lock.conda}
    packages |= {("apt", name): version for name, version in lock.apt}
    base = lock.base.image + (f"@{lock.base.digest}" if lock.base.digest else "")
    return Side(name=lock.name, source="lock", python=lock.python, base=base, packages=packages)


def of_inventory(
    name: str,
    source: str,
    found: Inventory,
    *,
    base: str = "",
    size_bytes: int | None = None,
    tests: Mapping[str, str] | None = None,
) -> Side:
    """What is installed."""
    packages = {("pip", normalise(one.name)): one.version for one in found.pip}
    packages |= {("conda", one.name): f"{one.version} {one.build}" for one in found.conda}
    packages |= {("apt", one): version for one, version in found.apt}
    copies: dict[str, list[str]] = {}
    for library in found.cuda:
        if not library.stub:
            copies.setdefault(library.library, []).append(f"{library.version} ({library.owner or 'no package'})")
    return Side(
        name=name,
        source=source,
        python=found.python,
        base=base,
        packages=packages,
        cuda={library: ", ".join(sorted(set(versions))) for library, versions in sorted(copies.items())},
        size_bytes=size_bytes,
        tests=tests or {},
    )


def compare(a: Side, b: Side, *, apt: bool = True) -> dict[str, Any]:
    """The document of `diff --json` without its schema. Only what both sides can know is compared.

    A lock knows the pip and conda packages it installs and nothing of the base: against an image, packages of
    Debian and of the base's own Python are left out.
    """
    locked = "lock" in (a.source, b.source) and a.source != b.source
    kinds = {"pip", "conda"} | ({"apt"} if apt and not locked else set())
    rows = []
    for kind, name in sorted({key for key in (*a.packages, *b.packages) if key[0] in kinds}):
        left, right = a.packages.get((kind, name)), b.packages.get((kind, name))
        if left != right:
            change = _change(kind, left, right)
            rows.append({"kind": kind, "name": name, "a": left, "b": right, "change": change})
    cuda = [] if locked or a.source == "lock" else _mapping(a.cuda, b.cuda, "library")
    tests = _mapping(a.tests, b.tests, "name") if a.tests and b.tests else []
    fields = [] if locked else [one for one in _fields(a, b) if one["a"] != one["b"]]
    size = None
    if a.size_bytes is not None and b.size_bytes is not None:
        size = {"a": a.size_bytes, "b": b.size_bytes, "change": b.size_bytes - a.size_bytes}
    return {
        "a": {"name": a.name, "source": a.source},
        "b": {"name": b.name, "source": b.source},
        "status": "different" if rows or cuda or tests or fields else "same",
        "fields": fields,
        "packages": rows,
        "cuda_libraries": cuda,
        "size": size,
        "tests": tests,
        "tests_known": bool(a.tests and b.tests),
    }


def _fields(a: Side, b: Side) -> list[dict[str, str]]:
    return [{"name": "python", "a": a.python, "b": b.python}, {"name": "base", "a": a.base, "b": b.base}]


def _mapping(a: Mapping[str, str], b: Mapping[str, str], key: str) -> list[dict[str, str | None]]:
    return [{key: name, "a": a.get(name), "b": b.get(name)} for name in sorted({*a, *b}) if a.get(name) != b.get(name)]


def _change(kind: str, left: str | None, right: str | None) -> str:
    """added, removed, upgraded, downgraded, or rebuilt (same version, other build)."""
    from packaging.version import InvalidVersion, Version

    if left is None:
        return "added"
    if right is None:
        return "removed"
    old, new = left.split(" ")[0], right.split(" ")[0]
    if old == new:
        return "rebuilt"
    if kind == "apt":
        return "changed"
    try:
        return "upgraded" if Version(new) > Version(old) else "downgraded"
    except InvalidVersion:
        return "changed"
