"""Planning of a large matrix (seconds, peak memory) and the weight of its report page.

    python benchmarks/bench_matrix.py --cells 100000
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def matrix_text(cells: int) -> str:
    """A matrix of about ``cells`` cells over real versions, CUDA builds, Pythons and test rows."""
    from envforge import compat

    tables = compat.load()
    names = ("torch", "jax", "tensorflow")
    versions = [f"{name}={found.version}" for name in names for found in tables.releases(name)[-40:]]
    cuda = ["cpu", "11.8", "12.1", "12.4", "12.6", "12.8", "13.0"]
    python = ["3.9", "3.10", "3.11", "3.12", "3.13"]
    builds = len(versions) * len(cuda) * len(python)
    rows = max(1, round(cells / builds))
    drivers = ["470.57.02", "525.60.13", "535.104.05", "550.54.14", "560.28.03", "570.26", "580.65.06"]
    gpus = ["V100", "T4", "A100", "L4", "H100", "RTX 3090", "RTX 5090", "GTX 1080"]
    tests = [
        {"name": f"t{n}", "driver": drivers[n % len(drivers)], "gpu": gpus[n // len(drivers) % len(gpus)]}
        for n in range(rows)
    ]
    axes = {"framework": versions, "cuda": cuda, "python": python}
    return json.dumps({"schema": 1, "name": "large", "axes": axes, "tests": tests})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100_000)
    args = parser.parse_args()
    from envforge import compat, matrix, verdict

    tables = compat.load()
    text = matrix_text(args.cells)
    start = time.monotonic()
    plan = matrix.plan(
        matrix.loads(text, source="large.yaml"),
        judge=partial(verdict.judge, tables=tables),
        request_of=verdict.request_from_spec,
        load_spec=lambda name: (_ for _ in ()).throw(KeyError(name)),
    )
    seconds = time.monotonic() - start
    result = {
        "cells": len(plan.cells),
        "images": len(plan.builds),
        "counts": plan.counts(),
        "seconds": round(seconds, 2),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
