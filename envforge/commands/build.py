"""`envforge build`: the main job."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from envforge.console import Console
from envforge.errors import EXIT_OK, EXIT_SMOKE

EXAMPLE = "envforge build torch-cu118 --gpus all"


def arguments(parser: argparse.ArgumentParser) -> None:
    from envforge.commands._common import add_spec_arguments

    add_spec_arguments(parser)
    parser.add_argument("--engine", choices=["auto", "docker", "local"], default="auto", help="default: auto")
    parser.add_argument(
        "--gpus", default="auto", help="none | auto | all | COUNT | device=0,2 | device=UUID (default: auto)"
    )
    parser.add_argument("--locked", action="store_true", help="never make a lock; fail when there is none")
    parser.add_argument("--no-smoke", action="store_true", help="build only: nothing is proven and no tag is given")
    parser.add_argument("--level", type=int, choices=range(6), help="smoke level (default: the spec's, else 4)")
    parser.add_argument("--offline", type=Path, metavar="DIR", help="use only the files that `vendor` put into DIR")
    parser.add_argument("--ca-bundle", type=Path, metavar="FILE", help="certificates for the build; never in the image")
    parser.add_argument("--no-cache", action="store_true", help="build every step anew")
    parser.add_argument(
        "--reproducible", action="store_true", help="aim at the same bytes; says which level was reached"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="limit for the build stage")


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import passthrough, pipeline
    from envforge.commands._common import spec_from

    signal.signal(signal.SIGTERM, _stop)  # CI systems stop jobs with SIGTERM: clean up as for Ctrl-C
    request = pipeline.BuildRequest(
        engine=args.engine,
        gpus=passthrough.parse_gpus(args.gpus),
        locked=args.locked,
        smoke=not args.no_smoke,
        level=args.level,
        offline=args.offline,
        ca_bundle=args.ca_bundle,
        no_cache=args.no_cache,
        reproducible=args.reproducible,
        timeout=args.timeout,
    )
    document = pipeline.build(spec_from(args), request, console=console)
    console.document(document)
    _print(document, console)
    return EXIT_SMOKE if document["status"] in ("failed", "error") else EXIT_OK


_MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "error": ("!", "red"),
    "unavailable": ("–", "yellow"),
    "not_run": ("·", "dim"),
}


def _print(document: dict[str, Any], console: Console) -> None:
    labels = [f"{check.get('framework') or ''} {check['name']}".strip() for check in document["checks"]]
    width = max((len(label) for label in labels), default=0) + 2
    for check, label in zip(document["checks"], labels, strict=True):
        mark, color = _MARKS[check["outcome"]]
        line = f"  {mark} {label:<{width}}{check['outcome']:<12}{check['seconds']:7.2f} s"
        if check["outcome"] != "passed" and check.get("detail"):
            line += f"  {check['detail']}"
        console.result(console.style(line, color) if check["outcome"] != "passed" else line)
    counts: dict[str, int] = {}
    for check in document["checks"]:
        counts[check["outcome"]] = counts.get(check["outcome"], 0) + 1
    tested = ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "nothing tested"
    size = document["size_bytes"] / 1e6
    again = " (unchanged, not built again)" if document["reused"] else ""
    console.result(f"{document['name']}: {document['status']} — {tested}; {size:.0f} MB{again}")
    if document["status"] == "passed" and not document["gpu_tested"]:
        console.result("not tested on a GPU")
    if document.get("reproducible"):
        proof = document["reproducible"]
        console.result(f"reproducible: {proof['level']} (compared with {proof['compared_with']})")
    if document["engine"] == "local":
        console.result(f"prefix: {document['image']}")
    else:
        console.result(f"image:  {document['tag'] or document['image'] + ' (no tag)'}")
    console.result(f"record: {document['record']}")
    if document["status"] == "passed":
        console.result(f"use it: envforge run {document['name']} -- python your_script.py")
