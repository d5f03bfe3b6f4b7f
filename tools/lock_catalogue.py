"""Locks every catalogue entry and variant whose indexes can be reached; says why for the others.

    python tools/lock_catalogue.py [--output-dir lockfiles] [--only 'torch-*']… [--upgrade-all] [--strays]

Former pins are kept where they fit, so a second run moves nothing. Entries that need an index or a framework file
that cannot be had from here are listed with the reason and left as they are. ``--strays`` lists lock folders that
no catalogue entry has any more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from envforge import compat, resources
from envforge import lock as lockfile
from envforge.commands.lock import make_lock
from envforge.console import Console
from envforge.errors import EnvforgeError
from envforge.resolve import resolve
from envforge.spec import load

ROOT = Path(__file__).resolve().parents[1]


def names() -> Iterator[str]:
    """Every entry of the catalogue, each followed by its variants."""
    import yaml

    for path in sorted(resources.catalog().glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("schema") != 1 or "name" not in document:
            continue
        yield path.stem
        for variant in sorted(document.get("variants") or {}):
            yield f"{path.stem}@{variant}"


def lock_one(name: str, root: Path, upgrade_all: bool, console: Console) -> str:
    """Lock one entry; returns "locked", "kept (transcribed)" or the reason why not."""
    resolution = resolve(load(name), compat.load())
    before = lockfile.read_folder(lockfile.folder(name, root)) if (root / name / lockfile.LOCK_FILE).is_file() else None
    if before is not None and any("not rebuilt here" in note for note in before.notes):
        return "kept (transcribed)"
    if before is None and not upgrade_all:
        # A first lock must not lean on a shipped one.
        made = make_lock(resolution, console=console, root=root, keep=False)
    else:
        made = make_lock(resolution, console=console, root=root, keep=not upgrade_all)
    return f"locked: {len(made.pip)} pip, {len(made.conda)} conda"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=ROOT / "lockfiles")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument("--upgrade-all", action="store_true")
    parser.add_argument("--strays", action="store_true")
    args = parser.parse_args()
    console = Console(verbosity=-1)
    known = list(names())
    failed = 0
    for name in known:
        if args.only and not any(fnmatchcase(name, pattern) for pattern in args.only):
            continue
        try:
            outcome = lock_one(name, args.output_dir, args.upgrade_all, console)
        except EnvforgeError as error:
            outcome, failed = f"not locked: [{error.reference}] {error.message}", failed + 1
        print(f"{name:<28}{outcome}", flush=True)
    if args.strays:
        for folder in sorted(args.output_dir.iterdir()):
            if folder.is_dir() and not folder.name.startswith(".") and folder.name not in known:
                print(f"{folder.name:<28}no such entry")
    print(f"{failed} of {len(known)} not locked", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
