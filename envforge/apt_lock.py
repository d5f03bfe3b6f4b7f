"""Exact versions of the Debian packages an environment adds to its base, and the dated archive they come from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from envforge.engine import Engine, RunRequest
from envforge.errors import LockError

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.resolve import Resolution

# Dated copies of the archives; reached by http on purpose: a slim base has no certificates, apt checks signatures.
SNAPSHOTS = {
    "debian": (
        "http://snapshot.debian.org/archive/debian/{stamp}/ {release} main",
        "http://snapshot.debian.org/archive/debian/{stamp}/ {release}-updates main",
        "http://snapshot.debian.org/archive/debian-security/{stamp}/ {release}-security main",
    ),
    "ubuntu": (
        "http://snapshot.ubuntu.com/ubuntu/{stamp}/ {release} main universe",
        "http://snapshot.ubuntu.com/ubuntu/{stamp}/ {release}-updates main universe",
        "http://snapshot.ubuntu.com/ubuntu/{stamp}/ {release}-security main universe",
    ),
}
UBUNTU_NAMES = {"18.04": "bionic", "20.04": "focal", "22.04": "jammy", "24.04": "noble"}
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+:~-]*")
_INST = re.compile(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", re.MULTILINE)


def sources(system: str, snapshot: str) -> tuple[str, ...]:
    """The lines of a sources list for ``debian:bookworm`` as of a date (``2026-11-01``).

    Raises LockError for a system without a dated archive and for what is not a date.
    """
    distribution, _, release = system.partition(":")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", snapshot):
        raise LockError("apt-snapshot", f"apt.snapshot {snapshot!r} is not a date", hint="for example: 2026-11-01")
    if distribution not in SNAPSHOTS:
        raise LockError(
            "apt-snapshot", f"there is no dated archive for {system!r}", hint=f"known: {', '.join(SNAPSHOTS)}"
        )
    release = UBUNTU_NAMES.get(release, release)
    stamp = snapshot.replace("-", "") + "T000000Z"
    lines = SNAPSHOTS[distribution]
    return tuple(f"deb [check-valid-until=no] {line.format(stamp=stamp, release=release)}" for line in lines)


def parse(simulation: str) -> tuple[tuple[str, str], ...]:
    """(package, version) of everything ``apt-get install -s`` would install, sorted."""
    found = {name.partition(":")[0]: version for name, version in _INST.findall(simulation)}
    return tuple(sorted((name, version) for name, version in found.items() if _VERSION.fullmatch(version)))


def simulate(
    engine: Engine, image: str, packages: Sequence[str], *, lines: Sequence[str] = (), timeout: float = 300
) -> tuple[tuple[str, str], ...]:
    """What installing ``packages`` into ``image`` would add, asked of its own package manager in a container.

    ``lines``: sources to use instead of the image's. Raises LockError when a package does not exist.
    """
    script = (
        'if [ -n "$SOURCES" ]; then printf "%s\\n" "$SOURCES" > /tmp/list; '
        'set -- -o Dir::Etc::sourcelist=/tmp/list -o Dir::Etc::sourceparts=- -- "$@"; else set -- -- "$@"; fi\n'
        'options=""; while [ "$1" != "--" ]; do options="$options $1"; shift; done; shift\n'
        "apt-get $options update -qq >&2 && "
        'exec apt-get $options install -s --no-install-recommends "$@"\n'
    )
    request = RunRequest(
        argv=("/bin/sh", "-c", script, "sh", *packages),
        env={"SOURCES": "\n".join(lines), "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        network=True,
        read_only=False,
        user="0",
        timeout=timeout,
    )
    result = engine.run(image, request)
    if result.code != 0:
        tail = tuple((result.stdout + result.stderr).splitlines()[-15:])
        missing = re.findall(r"Unable to locate package (\S+)|Version '.*' for '(\S+)' was not found", "\n".join(tail))
        names = ", ".join(sorted({one for pair in missing for one in pair if one}))
        raise LockError(
            "apt-unknown" if names else "apt-unreachable",
            f"{image}: no such Debian package: {names}" if names else f"{image}: its package archive gives no answer",
            context=tail,
            hint="check the name at the distribution, or the network of containers",
        )
    return parse(result.stdout)


def lock(
    resolution: Resolution, packages: Sequence[str], engine: Engine | None, image: str, *, console: Console
) -> tuple[tuple[str, str], ...]:
    """Exact versions for the lock; empty, with a note, when there is no engine to ask or the archive is away.

    A package that does not exist is an error here, before any build.
    """
    if not packages:
        return ()
    if engine is None:
        console.note("Debian packages stay without exact versions: there is no Docker engine to ask")
        return ()
    snapshot = resolution.apt_options.snapshot
    lines = sources(resolution.base.system, snapshot) if snapshot else ()
    try:
        return simulate(engine, image, packages, lines=lines)
    except LockError as problem:
        if problem.reference == "apt-unknown":
            raise
        console.warn(f"Debian packages stay without exact versions: {problem.message}")
        return ()
