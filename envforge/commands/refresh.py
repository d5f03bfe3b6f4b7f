"""`envforge refresh [NAME…|--matrix FILE]`: relock, rebuild, retest, show what moved; `--accept` takes it over."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from envforge.console import Console
from envforge.errors import EXIT_DIFFERENCES, EXIT_OK, EXIT_SMOKE, EnvforgeError, UsageError

EXAMPLE = "envforge refresh jax-cpu"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="specs")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="every image of this matrix")
    parser.add_argument("--accept", action="store_true", help="take over candidates that were shown and passed")
    parser.add_argument("--output", type=Path, default=Path("refreshed"), metavar="DIR", help="where candidates stand")
    parser.add_argument("--engine", choices=("auto", "docker", "local"), default="auto", help="where to build and test")
    parser.add_argument("--gpus", default="auto", metavar="G", help="as for build")
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="limit for one environment")


def run(args: argparse.Namespace, console: Console) -> int:
    """0: nothing moved (or accepted), 10: something moved, 8: a candidate did not pass."""
    from envforge import refresh

    specs = _specs(args)
    if args.accept:
        taken = {spec.full_name: str(refresh.accept(spec.full_name, args.output)) for spec in specs}
        for name, place in taken.items():
            console.result(f"{name}: accepted, {place}")
        console.document({"schema": 1, "accepted": taken})
        return EXIT_OK
    rows = []
    for spec in specs:
        console.note(f"refreshing {spec.full_name} …")
        found = _one(spec, args, console)
        rows.append(found)
        for line in refresh.text(found):
            console.result(line)
    console.document({"schema": 1, "folder": str(args.output), "environments": rows})
    if any(row["status"] != "passed" for row in rows):
        return EXIT_SMOKE
    if not any(row["moved"] for row in rows):
        return EXIT_OK
    console.result(f"to take it over: envforge refresh {' '.join(spec.full_name for spec in specs)} --accept")
    return EXIT_DIFFERENCES


def _specs(args: argparse.Namespace) -> list[Any]:
    from envforge import spec

    if bool(args.names) == bool(args.matrix):
        raise UsageError("usage", "name specs, or a matrix with --matrix", hint=EXAMPLE)
    if args.names:
        return [spec.load(name) for name in args.names]
    from envforge.commands.matrix import load_plan

    plan = load_plan(args.matrix, [])
    return [build.spec for build in plan.builds if build.status == "planned" and not build.merged_into]


def _one(spec: Any, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from envforge import compat, refresh
    from envforge.commands.lock import make_lock
    from envforge.resolve import resolve

    resolution = resolve(spec, compat.load())

    def make(root: Path) -> Any:
        return make_lock(resolution, console=console, keep=False, root=root)

    try:
        return refresh.candidate(spec.full_name, args.output, make=make, prove=partial(_prove, spec, args))
    except EnvforgeError as error:
        if len(args.names) == 1:
            raise
        # One that cannot be locked any more does not hide the others.
        return {
            "name": spec.full_name, "status": "error", "reason": f"{error.reference}: {error.message}", "moved": False,
        }  # fmt: skip


def _prove(spec: Any, args: argparse.Namespace, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Build and test in a process and folder of their own, where the candidate is the lock."""
    from envforge import matrix_run
    from envforge.matrix import Build, Cell, TestRow

    name = spec.full_name
    row = TestRow(name="refresh", engine=args.engine, gpus=args.gpus)
    build = Build(id=name, spec=spec, coordinates={}, status="planned")
    cell = Cell(f"{name}/refresh", name, "refresh", "planned")
    payload = matrix_run.payload_of(build, row, cell, spec.smoke.level, args.timeout, locks=files)
    log = matrix_run.Results(matrix_run.state_folder("refresh")).log(cell.id)
    return matrix_run.execute(payload, log)
