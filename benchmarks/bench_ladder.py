"""What the smoke ladder costs beside the work itself: levels 0-4 against one plain process that does the same work.

    python benchmarks/bench_ladder.py [--pairs 3] [--engine auto] PYTHON|NAME…

Each PYTHON (a path) holds a framework; a NAME is a built environment, where both run in a container (or a local
prefix) each, its start included. The plain script imports the framework once and, in that one process, does what the
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envforge.smoke import SmokePlan

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PLAIN = """
import importlib, json, sys, tempfile
if len(sys.argv) > 2:
    sys.path.insert(0, sys.argv[1])
import run
run.load_package()
from envforge_smoke import structure
from envforge_smoke.ladder import Ladder
from envforge_smoke.outcome import MissingPackage, Unavailable
plan = json.load(open(sys.argv[-1]))
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


def _plan(found: dict[str, Any]) -> tuple[dict[str, Any], SmokePlan]:
    """The first framework of a probe's answer, and the plan of its levels 0-4."""
    from dataclasses import replace

    from envforge import smoke
    from envforge.engine import GpuRequest

    found = {**found, "frameworks": [f for f in found["frameworks"] if f["name"] != "keras"][:1]}
    plan = smoke.make_plan(None, None, level=4, gpus=GpuRequest(kind="none"), found=found, name="bench")
    return found["frameworks"][0], replace(plan, frameworks=plan.frameworks[:1])


def _row(item: dict[str, Any], where: str, plain: list[float], ladder: list[float]) -> dict[str, object]:
    return {
        "framework": f"{item['name']} {item['version']}, {where}",
        "plain": statistics.median(plain),
        "ladder": statistics.median(ladder),
        "ratio": statistics.median(ladder) / statistics.median(plain),
        "runs": {"plain": [round(s, 2) for s in plain], "ladder": [round(s, 2) for s in ladder]},
    }


def measure_built(name: str, engine: str, pairs: int) -> dict[str, object]:
    """Paired times in a built environment, the start of its container included in both."""
    from envforge import inside
    from envforge.console import Console
    from envforge.engine import GpuRequest

    environment = inside.find(name, python=None, engine=engine, console=Console(verbosity=-1))
    item, plan = _plan(dict(environment.found))
    none, sent = GpuRequest(kind="none"), {"smoke_tests/plain_ladder.py": PLAIN.encode()}

    def seconds(script: str) -> float:
        said = environment.run(script, plan.document(), files=sent, gpus=none, timeout=900)
        if said.ended:
            raise SystemExit(f"{name}: {script} {said.ended}: " + "\n".join(said.noise))
        return said.seconds

    ladder, plain = [], []
    seconds("run.py")  # warm the file cache
    for _ in range(pairs):
        plain.append(seconds("plain_ladder.py"))
        ladder.append(seconds("run.py"))
    return _row(item, environment.engine.name if environment.engine else "python", plain, ladder)


def measure(python: Path, pairs: int) -> dict[str, object]:
    """Paired times of one interpreter: the first framework found there."""
    from envforge import smoke

    item, plan = _plan(smoke.probe_python(python))
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
    return _row(item, "interpreter", plain, ladder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", nargs="+", metavar="PYTHON|NAME")
    parser.add_argument("--engine", choices=["auto", "docker", "local"], default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time measured too")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    print("| framework | plain script (s) | ladder 0-4 (s) | ratio |\n| --- | --- | --- | --- |")
    worst, rows = 0.0, []
    for word in options.environment:
        if Path(word).is_file():
            row = measure(Path(word).absolute(), options.pairs)
        else:
            row = measure_built(word, options.engine, options.pairs)
        rows.append(row)
        print(f"| {row['framework']} | {row['plain']:.1f} | {row['ladder']:.1f} | {row['ratio']:.2f} |", flush=True)
        worst = max(worst, float(str(row["ratio"])))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"schema": 1, "limit": 1.3, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )
    return 0 if worst <= 1.3 else 1


if __name__ == "__main__":
    sys.exit(main())
