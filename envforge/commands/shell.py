"""`envforge shell NAME`: a shell in an environment."""

from __future__ import annotations

import argparse

from envforge.console import Console

EXAMPLE = "envforge shell torch-cu124 --gpus all"


def arguments(parser: argparse.ArgumentParser) -> None:
    from envforge.commands.run import shared

    parser.add_argument("name", metavar="NAME", help="environment name with @variant, image, or prefix path")
    shared(parser)
    parser.add_argument(
        "--shell", default="", metavar="PROGRAM", help="default: bash (your own $SHELL with --engine local)"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    import os

    from envforge import runner
    from envforge.commands.run import read

    engine = runner.connect(args.engine, args.name, console)
    own = os.environ.get("SHELL", "/bin/sh") if engine.name == "local" else "bash"
    return runner.start(engine, args.name, read(args, (args.shell or own,)), console)
