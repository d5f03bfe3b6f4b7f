"""`lock`: pin every file by hash under ./lockfiles/NAME, or say (without the network) whether a lock still fits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge.commands._common import add_spec_arguments, spec_from
from envforge.errors import EXIT_LOCK, EXIT_OK

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.lock import Lock, LockedBase, LockedConda, LockedPackage
    from envforge.lockers.pip import Reach
    from envforge.resolve import Resolution

EXAMPLE = "envforge lock torch-cu124 --as-of 2026-11-01"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    parser.add_argument("--check", action="store_true", help="only compare digests; no network; exit 5 when stale")
    parser.add_argument(
        "--as-of", metavar="DATE", help="leave out files uploaded after this day (UTC), e.g. 2026-11-01"
    )
    parser.add_argument(
        "--upgrade",
        action="append",
        default=[],
        metavar="PKG",
        help="move this package to the newest version that fits, and others only if they must; repeatable",
    )
    parser.add_argument("--upgrade-all", action="store_true", help="keep no former pin")
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="folder of lock folders (default: ./lockfiles)")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import compat
    from envforge.resolve import resolve

    resolution = resolve(spec_from(args), compat.load())
    if args.check:
        return _check(resolution, args.output_dir, console)
    from envforge import lock as lockfile

    before = lockfile.read(resolution.name, project=args.output_dir)
    made = make_lock(
        resolution,
        console=console,
        as_of=args.as_of,
        upgrade=args.upgrade,
        keep=not args.upgrade_all,
        root=args.output_dir,
    )
    path = lockfile.folder(resolution.name, args.output_dir)
    changes = moves(before.pip if before else (), made.pip)
    console.document(
        {
            "schema": 1,
            "name": made.name,
            "status": "locked",
            "path": str(path),
            "inputs_digest": made.inputs_digest,
            "as_of": made.as_of,
            "packages": {"pip": len(made.pip), "conda": len(made.conda), "apt": len(made.apt)},
            "source_only": [package.name for package in made.pip if package.source_only],
            "changes": list(changes),
        }
    )
    console.result(f"{path}: {len(made.pip)} pip and {len(made.conda)} conda packages, {made.inputs_digest[7:19]}")
    if before is not None:
        for line in changes:
            console.result(f"  {line}")
        if not changes:
            console.result("  no version moved")
    return EXIT_OK


def _check(resolution: Resolution, root: Path | None, console: Console) -> int:
    from envforge import lock as lockfile

    name = resolution.name
    found = lockfile.read(name, project=root)
    if found is None:
        verdict, digest = "missing", None
        changes: tuple[str, ...] = (f"there is no lock for {name}",)
    else:
        state = lockfile.status(found, resolution)
        verdict, changes, digest = str(state.verdict), state.changes, found.inputs_digest
    hint = "" if verdict == "ok" else f"envforge lock {name}"
    document: dict[str, Any] = {"schema": 1, "name": name, "status": verdict, "changes": list(changes)}
    console.document({**document, "inputs_digest": digest, "hint": hint})
    console.result(f"{name}: lock is {verdict}")
    for line in changes:
        console.result(f"  {line}")
    if hint:
        console.result(f"  run: {hint}")
    return EXIT_OK if verdict == "ok" else EXIT_LOCK


def moves(before: Sequence[LockedPackage], after: Sequence[LockedPackage]) -> tuple[str, ...]:
    """What changed between two sets of pip packages, in words, sorted by name."""
    old = {package.name: package for package in before}
    new = {package.name: package for package in after}
    lines = []
    for name in sorted({*old, *new}):
        if name not in new:
            lines.append(f"{name} {old[name].version} removed")
        elif name not in old:
            lines.append(f"{name} {new[name].version} added")
        elif old[name].version != new[name].version:
            lines.append(f"{name} {old[name].version} -> {new[name].version}")
        elif old[name].index != new[name].index:
            lines.append(f"{name} {new[name].version}: index {old[name].index} -> {new[name].index}")
        elif not set(old[name].hashes) & set(new[name].hashes):
            lines.append(f"{name} {new[name].version}: its files changed on the index")
    return tuple(lines)


def make_lock(
    resolution: Resolution,
    *,
    console: Console,
    as_of: str | None = None,
    upgrade: Sequence[str] = (),
    keep: bool = True,
    root: Path | None = None,
    ca_bundle: Path | None = None,
) -> Lock:
    """Make the lock of a resolution and write it under ``root`` (default ``./lockfiles``); returns it.

    Former pins are kept where they fit, unless ``keep`` is false or ``as_of`` asks for the state of a day.
    A lock that cannot be made leaves the old one as it was. Raises LockError and NetworkError.
    """
    from concurrent.futures import ThreadPoolExecutor

    from envforge import lock as lockfile
    from envforge.lockers import pip

    previous = lockfile.read(resolution.name, project=root)
    kept = previous if keep else None
    reach = reach_of(resolution, ca_bundle)
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        # The registry is asked meanwhile; uv runs on this thread alone, so that Ctrl-C ends it at once.
        base = pool.submit(_base, resolution, kept, console)
        packages = pip.lock(
            resolution,
            as_of=as_of,
            upgrade=upgrade,
            previous=None if as_of else kept,
            reach=reach,
            console=console,
        )
        installer = pip.lock_tools(resolution, reach=reach, console=console)
        chosen = base.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    conda, settings = _conda(resolution, as_of, console)
    made = assemble(resolution, packages, base=chosen, installer=installer, conda=conda, as_of=as_of)
    _no_clash(resolution, made)
    made = replace(made, conda_settings=settings, apt=_apt(resolution, previous, console))
    made = lockfile.seal(made, resolution)
    lockfile.write(resolution.name, made, root=root)
    return made


def assemble(
    resolution: Resolution,
    packages: Sequence[LockedPackage],
    *,
    base: LockedBase,
    installer: Sequence[LockedPackage] = (),
    conda: Sequence[LockedConda] = (),
    as_of: str | None = None,
    notes: Sequence[str] = (),
) -> Lock:
    """The sealed lock of these parts."""
    from envforge import lock as lockfile
    from envforge.lockers import pip
    from envforge.lockers.conda import INSTALLER_VERSION

    return lockfile.seal(
        lockfile.Lock(
            name=resolution.name,
            resolution_digest="",
            inputs_digest="",
            python=resolution.python,
            platform=resolution.platform,
            base=base,
            pip=tuple(packages),
            conda=tuple(conda),
            indexes={label: resolution.indexes[label] for label in _labels(packages)},
            tools={"uv": pip.uv_version()} | ({"py-rattler": INSTALLER_VERSION} if conda else {}),
            tool_packages=tuple(installer),
            as_of=as_of,
            notes=tuple(notes),
        ),
        resolution,
    )


def _labels(packages: Sequence[LockedPackage]) -> list[str]:
    from envforge.resolve import DEFAULT_INDEX

    return sorted({package.index for package in packages} - {DEFAULT_INDEX})


def reach_of(resolution: Resolution, ca_bundle: Path | None = None) -> Reach:
    """How the indexes are reached from here: the environment first, then the config file, then the spec's mirrors."""
    import os

    from envforge import config
    from envforge.lockers.pip import Reach

    found = config.load()
    mirrors = resolution.mirrors
    default = found.default_index or mirrors.get("pip")
    if os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL"):
        default = None
    labelled = {label: mirrors[label] for label in resolution.indexes if label in mirrors}
    bundle = ca_bundle or found.ca_bundle_path()
    return Reach(index_url=default, index_urls={**labelled, **found.indexes}, ca_bundle=bundle)


def _conda(
    resolution: Resolution, as_of: str | None, console: Console
) -> tuple[tuple[LockedConda, ...], dict[str, str]]:
    if not resolution.conda and (resolution.cuda is None or resolution.cuda.source != "conda"):
        return (), {}
    from envforge.lockers import conda

    subdirs = (conda.SUBDIRS[resolution.platform],)
    base = resolution.mirrors.get("conda")
    found = conda.lock(resolution, subdirs=subdirs, as_of=as_of, channels_base=base, console=console)
    return found, conda.settings(resolution)


def _apt(resolution: Resolution, previous: Lock | None, console: Console) -> tuple[tuple[str, str], ...]:
    """Exact Debian versions: the last lock's while the list is the same, else asked of the base in an engine."""
    from envforge import apt_lock, config
    from envforge.lock import resolution_document
    from envforge.render import apt_packages

    packages = apt_packages(resolution)
    if not packages:
        return ()
    if previous is not None and previous.apt:
        now = resolution_document(resolution)
        keys = ("apt", "base", "python", "cuda")
        if all(previous.made_from.get(key) == now.get(key) for key in keys):
            return previous.apt
    from envforge import base
    from envforge.docker_engine import DockerEngine
    from envforge.errors import EngineError, NetworkError

    try:
        engine = DockerEngine.connect()
        chosen = base.choose(engine, resolution.base, config.load())
        if not engine.has(chosen.reference):
            console.note(f"Debian packages stay without exact versions: {chosen.reference} is not here")
            return ()
    except (EngineError, NetworkError) as problem:
        console.detail(f"no base to ask for Debian versions: {problem.message}")
        return apt_lock.lock(resolution, packages, None, "", console=console)
    return apt_lock.lock(resolution, packages, engine, chosen.reference, console=console)


def _no_clash(resolution: Resolution, made: Lock) -> None:
    """A package must not come from conda and from pip: one would overwrite the other's files."""
    if not made.conda:
        return
    from envforge.errors import LockError
    from envforge.lockers import conda

    found = conda.clashes(made.conda, [package.name for package in made.pip])
    if found:
        raise LockError(
            "conda-pip-clash",
            f"{resolution.name}: {len(found)} packages would be installed by conda and by pip",
            context=tuple(found),
            hint="name the package in packages.conda or in packages.pip, not in both; "
            "what needs it from pip can come from conda too",
        )


def _base(resolution: Resolution, previous: Lock | None, console: Console) -> LockedBase:
    """The base with its digest: from the spec or the tables, else kept from the last lock, else asked for.

    A tag that has moved since the last lock is reported and the old digest kept (``--upgrade-all`` takes the new).
    """
    from envforge.lock import LockedBase

    image, digest = resolution.base.image, resolution.base.digest
    if digest:
        return LockedBase(image=image, digest=digest, reason="from the spec or the table of known digests")
    before = previous.base if previous is not None and previous.base.image == image else None
    now, reason = _asked_digest(image, console)
    if before is not None and before.digest:
        if now and now != before.digest:
            console.warn(
                f"the tag {image} now names {now[:19]}…; the lock keeps {before.digest[:19]}… (--upgrade-all moves it)"
            )
        return before
    return LockedBase(image=image, digest=now, reason=reason)


def _asked_digest(image: str, console: Console) -> tuple[str | None, str]:
    """The digest the image's registry gives, only when it covers all platforms; else None and why."""
    from envforge import config
    from envforge.errors import NetworkError
    from envforge.registry import resolve_digest

    settings = config.load()
    if image in settings.bases:
        return None, "this tag stood for another image where the lock was made; its digest was not asked for"
    try:
        answer = resolve_digest(image, settings, timeout=5.0)
    except NetworkError as error:
        gone = f"; {error.hint}" if error.reference == "image-not-found" else ""
        console.note(f"base {image}: no digest ({error.message}{gone}); locked by its tag, which may move")
        return None, "its registry gave no digest when the lock was made; the tag may move"
    if not answer.is_index:
        return None, "its registry gives the digest of one platform only, which does not last; the tag may move"
    return answer.digest, "what the tag named when the lock was made"
