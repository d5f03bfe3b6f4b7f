"""``envforge render``: the Dockerfile and its context, byte for byte the same each time, without a daemon."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from envforge.commands._common import add_spec_arguments, spec_from
from envforge.console import Console
from envforge.errors import EXIT_OK, LockError, UsageError
from envforge.lock import Lock
from envforge.plan import Rendered, make_plan
from envforge.resolve import Resolution
from envforge.spec import EnvSpec

EXAMPLE = "envforge render torch-cu124 -o build/torch-cu124"
_MARK = "# Made by envforge "


def arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="folder to write to; - prints the Dockerfile"
    )
    parser.add_argument("--unlocked", action="store_true", help="without a lock: versions are chosen at build time")
    parser.add_argument("--form", choices=("buildkit", "plain"), default="buildkit", help="plain: no BuildKit needed")
    parser.add_argument("--force", action="store_true", help="replace files that envforge did not make")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import compat
    from envforge.render import render
    from envforge.resolve import resolve
    from envforge.sources import with_code, with_files

    spec = spec_from(args)
    resolution = resolve(spec, compat.load())
    lock = None if args.unlocked else with_code(_lock(spec, resolution), resolution)
    plan = make_plan(resolution, lock, args.form)
    rendered = with_files(render(plan), resolution.files)
    if args.unlocked:
        console.warn("unlocked: versions are chosen when the image is built, and no hash is checked")
    if args.output == "-":
        console.stdout.write(rendered.dockerfile)
        return EXIT_OK
    target = Path(args.output)
    written = write(rendered, target, force=args.force)
    console.document(
        {
            "schema": 1,
            "name": resolution.name,
            "folder": str(target),
            "form": args.form,
            "locked": lock is not None,
            "inputs_digest": lock.inputs_digest if lock is not None else None,
            "base": plan.base,
            "image": f"{plan.repository}:{plan.tag}",
            "files": [{"path": name, "sha256": hashlib.sha256(content).hexdigest()} for name, content in written],
        }
    )
    console.result(f"{target / 'Dockerfile'}  ({len(written)} files, {args.form} form)")
    return EXIT_OK


def _lock(spec: EnvSpec, resolution: Resolution) -> Lock:
    """The lock of this environment, or LockError when it is missing or stale."""
    from envforge import lock as lockfile

    found = lockfile.read(resolution.name)
    if found is None:
        where = spec.path if spec.path is not None and spec.path.parent.name != "catalog" else resolution.name
        raise LockError(
            "lock-missing",
            f"there is no lock for {resolution.name!r}",
            hint=f"envforge lock {where}, or render --unlocked",
        )
    lockfile.require(found, resolution)
    return found


def write(rendered: Rendered, target: Path, *, force: bool = False) -> list[tuple[str, bytes]]:
    """Write the context below ``target``; files of an earlier rendering that are no longer part of it go.

    Raises UsageError when the folder holds a Dockerfile that envforge did not make, unless ``force``.
    """
    from envforge.paths import write_atomic

    dockerfile = target / "Dockerfile"
    if target.exists() and not target.is_dir():
        raise UsageError("output-not-a-folder", f"{target} is not a folder")
    if dockerfile.exists() and not force:
        first = dockerfile.read_text(encoding="utf-8", errors="replace")[: len(_MARK)]
        if first != _MARK:
            raise UsageError(
                "output-not-ours",
                f"{dockerfile} was not made by envforge; it is left as it is",
                hint="choose another folder, or --force",
            )
    files = sorted({"Dockerfile": rendered.dockerfile.encode(), **rendered.files}.items())
    for name, content in files:
        path = target / name
        if not path.is_file() or path.read_bytes() != content:
            write_atomic(path, content)
    wanted = {name for name, _ in files}
    for folder in ("build", "locks", "files"):
        for path in sorted((target / folder).rglob("*"), reverse=True):
            if path.is_file() and path.relative_to(target).as_posix() not in wanted:
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()
    return files
