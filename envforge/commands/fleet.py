"""``envforge fleet plan``: which images cover which hosts, and what an upgrade unlocks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from envforge.compat import load
from envforge.console import Console
from envforge.errors import EXIT_CONFLICT, EXIT_OK

EXAMPLE = "envforge fleet plan docs/examples/fleet.yaml"


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="plan")
    plan = actions.add_parser("plan", help="the newest combination for all, the fewest images, upgrades")
    plan.add_argument("file", type=Path, metavar="FILE", help="hosts and wishes (YAML)")
    # Also accepted behind `plan`; the top parser reads them wherever they stand.
    plan.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    plan.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    plan.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def run(args: argparse.Namespace, console: Console) -> int:
    """Exit 4 when some host of a wish is covered by no image."""
    from envforge import fleet

    tables = load()
    found = fleet.plan(fleet.load(args.file, tables), tables)
    console.document(found)
    for row in found["wishes"]:
        _show(row, console)
    return EXIT_CONFLICT if any(row["uncovered"] for row in found["wishes"]) else EXIT_OK


def _show(row: dict[str, Any], console: Console) -> None:
    console.result(console.style(row["wish"], "bold"))
    if row["everywhere"]:
        console.result(f"  runs on every host: {row['images'][0]['text']}")
    elif row["images"]:
        console.result(f"  no single image runs on every host; {len(row['images'])} cover what can be covered:")
        for number, image in enumerate(row["images"], 1):
            hosts = ", ".join(item["host"] for item in row["hosts"] if item["image"] == number - 1)
            console.result(f"  {number}. {image['text']}  →  {hosts}")
    for name in row["uncovered"]:
        console.result(console.style(f"  nothing known runs on {name}", "red"))
    for item in row["upgrades"]:
        everywhere = "; then one image runs everywhere" if item["everywhere"] else ""
        console.result(
            f"  {item['host']}: driver {item['from']} → {item['to']} unlocks {item['unlocks_text']}{everywhere}"
        )
