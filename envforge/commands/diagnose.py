"""`envforge diagnose [LOG|-]`: error text in, cause and fix out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from envforge.console import Console
from envforge.errors import EXIT_OK, UsageError

EXAMPLE = "envforge diagnose build.log"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", nargs="?", metavar="LOG", default="-", help="a log file, or - for standard input")
    parser.add_argument(
        "--oom", metavar="FILE", help="out-of-memory guide: measured values as JSON (- for standard input)"
    )
    parser.add_argument("--oom-template", action="store_true", help="print the measurements that --oom understands")


def run(args: argparse.Namespace, console: Console) -> int:
    if args.oom_template or args.oom:
        return _oom(args, console)
    from envforge import diagnose

    if args.log == "-" and sys.stdin.isatty():
        console.note("reading standard input; end it with Ctrl-D")
    matches = diagnose.match(_text(args.log))
    console.document({"schema": 1, "matches": [match.document() for match in matches]})
    if not matches:
        console.result("no known cause in this text")
        console.note("hint: read the last error with the lines around it; envforge doctor looks at the host")
    for place, match in enumerate(matches, 1):
        low = " (not sure)" if match.confidence == "low" else ""
        kind = {"cause": "", "symptom": " [symptom]", "noise": " [harmless]"}[match.role]
        console.result(f"{place}. {console.style(match.reference, 'bold')}{kind}{low}, line {match.number}")
        console.result(f"   {console.style(match.line[:160], 'dim')}")
        console.result(f"   cause: {match.cause}")
        console.result(f"   fix:   {match.fix}")
        console.result(f"   concerns: {match.versions}")
    return EXIT_OK


def _text(name: str) -> str:
    """The log's text; what is no UTF-8 is replaced, never an error."""
    if name == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    path = Path(name)
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(
            "log-unreadable", f"{name}: {error.strerror}", hint="give a log file, or - for standard input"
        ) from None


def _oom(args: argparse.Namespace, console: Console) -> int:
    import json

    from envforge import oom

    if args.oom_template:
        rows = oom.template()
        console.document({"schema": 1, "measurements": rows})
        for row in rows:
            console.result(f"{row['name']:<28}{row['unit']:<8}{row['how']}")
        return EXIT_OK
    try:
        value = json.loads(_text(args.oom))
        measured = oom.read(value)
    except (ValueError, TypeError) as error:
        raise UsageError(
            "measurements-unreadable", f"{args.oom}: {error}", hint="see: envforge diagnose --oom-template"
        ) from None
    causes = oom.judge(measured)
    console.document({"schema": 1, "matches": [cause.document() for cause in causes]})
    if not causes:
        console.result("these values point at no cause; add more of them (envforge diagnose --oom-template)")
    for place, cause in enumerate(causes, 1):
        console.result(f"{place}. {console.style(cause.reference, 'bold')}: {cause.evidence}")
        console.result(f"   cause: {cause.cause}")
        console.result(f"   fix:   {cause.fix}")
    return EXIT_OK
