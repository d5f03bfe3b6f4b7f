"""Whole-process time and peak memory of `render` and `check` against HPC Container Maker, in turn in one run.

    uv pip install hpccm && python benchmarks/bench_startup.py --runs 15

The peer renders a like recipe (base image, apt, pip). Ratios are paired: run i of ours over run i of the peer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

RECIPE = """\
Stage0 += baseimage(image='python:3.11-slim-bookworm')
Stage0 += apt_get(ospackages=['git'])
Stage0 += pip(packages=['torch==2.7.1', 'torchvision==0.22.1'], pip='pip3')
"""


def timed(argv: list[str]) -> tuple[float, int]:
    """Wall seconds and peak kilobytes of one process."""
    start = time.monotonic()
    child = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - start
    assert child.stderr is not None
    text = child.stderr.read().decode()
    child.stderr.close()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{argv}: exit {child.returncode}\n{text}")
    return seconds, usage.ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    bin_folder = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.py"
        recipe.write_text(RECIPE, encoding="utf-8")
        commands = {
            "hpccm": [str(bin_folder / "hpccm"), "--recipe", str(recipe)],
            "render": [str(bin_folder / "envforge"), "render", "torch-cu118", "-o", f"{folder}/out", "-q"],
            "check": [str(bin_folder / "envforge"), "check", "torch-cu118", "--driver", "535.104.05", "--gpu", "A100"],
        }
        rows: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
        for number in range(args.runs + 1):
            for name, argv in commands.items():
                found = timed(argv)
                if number:  # the first round warms the file cache
                    rows[name].append(found)
    result = {
        name: {
            "seconds_median": round(statistics.median(row[0] for row in found), 3),
            "peak_megabytes": round(max(row[1] for row in found) / 1024, 1),
            "ratio_to_hpccm": round(
                statistics.median(a[0] / b[0] for a, b in zip(found, rows["hpccm"], strict=True)), 3
            ),
        }
        for name, found in rows.items()
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
