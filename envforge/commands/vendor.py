"""`vendor NAME -o FOLDER`: every locked file in one folder, for `build --offline FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from envforge.console import Console
from envforge.errors import EXIT_OK, LockError

EXAMPLE = "envforge vendor torch-cu124 -o bundle"


def arguments(parser: argparse.ArgumentParser) -> None:
    """NAME and where to put it."""
    parser.add_argument("name", metavar="NAME", help="catalogue name, spec file or envs/NAME; with @variant")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="default: ./vendor/NAME")
    parser.add_argument(
        "--check", action="store_true", help="only check a folder against the lock, without the network"
    )
    parser.add_argument("--ca-bundle", type=Path, metavar="FILE", help="certificates to trust")


def run(args: argparse.Namespace, console: Console) -> int:
    """0 when the folder is complete."""
    from envforge import compat, config, spec, vendor
    from envforge import lock as locks
    from envforge.lockers.pip import Reach
    from envforge.resolve import resolve

    resolution = resolve(spec.load(args.name), compat.load())
    lock = locks.read(resolution.name)
    if lock is None:
        raise LockError("lock-missing", f"there is no lock for {resolution.name!r}", hint=f"envforge lock {args.name}")
    locks.require(lock, resolution)
    folder = args.output or Path("vendor") / resolution.name
    if not args.check:
        settings = config.load()
        bundle = args.ca_bundle or settings.ca_bundle_path()
        reach = Reach(index_url=settings.default_index, index_urls=dict(settings.indexes), ca_bundle=bundle)
        console.note(f"looking up {len(lock.pip)} pip and {len(lock.conda)} conda packages …")
        wanted = vendor.plan(lock, resolution, reach=reach, console=console)
        done = vendor.fill(lock, wanted, folder, fetch=vendor.fetcher(bundle), console=console)
        console.note(f"{done.fetched} files fetched, {len(done.files) - done.fetched} were there")
        if lock.apt or resolution.apt:
            console.warn(
                "Debian packages of the spec are not in the bundle: an offline build needs a base that has them"
            )
    vendor.check(folder, lock)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    count = sum(1 for path in folder.rglob("*") if path.is_file()) - 1
    console.document(
        {
            "schema": 1,
            "name": lock.name,
            "folder": str(folder),
            "inputs_digest": lock.inputs_digest,
            "files": count,
            "bytes": size,
        }
    )
    console.result(
        f"{folder}: {count} files, {size / 1e6:.1f} MB; use it with: envforge build {args.name} --offline {folder}"
    )
    return EXIT_OK
