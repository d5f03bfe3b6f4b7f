"""Budgets of size and time: what is over, and where it went by step, layer and package, largest first."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from envforge.errors import EnvforgeError

if TYPE_CHECKING:
    from envforge.engine import Built, Engine
    from envforge.inventory import Inventory
    from envforge.spec import BudgetSpec

_SHOWN = 10


def over(budget: BudgetSpec, built: Built, seconds: float, engine: Engine) -> tuple[str, ...]:
    """Lines for the error, () when the build is within its budget. The image is looked into only when it is too big."""
    found: list[str] = []
    if budget.size_mb is not None and built.size_bytes > budget.size_mb * 1_000_000:
        found.append(f"size {built.size_bytes / 1e6:.0f} MB, budget {budget.size_mb} MB")
        found += _largest("layers", layers(engine, built.image))
        with suppress(EnvforgeError):  # the numbers help; without them the size still stands
            from envforge import inventory

            found += _largest("packages", packages(inventory.of_image(engine, built.image, hashing=False)))
    if budget.build_seconds is not None and seconds > budget.build_seconds:
        found.append(f"build {seconds:.0f} s, budget {budget.build_seconds} s")
        steps = sorted(((step.seconds, step.name) for step in built.steps if not step.cached), reverse=True)
        found += [f"  {spent:8.1f} s  {' '.join(name.split())[:80]}" for spent, name in steps[:_SHOWN] if spent >= 0.05]
    return tuple(found)


def _largest(title: str, rows: Iterable[tuple[int, str]]) -> list[str]:
    ordered = sorted(rows, reverse=True)
    lines = [f"  {size / 1e6:8.1f} MB  {name}" for size, name in ordered[:_SHOWN] if size]
    rest = sum(size for size, _ in ordered[_SHOWN:])
    if rest:
        lines.append(f"  {rest / 1e6:8.1f} MB  {len(ordered) - _SHOWN} more {title}")
    return [f"largest {title}:", *lines] if lines else []


def layers(engine: Engine, image: str) -> list[tuple[int, str]]:
    """(bytes, instruction) of every layer with content; [] for an engine without layers."""
    history = getattr(engine, "history", None)
    if history is None:
        return []
    return [(size, _short(text)) for size, text in history(image) if size]


def _short(text: str) -> str:
    """An instruction of the history in one line, its end shown: the start is the same in every step."""
    line = " ".join(text.replace("/bin/sh -c", "").split())
    return line if len(line) <= 90 else f"{line[:30]} … {line[-57:]}"


def packages(found: Inventory) -> list[tuple[int, str]]:
    """(bytes, name and version) of every pip and conda package, by the files it claims. Pure."""
    rows = [(list(one.record or ()), f"{one.name} {one.version}") for one in found.pip]
    rows += [(list(one.record), f"{one.name} {one.version}") for one in found.conda]
    return [(sum(found.files[path].size for path in claimed if path in found.files), name) for claimed, name in rows]
