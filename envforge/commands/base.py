"""`envforge base bootstrap|list`: base images where no registry can be reached."""

from __future__ import annotations

import argparse

from envforge.console import Console

EXAMPLE = "envforge base bootstrap --python 3.11"


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="bootstrap|list")
    make = actions.add_parser("bootstrap", help="make a Debian base from packages (needs root and debootstrap)")
    make.add_argument("--python", default="3.11", help="3.9 (bullseye), 3.11 (bookworm, default) or 3.13 (trixie)")
    make.add_argument("--again", action="store_true", help="make it anew although it is there")
    actions.add_parser("list", help="bases made here, and what the config file maps to what")
    for action in actions.choices.values():
        # Also after the action, where people write it; SUPPRESS keeps a value given before it.
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        action.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        action.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def run(args: argparse.Namespace, console: Console) -> int:
    return _bootstrap(args.python, args.again, console) if args.action == "bootstrap" else _list(console)


def _bootstrap(python: str, again: bool, console: Console) -> int:
    from envforge import base
    from envforge.docker_engine import DockerEngine

    base.suite_for(python)
    made = base.bootstrap(DockerEngine.connect(), python, again=again, note=console.note, detail=console.detail)
    console.result(f"{made.reference}  Debian {made.suite}, Python {made.python}, {made.size_bytes / 1e6:.0f} MB")
    console.document(
        {
            "schema": 1,
            "reference": made.reference,
            "image": made.image,
            "suite": made.suite,
            "python": made.python,
            "size_bytes": made.size_bytes,
            "seconds": round(made.seconds, 3),
        }
    )
    return 0


def _list(console: Console) -> int:
    from envforge import base, config
    from envforge.docker_engine import DockerEngine
    from envforge.errors import EngineError

    settings = config.load()
    engine = None
    try:
        engine = DockerEngine.connect()
        made = list(engine.bases())
    except EngineError as error:
        made = []
        console.warn(error.message)
    rows = [
        {
            "reference": info.tags[0],
            "suite": info.labels.get(base.LABEL),
            "python": info.labels.get("envforge.bootstrap-python"),
            "image": info.image,
            "size_bytes": info.size_bytes,
        }
        for info in made
    ]
    for row in rows:
        console.result(f"made here   {row['reference']}  Debian {row['suite']}, Python {row['python']}")
    for name, other in sorted(settings.registries.items()):
        console.result(f"registry    {name} -> {other}")
    for name, other in sorted(settings.bases.items()):
        console.result(f"image       {name} -> {other}")
    if not rows and not settings.registries and not settings.bases:
        console.result("no base was made here and nothing is mapped")
    console.document(
        {
            "schema": 1,
            "engine": engine is not None,
            "config": settings.path,
            "made": rows,
            "registries": dict(settings.registries),
            "bases": dict(settings.bases),
        }
    )
    return 0
