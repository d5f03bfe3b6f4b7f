"""`envforge bench`: latency and memory of a framework's export routes, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from envforge.console import Console
from envforge.errors import EXIT_OK, EXIT_SMOKE, UsageError

EXAMPLE = "envforge bench torch-cu124 --gpus all --plot bench.svg --table bench.md"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|IMAGE", help="a built environment, or any image or prefix")
    parser.add_argument("--python", type=Path, metavar="PATH", help="measure in this interpreter instead")
    parser.add_argument("--framework", metavar="NAME", help="torch | tensorflow | jax (default: the first one there)")
    parser.add_argument("--route", action="append", default=[], metavar="NAME", help="only this route; repeatable")
    parser.add_argument("--batch", type=int, default=32, help="images per call for the throughput (default: 32)")
    parser.add_argument("--runs", type=int, default=100, help="timed calls, after 10 dropped (default: 100)")
    parser.add_argument("--engine", choices=["auto", "docker", "local"], default="auto", help="default: auto")
    parser.add_argument("--gpus", default="auto", help="none | auto | all | COUNT | device=0,2 (default: auto)")
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS", help="limit for one route")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write the figures as bars")
    parser.add_argument("--table", type=Path, metavar="FILE.md", help="write the figures as a table")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import bench, inside, passthrough, paths

    gpus = passthrough.parse_gpus(args.gpus)
    for name, value, most in (
        ("batch", args.batch, 4096),
        ("runs", args.runs, 100_000),
        ("timeout", args.timeout, 86400),
    ):
        if not 1 <= value <= most:
            raise UsageError("usage", f"--{name} must be between 1 and {most}")
    if args.plot is not None and args.plot.suffix != ".svg":
        raise UsageError("usage", f"--plot writes SVG, not {args.plot.suffix or args.plot.name!r}")
    environment = inside.find(args.name, python=args.python, engine=args.engine, console=console)
    found = bench.measure(
        environment,
        framework=bench.pick(environment, args.framework),
        gpus=gpus,
        console=console,
        routes=args.route,
        batch=args.batch,
        runs=args.runs,
        timeout=args.timeout,
    )
    document = found.document()
    if args.plot is not None:
        paths.write_atomic(args.plot, bench.svg(document).encode())
    if args.table is not None:
        paths.write_atomic(args.table, bench.markdown(document).encode())
    console.document(document)
    _print(document, console)
    return EXIT_OK if found.status == "passed" else EXIT_SMOKE


def _print(document: dict[str, Any], console: Console) -> None:
    from envforge import bench

    rows = [bench.HEADERS, *bench.rows(document)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(bench.HEADERS))]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        console.result("  ".join(cells) if number else console.style("  ".join(cells), "bold"))
    for route in document["routes"]:
        if route["outcome"] != "passed":
            console.result(f"{route['name']}: {route['outcome']} — {route['detail']}")
    console.result(f"{document['name']}: {document['status']}, {document['model']} on {document['device']}")
    if document["device"] == "cpu":
        console.result("not measured on a GPU")
