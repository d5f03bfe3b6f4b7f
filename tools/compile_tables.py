"""Writes the compact JSON tables that are read at run time from the YAML tables that people keep.

usage: python tools/compile_tables.py [--check]

``--check`` writes nothing and exits 1 when a compiled file is not what its YAML gives.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from envforge import tables


def main() -> int:
    """Command line."""
    check = "--check" in sys.argv[1:]
    stale = []
    problems = tables.problems(tables.read_all())
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    for name in tables.NAMES:
        target = tables.compiled_path(name)
        content = tables.compile_text(tables.read(name))
        if target.is_file() and target.read_text(encoding="utf-8") == content:
            continue
        stale.append(name)
        if not check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
    print(("stale: " if check else "written: ") + (", ".join(stale) or "nothing"))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
