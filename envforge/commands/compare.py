"""`envforge compare`: the same numbers in two environments, or files of an old one in a new one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge.console import Console
from envforge.errors import EXIT_DIFFERENCES, EXIT_OK, EXIT_SMOKE, UsageError

if TYPE_CHECKING:
    from envforge.compare import Comparison
    from envforge.inside import Environment

EXAMPLE = "envforge compare torch-cu124 tf-cpu; envforge compare --upgrade torch-cu118 torch-cu124"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="A B", help="two built environments, images or prefixes (with --upgrade: OLD NEW)"
    )
    parser.add_argument(
        "--upgrade", action="store_true", help="files written in OLD must load and give the same in NEW"
    )
    parser.add_argument("--python-a", type=Path, metavar="PATH", help="an interpreter in the place of A (or OLD)")
    parser.add_argument("--python-b", type=Path, metavar="PATH", help="an interpreter in the place of B (or NEW)")
    parser.add_argument("--framework-a", metavar="NAME", help="framework of A to compare (default: a shared one)")
    parser.add_argument("--framework-b", metavar="NAME", help="framework of B to compare (default: a shared one)")
    parser.add_argument("--strict", action="store_true", help="a default that differs counts as a difference")
    parser.add_argument("--engine", choices=["auto", "docker", "local"], default="auto", help="default: auto")
    parser.add_argument("--gpus", default="auto", help="none | auto | all | COUNT | device=0,2 (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="of all inputs and weights (default: 0)")
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS", help="limit per side (default: 300)")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import compare, inside, passthrough

    gpus = passthrough.parse_gpus(args.gpus)
    if args.timeout <= 0 or not 0 <= args.seed < 2**31:
        raise UsageError("usage", "--timeout must be above 0 and --seed between 0 and 2147483647")
    first, second = _sides(args)
    a = inside.find(first[0], python=first[1], engine=args.engine, console=console)
    b = inside.find(second[0], python=second[1], engine=args.engine, console=console)
    if args.upgrade:
        if args.framework_b not in (None, args.framework_a):
            raise UsageError("usage", "--upgrade compares a framework with itself: give --framework-a alone")
        found = compare.upgrade(
            a,
            b,
            frameworks=compare.upgraded(a, args.framework_a),
            gpus=gpus,
            console=console,
            seed=args.seed,
            timeout=args.timeout,
            strict=args.strict,
        )
    else:
        found = compare.compare(
            a,
            b,
            frameworks=_frameworks(args, a, b),
            gpus=gpus,
            console=console,
            seed=args.seed,
            timeout=args.timeout,
            strict=args.strict,
        )
    console.document(found.document())
    _print(found, console)
    return {"equal": EXIT_OK, "differences": EXIT_DIFFERENCES, "error": EXIT_SMOKE}[found.status]


def _sides(args: argparse.Namespace) -> tuple[tuple[str | None, Path | None], tuple[str | None, Path | None]]:
    """(name, interpreter) of both sides; exactly one of the two each."""
    pythons = [args.python_a, args.python_b]
    names = list(args.names)
    if len(names) + sum(python is not None for python in pythons) != 2:
        raise UsageError(
            "usage",
            "name two environments, or give --python-a or --python-b in the place of one",
            hint="see: envforge compare --help",
        )
    sides = [(None, python) if python is not None else (names.pop(0), None) for python in pythons]
    return sides[0], sides[1]


def _frameworks(args: argparse.Namespace, a: Environment, b: Environment) -> tuple[str, str]:
    from envforge import compare

    return compare.pick(a, args.framework_a, b), compare.pick(b, args.framework_b, a)


_MARKS = {
    "passed": ("equal", "green"),
    "failed": ("DIFFERS", "red"),
    "error": ("ERROR", "red"),
    "unavailable": ("–", "yellow"),
    "not_run": ("not run", "dim"),
}


def _print(found: Comparison, console: Console) -> None:
    document: dict[str, Any] = found.document()
    for check in document["checks"]:
        mark, color = _MARKS[check["outcome"]]
        label = f"{check['framework']} {check['name']}".strip()
        console.result(console.style(f"  {label:<36}{mark:<9}{check['detail']}", color))
    if document["traps"]:
        console.result("traps (what each side does by default):")
    for trap in document["traps"]:
        mark, color = ("differs", "yellow") if trap["differs"] else ("agrees", "green")
        if trap["outcome"] != "passed":
            mark, color = _MARKS[trap["outcome"]]
        label = trap["name"].removeprefix("trap_")
        console.result(console.style(f"  {label:<36}{mark:<9}{trap['detail']}", color))
    a, b = document["a"], document["b"]
    console.result(f"{a['name']} ({a['label']}) and {b['name']} ({b['label']}): {document['status']}")
    for line in document["noise"] if document["status"] == "error" else ():
        console.note(f"  {line}")
