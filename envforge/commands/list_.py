"""``envforge list``: the catalogue and the specs of ``./envs/``."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from envforge import resources, spec
from envforge.console import Console
from envforge.errors import EXIT_OK, NothingSelected, SpecError

EXAMPLE = "envforge list torch --json"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("filter", nargs="?", metavar="TEXT", help="only names or frameworks that contain TEXT")


def _locked(name: str) -> bool:
    """Whether a lock stands in ./lockfiles or is shipped (the file is not read)."""
    folders = [Path("lockfiles")]
    with contextlib.suppress(FileNotFoundError):
        folders.append(resources.shipped("lockfiles"))
    return any((folder / name / "envforge.lock.yaml").is_file() for folder in folders)


def entry(found: spec.EnvSpec, source: str) -> dict[str, Any]:
    """One row: what the spec says, without resolving it."""
    return {
        "name": found.full_name,
        "frameworks": {name: item.version for name, item in found.frameworks.items()},
        "cuda": found.cuda.version if found.cuda is not None else None,
        "python": found.python,
        "locked": _locked(found.full_name),
        "description": found.description,
        "variants": list(found.variants),
        "source": source,
    }


def _entries(console: Console) -> list[dict[str, Any]]:
    rows = []
    own = spec.project_names()
    for name in sorted({*spec.names(), *own}):
        try:
            rows.append(entry(spec.load(name), "project" if name in own else "catalogue"))
        except SpecError as error:
            console.warn(f"{name}: {error.message}" + "".join(f"\n  {line}" for line in error.context))
    return rows


def run(args: argparse.Namespace, console: Console) -> int:
    rows = _entries(console)
    if args.filter:
        wanted = args.filter.lower()
        rows = [row for row in rows if wanted in row["name"] or any(wanted in name for name in row["frameworks"])]
        if not rows:
            raise NothingSelected("no-entry", f"no spec matches {args.filter!r}", hint="see: envforge list")
    console.document({"schema": 1, "entries": rows})
    if not console.json_mode:
        _table(rows, console)
    return EXIT_OK


def _table(rows: list[dict[str, Any]], console: Console) -> None:
    lines = [("NAME", "FRAMEWORKS", "CUDA", "PYTHON", "LOCKED")]
    for row in rows:
        frameworks = ", ".join(f"{name} {version or 'newest'}" for name, version in row["frameworks"].items())
        name = row["name"] + "".join(f" @{variant}" for variant in row["variants"])
        lines.append((name, frameworks or "-", row["cuda"] or "-", row["python"], "yes" if row["locked"] else "no"))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    for number, line in enumerate(lines):
        text = "  ".join([*(cell.ljust(width) for cell, width in zip(line[:4], widths, strict=True)), line[4]])
        console.result(console.style(text, "bold") if number == 0 else text)
