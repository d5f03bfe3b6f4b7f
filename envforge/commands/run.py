"""`envforge run NAME -- CMD`: a command in an environment, on this folder, as this user."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from envforge.console import Console
from envforge.errors import UsageError

if TYPE_CHECKING:
    from envforge.runner import RunOptions

EXAMPLE = "envforge run torch-cu124 --gpus all -- python train.py"
TAKES_COMMAND = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="environment name with @variant, image, or prefix path")
    shared(parser)
    parser.add_argument("--jupyter", action="store_true", help="start JupyterLab and print its address")
    parser.add_argument("--profiles", action="store_true", help="show the run profiles and their reasons")


def shared(parser: argparse.ArgumentParser) -> None:
    """Options of `run` and `shell`."""
    parser.add_argument("--engine", choices=["auto", "docker", "local"], default="auto", help="default: auto")
    parser.add_argument(
        "--gpus", default="auto", help="none | auto | all | COUNT | device=0,2 | device=UUID | device=MIG-…"
    )
    parser.add_argument(
        "--port", action="append", default=[], metavar="[HOST:]PORT", help="reachable from this machine"
    )
    parser.add_argument(
        "--shm-size", metavar="SIZE", help="shared memory for data loaders (default: half of main memory)"
    )
    parser.add_argument("--ipc-host", action="store_true", help="share the host's IPC namespace")
    parser.add_argument(
        "--env", action="append", default=[], metavar="K[=V]", help="set a variable, or hand on this shell's"
    )
    parser.add_argument(
        "--profile", action="append", default=[], metavar="P", help="a named set of variables; repeatable"
    )
    parser.add_argument("--no-network", action="store_true", help="no network inside")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import runner

    if args.profiles:
        return _show_profiles(console)
    if not args.name:
        raise UsageError("usage", "run needs the NAME of an environment", hint=f"example: {EXAMPLE}")
    if not args.command and not args.jupyter:
        raise UsageError("usage", "run needs a command after --", hint=f"example: {EXAMPLE}")
    options = read(args, args.command)
    engine = runner.connect(args.engine, args.name, console)
    return runner.start(engine, args.name, options, console)


def read(args: argparse.Namespace, argv: tuple[str, ...]) -> RunOptions:
    """The options as runner wants them; every value is checked here."""
    from envforge import passthrough, profiles, runner

    profiles.environment(args.profile)
    return runner.RunOptions(
        argv=argv,
        gpus=passthrough.parse_gpus(args.gpus),
        jupyter=getattr(args, "jupyter", False),
        ports=tuple(runner.parse_port(text) for text in args.port),
        shm_bytes=runner.parse_size(args.shm_size) if args.shm_size else None,
        host_ipc=args.ipc_host,
        env=runner.parse_env(args.env, os.environ),
        profiles=tuple(args.profile),
        network=not args.no_network,
    )


def _show_profiles(console: Console) -> int:
    from envforge import profiles

    rows = profiles.profiles().values()
    console.document(
        {
            "schema": 1,
            "profiles": [
                {
                    "name": row.name,
                    "summary": row.summary,
                    "note": row.note,
                    "variables": [
                        {"name": one.name, "value": one.value, "why": one.why, "frameworks": list(one.frameworks)}
                        for one in row.variables
                    ],
                }
                for row in rows
            ],
        }
    )
    for row in rows:
        console.result(f"{console.style(row.name, 'bold')}: {row.summary}")
        for one in row.variables:
            console.result(f"  {one.name}={one.value}  ({', '.join(one.frameworks)})")
            console.result(f"      {one.why}")
        if row.note:
            console.result(f"  note: {row.note}")
    return 0
