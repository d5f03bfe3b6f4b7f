"""Writes envforge/data/spec.schema.json from the records of envforge/spec.py.

``--check`` changes nothing and exits 1 when the committed file differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from envforge.paths import write_atomic
from envforge.resources import data
from envforge.spec import schema


def content() -> bytes:
    """The file as it should be."""
    return (json.dumps(schema(), indent=2, ensure_ascii=False) + "\n").encode()


def main(argv: list[str]) -> int:
    target: Path = data("spec.schema.json")
    if "--check" in argv:
        same = target.is_file() and target.read_bytes() == content()
        print("spec.schema.json is current" if same else "spec.schema.json differs: run tools/gen_schema.py")
        return 0 if same else 1
    write_atomic(target, content())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
