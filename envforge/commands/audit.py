"""`audit NAME|IMAGE`: licences against a policy, and every shared object's needed libraries and symbols."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from envforge.console import Console
from envforge.errors import EXIT_DIFFERENCES, EXIT_OK

EXAMPLE = "envforge audit torch-cu124 --policy licences.yaml"
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to look at, the policy, and how deep."""
    from envforge import subject

    parser.add_argument("name", nargs="?", metavar="NAME|IMAGE", help="a spec's name, an image or a prefix")
    subject.arguments(parser)
    parser.add_argument("--policy", type=Path, metavar="FILE", help="licence policy (YAML)")
    parser.add_argument("--no-symbols", action="store_true", help="leave undefined symbols out (faster)")


def run(args: argparse.Namespace, console: Console) -> int:
    """0 without an error among the findings, 10 otherwise."""
    from envforge import audit, subject

    policy = audit.read_policy(args.policy) if args.policy else audit.Policy()
    found = subject.find(args.name, engine=args.engine, python=args.python, console=console)
    inventory = found.inventory(hashing=False)
    symbols = not args.no_symbols
    if found.python is not None:
        facts = audit.objects_of_interpreter(found.python, symbols=symbols)
    else:
        assert found.engine is not None and found.info is not None  # inventory() has checked
        facts = audit.objects_of_image(found.engine, found.info, symbols=symbols)
    licenses = audit.licenses(inventory)
    findings = audit.judge_objects(facts, inventory.owners(), policy) + audit.judge_licenses(licenses, policy)
    order = {"error": 0, "warning": 1, "note": 2}
    findings.sort(key=lambda one: (order[one.severity], one.kind, one.package, one.path))
    counts = Counter(one.severity for one in findings)
    console.document(
        {
            "schema": 1,
            "name": found.name,
            "status": "failed" if counts["error"] else "passed",
            "findings": [one.document() for one in findings],
            "licenses": {package: list(names) for package, names in sorted(licenses.items())},
            "objects": facts["objects"],
        }
    )
    for one in findings:
        if one.severity == "note" and console.verbosity < 1:
            continue
        where = f" {one.path}" if one.path else ""
        console.result(
            f"{console.style(one.severity, _COLOURS[one.severity])} {one.kind} {one.package}{where}: {one.detail}"
        )
    console.result(
        f"{found.name}: {facts['objects']} shared objects, {len(licenses)} packages: "
        f"{counts['error']} errors, {counts['warning']} warnings, {counts['note']} notes"
    )
    return EXIT_DIFFERENCES if counts["error"] else EXIT_OK
