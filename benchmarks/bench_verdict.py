"""How long verdicts take: 10,000 in one process, and whether the time grows linearly from 1,000 to 100,000.

usage: python benchmarks/bench_verdict.py [--json]

Every verdict is computed anew (the tables are remembered, answers are not); a third of the requests are conflicts.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

from envforge import compat
from envforge.verdict import FrameworkRequest, Request, judge


def requests() -> list[Request]:
    """A mix of frameworks, CUDAs, Pythons, drivers and GPUs."""
    frameworks = (
        ("torch", "2.0.1"),
        ("torch", "2.6.0"),
        ("torch", "2.8.0"),
        ("tensorflow", "2.15.1"),
        ("jax", "0.6.2"),
        ("paddle", "2.6.2"),
    )
    axes = itertools.product(
        frameworks,
        ("11.8", "12.4", "12.8"),
        ("3.10", "3.11", "3.12"),
        ("470.57.02", "535.104.05", "580.65.06"),
        ("A100", "RTX 5090", "V100"),
    )
    return [
        Request(
            python=python,
            cuda=cuda,
            driver=driver,
            gpus=(gpu,),
            frameworks=(FrameworkRequest(name=name, version=version),),
        )
        for (name, version), cuda, python, driver, gpu in axes
    ]


def measure(count: int) -> float:
    """Seconds for ``count`` verdicts."""
    tables = compat.load()
    wanted = list(itertools.islice(itertools.cycle(requests()), count))
    start = time.perf_counter()
    for request in wanted:
        judge(request, tables)
    return time.perf_counter() - start


def main() -> int:
    """Command line."""
    measure(len(requests()))
    times = {count: measure(count) for count in (1_000, 10_000, 100_000)}
    each = {count: seconds / count * 1e6 for count, seconds in times.items()}
    if "--json" in sys.argv[1:]:
        print(json.dumps({"seconds": times, "microseconds_each": each}))
        return 0
    for count, seconds in times.items():
        print(f"{count:>7} verdicts: {seconds:7.3f} s  ({each[count]:.1f} µs each)")
    print(f"growth from 1,000 to 100,000: ×{times[100_000] / times[1_000]:.1f} (linear is ×100)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
