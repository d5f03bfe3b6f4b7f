"""`decay [NAME…]`: what the locks stand on that has been withdrawn or reached its end of life. No network."""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime

from envforge.console import Console
from envforge.errors import EXIT_DIFFERENCES, EXIT_OK, UsageError

EXAMPLE = "envforge decay torch-cu124 --strict"


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r} is no date; write YYYY-MM-DD") from problem


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which locks, which drivers, on which day."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="locked environments (default: every known one)")
    parser.add_argument("--driver", action="append", default=[], metavar="VERSION", help="a host's driver; repeatable")
    parser.add_argument("--on", type=_day, metavar="DATE", help="judge as of this day (default: today, UTC)")
    parser.add_argument("--strict", action="store_true", help="exit 10 when anything is found")


def run(args: argparse.Namespace, console: Console) -> int:
    """0, or 10 with ``--strict`` and a finding."""
    from envforge import compat, decay, spec
    from envforge import lock as locks

    today = args.on or datetime.now(tz=UTC).date()
    tables = compat.load()
    found: list[decay.Decay] = []
    without: list[str] = []
    looked = []
    for name in args.names or sorted({*spec.names(), *spec.project_names()}):
        lock = locks.read(name)
        if lock is None:
            if args.names:
                raise UsageError("usage", f"{name} has no lock to look at", hint=f"envforge lock {name}")
            without.append(name)
            continue
        looked.append(name)
        found += decay.of_lock(tables, lock, today)
    for driver in args.driver:
        found += decay.of_driver(tables, f"driver {driver}", driver, today)
    console.document(
        {
            "schema": 1,
            "date": today.isoformat(),
            "looked_at": looked,
            "not_locked": without,
            "findings": [one.document() for one in found],
        }
    )
    for one in found:
        colour = "red" if one.severity == "error" else "yellow"
        console.result(f"{console.style(one.severity, colour)} {one.name}: {one.message}\n  → {one.hint}")
    console.result(f"{len(looked)} locks looked at, {len(without)} without a lock, {len(found)} findings")
    return EXIT_DIFFERENCES if args.strict and found else EXIT_OK
