"""`sbom NAME|IMAGE`: a software bill of materials, SPDX or CycloneDX."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from envforge import __version__
from envforge.console import Console
from envforge.errors import EXIT_OK, EngineError, LockError

EXAMPLE = "envforge sbom torch-cu124 --format cyclonedx-json -o sbom.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to describe and how."""
    from envforge import subject

    parser.add_argument("name", nargs="?", metavar="NAME|IMAGE", help="a spec's name, an image or a prefix")
    subject.arguments(parser)
    parser.add_argument(
        "--format", choices=("spdx-json", "cyclonedx-json"), default="spdx-json", help="default: spdx-json"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: stdout")
    parser.add_argument("--syft", action="store_true", help="let syft look at the files of the prefix instead")


def run(args: argparse.Namespace, console: Console) -> int:
    """Writes the document; with ``--json`` and ``-o`` a summary stands on stdout instead."""
    from envforge import audit, paths, sbom, subject

    found = subject.find(args.name, engine=args.engine, python=args.python, console=console)
    if args.syft:
        document = _by_syft(found, args.format)
        rows = document.get("packages") or document.get("components")
        count = len(rows) if isinstance(rows, list) else 0
    else:
        if not found.built and found.lock is None:
            raise LockError(
                "lock-missing", f"{found.name} is neither locked nor built", hint=f"envforge lock {found.name}"
            )
        inventory = found.inventory(hashing=False) if found.built else None
        if inventory is None:
            console.note("nothing was built from this lock here: the bill lists what is locked")
        licenses = audit.licenses(inventory) if inventory is not None else {}
        parts = sbom.components(inventory, found.lock, licenses)
        identity = found.lock.inputs_digest if found.lock else (found.info.image if found.info else found.name)
        document = sbom.render(
            args.format, found.name, identity, parts, created=_created(found), tool=f"envforge-{__version__}"
        )
        count = len(parts)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if args.output is not None:
        paths.write_atomic(args.output, text.encode())
        console.document(
            {"schema": 1, "name": found.name, "format": args.format, "file": str(args.output), "packages": count}
        )
        console.result(f"{args.output}: {count} packages ({args.format})")
    else:
        console.document(document)
        console.result(text.rstrip("\n"))
    return EXIT_OK


def _created(found: object) -> str:
    """SOURCE_DATE_EPOCH, else when the image was made, else now."""
    from envforge.subject import Subject

    assert isinstance(found, Subject)
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdigit():
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch)))
    made = found.info.created[:19] if found.info else ""
    return f"{made}Z" if len(made) == 19 else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _by_syft(found: object, form: str) -> dict[str, Any]:
    """syft's own account of a prefix of this machine, or of an image of the local Docker engine."""
    import shutil
    import sys

    from envforge import process
    from envforge.subject import Subject

    assert isinstance(found, Subject)
    program = shutil.which("syft", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if program is None:
        raise EngineError("syft-missing", "syft is not installed", hint="install envforge with its `sbom` extra")
    if found.python is not None:
        source = f"dir:{found.python.absolute().parent.parent}"
    elif found.info is not None and found.engine is not None:
        source = f"docker:{found.info.image}" if found.engine.name == "docker" else f"dir:{found.info.image}"
    else:
        raise EngineError("not-built", f"{found.name} is not built here", hint=f"envforge build {found.name}")
    outcome = process.run([program, "scan", source, "-q", "-o", form], timeout=900)
    if not outcome.ok:
        raise EngineError("syft-failed", f"syft cannot read {source}", context=outcome.tail(10))
    document: dict[str, Any] = json.loads(outcome.stdout)
    return document
