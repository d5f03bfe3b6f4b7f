"""``envforge export``: the same plan and lock in other tools' formats."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envforge.commands._common import add_spec_arguments, spec_from
from envforge.console import Console
from envforge.errors import EXIT_OK, LockError
from envforge.exporters import FILE_NAMES, FORMATS

if TYPE_CHECKING:
    from envforge.lock import Lock
    from envforge.pylock import PylockFile
    from envforge.resolve import Resolution

EXAMPLE = "envforge export torch-cu124 --format devcontainer -o .devcontainer/devcontainer.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What, in which format, where to."""
    add_spec_arguments(parser)
    parser.add_argument("--format", choices=FORMATS, required=True, help="whose words; run-lines: commands to start it")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    parser.add_argument("--image", metavar="REF", help="image in a registry (default: the one `build` makes)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Exit 5 without a fresh lock, or when the format cannot hold the packages."""
    from envforge import compat
    from envforge import lock as locks
    from envforge.resolve import resolve
    from envforge.sources import with_code

    spec = spec_from(args)
    resolution = resolve(spec, compat.load())
    lock = locks.read(resolution.name)
    if lock is None:
        where = args.name or "… (with the same flags)"
        raise LockError("lock-missing", f"there is no lock for {resolution.name!r}", hint=f"envforge lock {where}")
    locks.require(lock, resolution)
    lock = with_code(lock, resolution)
    text = _text(args.format, args.image, resolution, lock, console)
    if args.output:
        from envforge.paths import write_atomic

        write_atomic(Path(args.output), text.encode())
        console.result(args.output)
    elif not console.json_mode:
        console.stdout.write(text)
    console.document(
        {
            "schema": 1,
            "name": resolution.name,
            "format": args.format,
            "file": args.output,
            "usual_name": FILE_NAMES[args.format],
            "inputs_digest": lock.inputs_digest,
            "content": text,
        }
    )
    return EXIT_OK


def _text(form: str, image: str | None, resolution: Resolution, lock: Lock, console: Console) -> str:
    from envforge import exporters, pylock
    from envforge.plan import make_plan

    if form == "requirements":
        return exporters.requirements(lock)
    if form == "environment-yml":
        return exporters.environment_yml(lock)
    if form == "conda-explicit":
        if lock.pip:
            console.warn(f"{len(lock.pip)} pip packages cannot stand in this file: environment-yml holds both kinds")
        return exporters.conda_explicit(lock)
    if form == "pylock":
        exporters.require_pip_only(lock)
        return pylock.dumps(pylock.from_lock(lock, _places(lock, resolution, console)))
    plan = make_plan(resolution, lock, "plain")
    own = f"{plan.repository}:{plan.tag}"
    if form == "devcontainer":
        return exporters.devcontainer(plan, image or own)
    if form == "run-lines":
        return exporters.run_lines(resolution, image or own)
    from envforge.render import render
    from envforge.sources import with_files

    return exporters.apptainer(plan, with_files(render(plan), resolution.files))


def _places(lock: Lock, resolution: Resolution, console: Console) -> dict[str, PylockFile]:
    """Addresses of the locked files: pylock.toml demands them and a lock holds none."""
    from envforge import config
    from envforge.lockers import pip

    settings = config.load()
    reach = pip.Reach(
        index_url=settings.default_index, index_urls=dict(settings.indexes), ca_bundle=settings.ca_bundle_path()
    )
    console.note(f"looking up the addresses of {len(lock.pip)} packages …")
    return dict(pip.locate(lock, resolution, reach=reach, console=console))
