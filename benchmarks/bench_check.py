"""``envforge check`` as a whole process beside HPC Container Maker rendering one small recipe, in paired runs.

usage: python benchmarks/bench_check.py [--hpccm PATH] [--pairs 15]

Prints both medians and the ratio; the target is a ratio of at most 1.5. Nothing is cached between the runs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPE = """
Stage0 += baseimage(image="nvidia/cuda:11.8.0-devel-ubuntu22.04")
Stage0 += gnu()
Stage0 += python(python2=False)
Stage0 += pip(pip="pip3", packages=["numpy"])
"""
CHECK = ["-m", "envforge", "check", "torch-cu118", "--driver", "535.104.05", "--gpu", "A100"]


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> int:
    """Command line; 1 when the target is missed, 2 when hpccm is not there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hpccm", default=shutil.which("hpccm"))
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    if not options.hpccm:
        print("hpccm is not installed (pip install hpccm)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.py"
        recipe.write_text(RECIPE, encoding="utf-8")
        ours, theirs = [sys.executable, *CHECK], [options.hpccm, "--recipe", str(recipe)]
        seconds(ours), seconds(theirs)
        pairs = [(seconds(ours), seconds(theirs)) for _ in range(options.pairs)]
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"check {first:.3f} s, hpccm {second:.3f} s, paired ratio {ratio:.2f} (target 1.5)")
    return 0 if ratio <= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main())
