"""``envforge new``: a spec for a framework, driver and GPU, or from a running interpreter."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from envforge.console import Console
from envforge.errors import EXIT_OK, UsageError

EXAMPLE = 'envforge new mylab --framework torch --driver 535 --gpu "RTX 3090"'

_SCRIPT = (
    "import json, sys\n"
    "from importlib.metadata import distributions\n"
    "rows = sorted({(d.metadata['Name'], d.version) for d in distributions() if d.metadata['Name'] and d.version})\n"
    "print(json.dumps({'python': '%d.%d' % sys.version_info[:2], 'packages': rows}))\n"
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What it must have and where it must run."""
    parser.add_argument("name", metavar="NAME", help="name of the spec")
    parser.add_argument("--framework", action="append", default=[], metavar="NAME", help="torch, jax …; repeatable")
    parser.add_argument("--driver", metavar="VERSION", help="oldest NVIDIA driver; 535 means its first release")
    parser.add_argument("--gpu", action="append", default=[], metavar="MODEL", help="repeatable")
    parser.add_argument("--python", metavar="X.Y")
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--from-python", metavar="PATH", help="what is installed in this interpreter")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: envs/NAME.yaml")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def run(args: argparse.Namespace, console: Console) -> int:
    """Exit 4 when nothing works there."""
    from envforge import compat, importers, new, spec
    from envforge.commands.check import show
    from envforge.commands.import_ import write
    from envforge.importers.records import fits
    from envforge.spec_text import dumps
    from envforge.verdict import judge, request_from_spec

    if not fits(spec.NAME, args.name):
        raise UsageError("usage", f"{args.name!r} is not {spec.NAME.meaning}", hint="for example mylab")
    if args.python and not fits(spec.PYTHON, args.python):
        raise UsageError("usage", f"--python {args.python!r}: write two parts", hint="--python 3.11")
    if args.driver and not fits(spec.DRIVER, args.driver):
        raise UsageError("usage", f"--driver {args.driver!r} is not a driver version", hint="--driver 535")
    tables = compat.load()
    if args.from_python:
        python, packages = _installed(args.from_python)
        found = importers.read(
            new.from_packages(args.name, python, packages), place=args.from_python, form="requirements", name=args.name
        )
        made, why, verdict = found.spec, found.why, judge(request_from_spec(found.spec), tables)
    else:
        best = new.propose(
            args.name, args.framework, tables, driver=args.driver, gpus=args.gpu, python=args.python, cpu=args.cpu
        )
        made, why, verdict = best.spec, dict(best.why), best.verdict
    text = dumps(made, why=why)
    path = Path(args.output or f"envs/{args.name}.yaml")
    write(path, text, force=args.force)
    console.document({"schema": 1, "path": str(path), "spec": text, "verdict": verdict.document()})
    if not console.json_mode:
        console.result(text)
        console.result(f"written to {path}")
        show(verdict, console)
    return EXIT_OK


def _installed(path: str) -> tuple[str, list[tuple[str, str]]]:
    from envforge import process

    try:
        outcome = process.run([path, "-I", "-c", _SCRIPT], timeout=60)
        data = json.loads(outcome.stdout)
    except (OSError, ValueError):
        raise UsageError(
            "interpreter", f"{path} is not a Python that answers", hint="give the path of python"
        ) from None
    return data["python"], [(row[0], row[1]) for row in data["packages"]]
