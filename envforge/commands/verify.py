"""`verify NAME|IMAGE`: is what is installed what the lock says, file by file."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from envforge.console import Console
from envforge.errors import EXIT_DIFFERENCES, EXIT_OK

EXAMPLE = "envforge verify torch-cu124"


def arguments(parser: argparse.ArgumentParser) -> None:
    """NAME or image, where to look, and a folder of own files that may lie in the prefix."""
    from envforge import subject

    parser.add_argument("name", nargs="?", metavar="NAME|IMAGE", help="a spec's name, an image or a prefix")
    subject.arguments(parser)
    parser.add_argument("--allow", action="append", default=[], metavar="PATH", help="own files inside the prefix")
    parser.add_argument(
        "--remember",
        action="store_true",
        help="when nothing differs, keep the digest of every file: a file changed with its RECORD is seen from then on",
    )
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help="at most this long (900)")


def run(args: argparse.Namespace, console: Console) -> int:
    """0 when nothing differs, 10 otherwise."""
    from envforge import baseline, subject, verify

    start = time.monotonic()
    found = subject.find(
        args.name, engine=args.engine, python=args.python, console=console, need_lock=args.python is None
    )
    inventory = found.inventory(timeout=args.timeout)
    kept = baseline.read(found.lock, found.engine.name) if found.lock and found.engine else None
    differences = verify.compare(
        found.lock,
        inventory,
        labels=found.labels(),
        expected_labels=found.expected_labels(),
        baseline=kept,
        allowed=args.allow,
    )
    if args.remember and not differences and found.lock and found.engine:
        console.note(f"remembered: {baseline.write(found.lock, found.engine.name, inventory)}")
    seconds = time.monotonic() - start
    size = sum(one.size for one in inventory.files.values())
    console.document(
        {
            "schema": 1,
            "name": found.name,
            "image": found.info.image if found.info else str(found.python),
            "inputs_digest": found.lock.inputs_digest if found.lock else None,
            "status": "failed" if differences else "passed",
            "differences": [one.document() for one in differences],
            "counts": dict(sorted(Counter(one.kind for one in differences).items())),
            "checked": {
                "files": len(inventory.files),
                "bytes": size,
                "pip": len(inventory.pip),
                "conda": len(inventory.conda),
                "cuda_libraries": len(inventory.cuda),
                "baseline": kept is not None,
            },
            "seconds": round(seconds, 3),
        }
    )
    for one in differences:
        where = one.path or one.package
        owner = f" [{one.package}]" if one.package and one.path else ""
        console.result(f"{console.style(one.kind, 'red')}  {where}{owner}: {one.detail}")
    against = "its lock" if found.lock else "its own records (there is no lock)"
    looked = f"{len(inventory.files)} files, {size / 1e9:.2f} GB, {seconds:.1f} s"
    if differences:
        console.result(f"{found.name}: {len(differences)} differences from {against} ({looked})")
        return EXIT_DIFFERENCES
    console.result(f"{found.name}: as {against} says ({looked})")
    return EXIT_OK
