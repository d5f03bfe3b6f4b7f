"""`diff A B`: two images, prefixes or locks by package, CUDA library, size and test results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from envforge.console import Console
from envforge.errors import EXIT_DIFFERENCES, EXIT_OK, LockError

if TYPE_CHECKING:
    from envforge.difference import Side

EXAMPLE = "envforge diff torch-cu121 torch-cu124"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The two sides and where to look."""
    parser.add_argument("a", metavar="A", help="a spec's name, an image, a prefix or a folder with a lock")
    parser.add_argument("b", metavar="B", help="the other one")
    parser.add_argument("--engine", choices=("auto", "docker", "local"), default="auto", help="where to look")
    parser.add_argument("--locks", action="store_true", help="compare the locks, even where images are here")


def run(args: argparse.Namespace, console: Console) -> int:
    """0 when nothing differs, 10 otherwise."""
    from envforge import difference

    sides = [_side(one, args.engine, args.locks, console) for one in (args.a, args.b)]
    if {sides[0].source, sides[1].source} > {"lock"}:
        built = next(one for one in sides if one.source != "lock")
        console.note(f"{built.name}: packages of the base are left out, a lock does not know them")
    found = difference.compare(*sides)
    console.document({"schema": 1, **found})
    _print(found, console)
    return EXIT_DIFFERENCES if found["status"] == "different" else EXIT_OK


def _side(reference: str, engine: str, locks_only: bool, console: Console) -> Side:
    from pathlib import Path

    from envforge import difference, record, subject
    from envforge import lock as locks

    folder = Path(reference)
    if (folder / locks.LOCK_FILE).is_file():
        return difference.of_lock(locks.read_folder(folder))
    found = subject.find(reference, engine=engine, python=None, console=console)
    if locks_only or not found.built:
        if found.lock is None:
            raise LockError("lock-missing", f"{reference} has no lock", hint=f"envforge lock {reference}")
        return difference.of_lock(found.lock)
    inventory = found.inventory(hashing=False)
    labels = found.labels() or {}
    source, size, tests = "interpreter", None, {}
    if found.info is not None and found.engine is not None:
        source = "image" if found.engine.name == "docker" else "prefix"
        size = found.info.size_bytes or None
        last = record.latest(found.name, labels.get("envforge.inputs-digest", ""), found.engine.name)
        tests = {str(one["name"]): str(one["outcome"]) for one in (last or {}).get("checks", [])}
    base = labels.get("envforge.base", "")
    return difference.of_inventory(found.name, source, inventory, base=base, size_bytes=size, tests=tests)


def _print(found: dict[str, Any], console: Console) -> None:
    colours = {"added": "green", "removed": "red", "upgraded": "cyan", "downgraded": "yellow"}
    a, b = found["a"], found["b"]
    console.result(f"{a['name']} ({a['source']}) -> {b['name']} ({b['source']})")
    for one in found["fields"]:
        console.result(f"  {one['name']}: {one['a'] or '-'} -> {one['b'] or '-'}")
    for one in found["packages"]:
        text = f"{one['change']:<10}"
        styled = console.style(text, colours.get(one["change"], "dim"))
        console.result(f"  {styled} {one['kind']:<5} {one['name']}: {one['a'] or '-'} -> {one['b'] or '-'}")
    for one in found["cuda_libraries"]:
        console.result(f"  CUDA library {one['library']}: {one['a'] or '-'} -> {one['b'] or '-'}")
    for one in found["tests"]:
        console.result(f"  test {one['name']}: {one['a'] or '-'} -> {one['b'] or '-'}")
    if found["size"]:
        size = found["size"]
        console.result(f"  size {size['a'] / 1e6:.0f} MB -> {size['b'] / 1e6:.0f} MB ({size['change'] / 1e6:+.0f} MB)")
    if found["status"] == "same":
        console.result("  no difference")
