"""Builds catalogue entries on the Docker engine, one after another, and records size, seconds per level and outcomes.

    python benchmarks/frameworks.py jax-cpu tf-cpu paddle-cpu mindspore-cpu mxnet-cpu keras-jax-cpu torch-cu124

Writes benchmarks/results/frameworks.json, keeping the rows of entries that are not named. Images are removed afterwards
unless --keep.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "frameworks.json"


def row(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """What is kept of one build."""
    checks = document.get("checks", [])
    levels: dict[str, float] = {}
    outcomes: dict[str, int] = {}
    for check in checks:
        key = str(check["level"])
        levels[key] = round(levels.get(key, 0.0) + check["seconds"], 1)
        outcomes[check["outcome"]] = outcomes.get(check["outcome"], 0) + 1
    return {
        "name": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "status": document.get("status") or document["error"]["reference"],
        "megabytes": round(document.get("size_bytes", 0) / 1e6),
        "build_seconds": document.get("seconds", {}).get("build"),
        "smoke_seconds": document.get("seconds", {}).get("smoke"),
        "seconds_per_level": levels,
        "outcomes": outcomes,
        "exports": {
            f"{check['framework']} {check['name']}": check["outcome"]
            + (f": {check['detail']}" if check["outcome"] != "passed" else "")
            for check in checks
            if check["name"].startswith("export.")
        },
        "failed": {check["name"]: check["detail"] for check in checks if check["outcome"] in ("failed", "error")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    rows = {r["name"]: r for r in json.loads(RESULTS.read_text())} if RESULTS.is_file() else {}
    for name in args.names:
        words = ["build", name, "--engine", "docker", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "envforge", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
        )
        document = json.loads(done.stdout)
        rows[name] = row(name, document)
        print(json.dumps(rows[name], indent=1), flush=True)
        RESULTS.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n", encoding="utf-8")
        if document.get("image") and not args.keep:
            import docker

            client = docker.from_env()
            client.images.remove(document["image"], force=True)
            client.close()


if __name__ == "__main__":
    main()
