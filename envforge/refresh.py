"""A new lock beside the old one, built and tested, and what moved between them; accepted by a person.

The candidate stands in a folder of its own (``refreshed/lockfiles/NAME`` and ``refreshed/NAME.json``); the project's
lock is untouched until it is accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge import difference, paths, record
from envforge import lock as lockfile
from envforge.errors import LockError

if TYPE_CHECKING:
    from envforge.lock import Lock

SLOWER = 0.10  # a time is told when it moved by more than this part of it

_CUDA = re.compile(r"nvidia-|cuda-|triton$|libcu|cudnn|nccl")


def outcome_path(folder: Path, name: str) -> Path:
    """Where a candidate's build and test result is kept."""
    return folder / f"{name}.json"


def moved(old: Lock | None, new: Lock, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """The document for one environment. ``before``: the record of the old lock's last build, None when never built.

    ``after``: the result of the candidate, with ``status``, ``checks``, ``size_bytes`` and ``seconds``.
    """
    sides = [difference.of_lock(old) if old else None, difference.of_lock(new)]
    found: dict[str, Any] = {"name": new.name, "status": after["status"], "reason": after.get("reason", "")}
    found["old_digest"] = old.inputs_digest if old else None
    found["new_digest"] = new.inputs_digest
    if sides[0] is not None and sides[1] is not None:
        compared = difference.compare(sides[0], sides[1])
        packages, fields = compared["packages"], compared["fields"]
    else:
        packages = [
            {"kind": kind, "name": name, "a": None, "b": version, "change": "added"}
            for (kind, name), version in sorted(difference.of_lock(new).packages.items())
        ]
        fields = []
    found["fields"] = fields
    found["cuda_libraries"] = [row for row in packages if _CUDA.match(row["name"])]
    found["packages"] = [row for row in packages if not _CUDA.match(row["name"])]
    found["size"] = _number((before or {}).get("size_bytes"), after.get("size_bytes"))
    found["checks"] = _checks((before or {}).get("checks", ()), after.get("checks", ()))
    found["times"] = _times((before or {}).get("checks", ()), after.get("checks", ()))
    found["known_before"] = before is not None
    found["moved"] = bool(packages or fields or (old is not None and old.inputs_digest != new.inputs_digest))
    return found


def _number(a: Any, b: Any) -> dict[str, Any] | None:
    return {"a": int(a), "b": int(b), "change": int(b) - int(a)} if a and b else None


def _checks(before: Any, after: Any) -> list[dict[str, Any]]:
    old = {str(one["name"]): str(one["outcome"]) for one in before}
    new = {str(one["name"]): str(one["outcome"]) for one in after}
    if not old:  # nothing to compare with: only what is not well is told
        return [{"name": n, "a": None, "b": o} for n, o in sorted(new.items()) if o in ("failed", "error")]
    names = sorted({*old, *new})
    return [{"name": n, "a": old.get(n), "b": new.get(n)} for n in names if old.get(n) != new.get(n)]


def _times(before: Any, after: Any) -> list[dict[str, Any]]:
    """Checks whose time moved by more than a tenth and a tenth of a second."""
    old = {str(one["name"]): float(one.get("seconds") or 0) for one in before}
    rows = []
    for one in after:
        a, b = old.get(str(one["name"])), float(one.get("seconds") or 0)
        if a is not None and abs(b - a) > max(SLOWER * a, 0.1):
            rows.append({"name": str(one["name"]), "a": a, "b": b})
    return rows


def text(found: Mapping[str, Any]) -> list[str]:
    """The lines a person reads."""
    lines = [f"{found['name']}: {found['status']}" + (f" — {found['reason']}" if found["reason"] else "")]
    if not found["moved"]:
        return [*lines, "  nothing moved"]
    lines += [f"  {one['name']}: {one['a'] or '-'} -> {one['b'] or '-'}" for one in found["fields"]]
    for title, key in (("", "packages"), ("CUDA library ", "cuda_libraries")):
        for one in found[key]:
            lines.append(f"  {one['change']:<10} {title}{one['name']}: {one['a'] or '-'} -> {one['b'] or '-'}")
    if found["size"]:
        size = found["size"]
        lines.append(f"  size {size['a'] / 1e6:.1f} MB -> {size['b'] / 1e6:.1f} MB ({size['change'] / 1e6:+.1f} MB)")
    lines += [f"  check {one['name']}: {one['a'] or 'new'} -> {one['b'] or 'gone'}" for one in found["checks"]]
    lines += [f"  time {one['name']}: {one['a']:.2f} s -> {one['b']:.2f} s" for one in found["times"]]
    if not found["known_before"]:
        lines.append("  size, times and checks are not compared: the old lock was never built here")
    return lines


def candidate(
    name: str,
    folder: Path,
    *,
    make: Callable[[Path], Lock],
    prove: Callable[[Mapping[str, bytes]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Make, build and test a candidate, keep it under ``folder`` and say what moved.

    ``make(root)`` writes a new lock under ``root``; ``prove(files)`` builds and tests it. A lock that cannot be made
    raises what ``make`` raises, and the project's lock is untouched in every case.
    """
    old = lockfile.read(name)
    outcome_path(folder, name).unlink(missing_ok=True)  # the verdict on an earlier candidate
    new = make(folder)
    place = lockfile.folder(name, folder)
    files = {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}
    before = record.latest(name, old.inputs_digest) if old else None
    found = moved(old, new, before, prove(files))
    paths.write_atomic(outcome_path(folder, name), json.dumps({"schema": 1, **found}, indent=1).encode())
    return found


def accept(name: str, folder: Path) -> Path:
    """Put a tested candidate in the place of the project's lock; returns that place.

    Raises LockError ``refresh-missing`` (no candidate), ``refresh-failed`` (it did not pass) and ``refresh-changed``
    (it, or the lock it was compared with, is not the one that was shown).
    """
    again = f"envforge refresh {name}"
    try:
        shown = json.loads(outcome_path(folder, name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LockError("refresh-missing", f"there is no candidate for {name!r} in {folder}", hint=again) from error
    if shown.get("status") != "passed":
        raise LockError("refresh-failed", f"the candidate of {name!r} did not pass: {shown.get('reason')}", hint=again)
    new = lockfile.read_folder(lockfile.folder(name, folder))
    old = lockfile.read(name)
    if new.inputs_digest != shown["new_digest"] or (old.inputs_digest if old else None) != shown["old_digest"]:
        raise LockError(
            "refresh-changed", f"the locks of {name!r} are not the ones that were compared and tested", hint=again
        )
    return lockfile.write(name, new)
