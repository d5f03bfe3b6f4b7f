"""The pip part of `lock` for torch 2.6.0 against the bare `uv pip compile --generate-hashes`, in turn in one run.

    python benchmarks/bench_lock.py --runs 9 [--cold]

Both solve the same requirement for the same target (Python 3.11, x86-64, glibc 2.36), with the network and one shared
cache (``--cold``: an empty one for each run). Ours includes writing the project and reading the answer.
Ratios are paired: run i of ours over run i of the bare command.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uv  # noqa: E402

from envforge.console import Console  # noqa: E402
from envforge.lockers import pip  # noqa: E402
from tests.lock_samples import resolution  # noqa: E402

REQUIREMENT = "torch==2.6.0"


def bare(folder: Path) -> float:
    """Seconds of the bare command, with the same environment."""
    (folder / "in.txt").write_text(REQUIREMENT + "\n")
    env, _ = pip.environment()
    words = ["pip", "compile", "in.txt", "--no-config", "--generate-hashes", "-q", "-o", "out.txt"]
    words += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36"]
    (folder / "out.txt").unlink(missing_ok=True)
    start = time.monotonic()
    subprocess.run([uv.find_uv_bin(), *words], cwd=folder, env=env, check=True)
    return time.monotonic() - start


def ours() -> tuple[float, int]:
    """Seconds and number of packages of the pip part of `lock`."""
    made_for = resolution(REQUIREMENT)
    start = time.monotonic()
    found = pip.lock(made_for, console=Console(stderr=io.StringIO()))
    return time.monotonic() - start, len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--cold", action="store_true", help="an empty cache for each run")
    parser.add_argument("--limit", type=float, default=1.3)
    args = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    packages = 0
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name), Path(name) / "cache"
        os.environ["UV_CACHE_DIR"] = str(cache)
        bare(folder)  # both start from the same warm cache, or from none
        ours()
        for number in range(args.runs):
            seconds = {}
            for who in ("ours", "bare") if number % 2 else ("bare", "ours"):
                if args.cold:
                    shutil.rmtree(cache)
                if who == "bare":
                    seconds[who] = bare(folder)
                else:
                    seconds[who], packages = ours()
            pairs.append((seconds["ours"], seconds["bare"]))
    ratio = statistics.median(a / b for a, b in pairs)
    result = {
        "what": f"pip part of lock, {REQUIREMENT}, {'cold' if args.cold else 'warm'} cache",
        "runs": args.runs,
        "packages": packages,
        "ours_seconds": round(statistics.median(a for a, _ in pairs), 3),
        "bare_seconds": round(statistics.median(b for _, b in pairs), 3),
        "paired_ratio": round(ratio, 3),
        "limit": args.limit,
    }
    print(json.dumps(result, indent=2))
    return 0 if ratio <= args.limit else 1


if __name__ == "__main__":
    raise SystemExit(main())
