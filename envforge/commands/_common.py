"""Arguments shared by the commands that take a spec: a NAME, or an environment written as flags."""

from __future__ import annotations

import argparse

from envforge.errors import UsageError
from envforge.spec import EnvSpec, from_flags, load


def add_spec_arguments(parser: argparse.ArgumentParser) -> None:
    """``NAME`` or ``--framework torch=2.0.1 --cuda 11.8 --python 3.12 [--cudnn 8.7] [--base ubuntu22.04]``."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="catalogue name, spec file or envs/NAME; with @variant")
    group = parser.add_argument_group("an environment without a file, instead of NAME")
    group.add_argument(
        "--framework",
        action="append",
        default=[],
        metavar="NAME=VERSION",
        help="repeatable, e.g. torch=2.6.0",
    )
    group.add_argument("--cuda", metavar="VERSION", help="CUDA the frameworks are built for, e.g. 12.4; none: CPU")
    group.add_argument("--python", metavar="VERSION", help="Python of the environment, e.g. 3.11")
    group.add_argument("--cudnn", metavar="VERSION", help="cuDNN wanted, e.g. 8.7")
    group.add_argument("--base", metavar="SYSTEM", help="base system or image, e.g. ubuntu22.04")


def spec_from(args: argparse.Namespace) -> EnvSpec:
    """The spec the arguments name. UsageError when there is none or two."""
    others = [f"--{flag}" for flag in ("cuda", "python", "cudnn", "base") if getattr(args, flag, None) is not None]
    if args.name and (args.framework or others):
        given = "--framework" if args.framework else others[0]
        raise UsageError(
            "usage",
            f"NAME and {given} exclude each other",
            hint="flags describe a whole environment; to change a spec write one with `extends`",
        )
    if args.name:
        return load(args.name)
    if not args.framework:
        raise UsageError("usage", "name a spec, or give --framework NAME=VERSION", hint="see: envforge list")
    return from_flags(args.framework, cuda=args.cuda, python=args.python, cudnn=args.cudnn, base=args.base)
