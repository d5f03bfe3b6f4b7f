"""What the smoke ladder costs beside the work itself: levels 0-4 against one plain process that does the same work.

    python benchmarks/bench_ladder.py [--pairs 3] PYTHON…

Each PYTHON holds a framework. The plain script imports the framework once and, in that one process, does what the
checks do: no supervision, no time limits, no fresh process for reloading. Both run in turn; the ratio is that of
the medians of the paired runs. The ladder may cost at most 1.3 times as much.
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
sys.path.insert(0, str(ROOT))

PLAIN = """
import importlib, json, sys, tempfile
sys.path.insert(0, sys.argv[1])
import run
run.load_package()
from envforge_smoke import structure
from envforge_smoke.ladder import Ladder
from envforge_smoke.outcome import MissingPackage, Unavailable
plan = json.load(open(sys.argv[2]))
entry = plan["frameworks"][0]
adapter = importlib.import_module("envforge_smoke.adapters.%s_" % entry["adapter"]).Adapter(entry, plan)
folder = tempfile.mkdtemp()
ladder = Ladder(adapter, entry, plan, folder)
for check in plan["checks"]:
    name = check["name"]
    try:
        if name in structure.CHECKS:
            structure.CHECKS[name](plan)
        else:
            ladder.run(name)
            if name.startswith("export."):
                ladder.reload(name)
    except (Unavailable, MissingPackage):
        pass
"""


def _seconds(words: list[str | Path], env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(words, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(python: Path, pairs: int) -> dict[str, object]:
    """Paired times of one interpreter: the first framework found there."""
    from dataclasses import replace

    from envforge import smoke
    from envforge.engine import GpuRequest

    found = smoke.probe_python(python)
    found["frameworks"] = [f for f in found["frameworks"] if f["name"] != "keras"][:1]
    plan = smoke.make_plan(None, None, level=4, gpus=GpuRequest(kind="none"), found=found, name="bench")
    plan = replace(plan, frameworks=plan.frameworks[:1])
    ladder, plain = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(plan.document()), encoding="utf-8")
        suite = ROOT / "smoke_tests"
        env = {**os.environ, "TMPDIR": name, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
        _seconds([python, suite / "run.py", folder / "plan.json"], env)  # warm the file cache
        for _ in range(pairs):
            plain.append(_seconds([python, "-c", PLAIN, suite, folder / "plan.json"], env))
            ladder.append(_seconds([python, suite / "run.py", folder / "plan.json"], env))
    item = found["frameworks"][0]
    return {
        "framework": f"{item['name']} {item['version']}",
        "plain": statistics.median(plain),
        "ladder": statistics.median(ladder),
        "ratio": statistics.median(ladder) / statistics.median(plain),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    print("| framework | plain script (s) | ladder 0-4 (s) | ratio |\n| --- | --- | --- | --- |")
    worst = 0.0
    for python in options.python:
        row = measure(python.absolute(), options.pairs)
        print(f"| {row['framework']} | {row['plain']:.1f} | {row['ladder']:.1f} | {row['ratio']:.2f} |", flush=True)
        worst = max(worst, float(str(row["ratio"])))
    return 0 if worst <= 1.3 else 1


if __name__ == "__main__":
    sys.exit(main())
