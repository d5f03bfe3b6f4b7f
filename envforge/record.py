"""One JSON record per build or smoke run: what was built from what, what was checked, and on which hardware."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envforge import paths

RECORD_SCHEMA = 1


def write(name: str, inputs_digest: str, document: Mapping[str, Any]) -> Path:
    """Store a record and return its path: ``records/NAME/<digest12>-<UTC time>.json``."""
    short = inputs_digest.removeprefix("sha256:")[:12] or "unlocked"
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    folder = paths.records() / name
    path = folder / f"{short}-{stamp}.json"
    number = 1
    while path.exists():
        path = folder / f"{short}-{stamp}-{number}.json"
        number += 1
    content = dict(document) | {"schema": RECORD_SCHEMA, "record": str(path), "written": stamp}
    paths.write_atomic(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    return path


def read_all(name: str) -> list[dict[str, Any]]:
    """Every readable record of a name, oldest first; a damaged file is passed over."""
    found: list[dict[str, Any]] = []
    for path in sorted((paths.records() / name).glob("*.json"), key=lambda item: (item.stat().st_mtime_ns, item.name)):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict):
            found.append(document)
    return found


def latest(name: str, inputs_digest: str, engine: str | None = None) -> dict[str, Any] | None:
    """The newest record of this identity, or None."""
    for document in read_all(name)[::-1]:
        same_engine = engine is None or document.get("engine") == engine
        if same_engine and document.get("inputs_digest") == inputs_digest:
            return document
    return None
