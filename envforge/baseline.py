"""Digests of all files kept right after a build: `verify` then sees a file changed together with its RECORD."""

from __future__ import annotations

import json
from pathlib import Path

from envforge import paths
from envforge.inventory import Inventory
from envforge.lock import Lock


def path_of(lock: Lock, engine: str) -> Path:
    """Where the baseline of this identity under this engine lies."""
    short = lock.inputs_digest.removeprefix("sha256:")[:12]
    return paths.records() / lock.name / f"{short}-{engine}.files.gz"


def write(lock: Lock, engine: str, found: Inventory) -> Path:
    """Keep the digests of a freshly built environment."""
    import gzip

    from envforge.verify import baseline

    document = {"schema": 1, "inputs_digest": lock.inputs_digest, "prefix": found.prefix, "files": baseline(found)}
    path = path_of(lock, engine)
    paths.write_atomic(path, gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 6, mtime=0))
    return path


def read(lock: Lock, engine: str) -> dict[str, str] | None:
    """path -> digest as after the build; None when none was kept or it cannot be read."""
    import gzip

    try:
        document = json.loads(gzip.decompress(path_of(lock, engine).read_bytes()))
        files = document["files"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
    if document.get("inputs_digest") != lock.inputs_digest or not isinstance(files, dict):
        return None
    return {str(path): str(value) for path, value in files.items()}
