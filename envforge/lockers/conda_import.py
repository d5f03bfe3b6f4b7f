"""Reads the locks of other conda tools: ``conda-lock.yml`` (version 1) and ``pixi.lock`` (versions 4 to 6). Pure.

What such a file holds is taken as it is: nothing is solved. Packages without a sha256 are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envforge.errors import LockError
from envforge.lock import LockedConda, LockedPackage

CHANNEL_HOST = "https://conda.anaconda.org/"
MAX_BYTES = 64_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What the file locks for one platform. ``specs``: exact match specs of the conda part.

    ``environments``: names to choose from; ``platforms``: what the file is made for; ``notes``: what a person
    should know, such as builds for a newer CUDA than declared.
    """

    kind: str  # "conda-lock" or "pixi"
    environment: str
    platform: str
    channels: tuple[str, ...]
    conda: tuple[LockedConda, ...]
    pip: tuple[LockedPackage, ...]
    python: str | None
    cuda: str | None
    environments: tuple[str, ...]
    platforms: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read(
    text: str,
    *,
    place: str,
    platform: str = "linux-64",
    environment: str = "default",
    categories: Sequence[str] = ("main",),
    declared_cuda: str | None = None,
) -> Imported:
    """The lock in ``text``. ``declared_cuda``: the ``__cuda`` a virtual package file beside it states.

    Raises LockError: not such a file, another platform or environment, packages without sha256.
    """
    import yaml

    if len(text) > MAX_BYTES:
        raise _bad(place, f"larger than {MAX_BYTES // 1_000_000} MB")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(text, Loader=loader)
    except yaml.YAMLError as problem:
        raise _bad(place, str(problem).splitlines()[0]) from problem
    if isinstance(data, dict) and isinstance(data.get("package"), list) and "metadata" in data:
        found = _conda_lock(data, place, platform, tuple(categories))
    elif isinstance(data, dict) and "environments" in data and "packages" in data:
        found = _pixi(data, place, platform, environment)
    else:
        raise _bad(place, "neither a conda-lock.yml nor a pixi.lock")
    return _finished(found, place, declared_cuda)


def _bad(place: str, problem: str) -> LockError:
    return LockError(
        "import-unreadable",
        f"{place}: {problem}",
        hint="conda-lock.yml (version 1) and pixi.lock (versions 4 to 6) can be read",
    )


def _conda_lock(data: Mapping[str, Any], place: str, platform: str, categories: tuple[str, ...]) -> Imported:
    if data.get("version") != 1:
        raise _bad(place, f"conda-lock version {data.get('version')!r}")
    metadata = data.get("metadata") or {}
    platforms = tuple(str(one) for one in metadata.get("platforms") or ())
    rows = [one for one in data["package"] if isinstance(one, dict) and one.get("platform") == platform]
    if not rows:
        raise _other_platform(place, platform, platforms)
    channels = tuple(
        _short(str(one["url"] if isinstance(one, dict) else one)) for one in metadata.get("channels") or ()
    )
    conda, pip = [], []
    for one in rows:
        # A category of its own ("dev") is left out; older files have none.
        if str(one.get("category", "main")) not in categories:
            continue
        hashes = one.get("hash") or {}
        if one.get("manager") == "pip":
            pip.append(_pip(str(one["name"]), str(one["version"]), str(one.get("url", "")), hashes))
        else:
            conda.append(_conda(str(one["url"]), hashes.get("sha256"), None))
    return Imported(
        kind="conda-lock",
        environment="default",
        platform=platform,
        channels=channels,
        conda=tuple(conda),
        pip=tuple(pip),
        python=None,
        cuda=None,
        environments=("default",),
        platforms=platforms,
    )


def _pixi(data: Mapping[str, Any], place: str, platform: str, environment: str) -> Imported:
    if data.get("version") not in (4, 5, 6):
        raise _bad(place, f"pixi.lock version {data.get('version')!r}")
    names = tuple(str(one) for one in data["environments"])
    if environment not in names:
        raise LockError(
            "import-environment",
            f"{place}: there is no environment {environment!r}",
            hint=f"choose one: {', '.join(names)}",
        )
    chosen = data["environments"][environment]
    platforms = tuple(str(one) for one in chosen.get("packages") or ())
    if platform not in platforms:
        raise _other_platform(place, platform, platforms)
    by_url: dict[str, Mapping[str, Any]] = {}
    for one in data["packages"]:
        url = one.get("conda") or one.get("pypi") or one.get("url") or one.get("path")
        by_url[str(url)] = one
    conda, pip = [], []
    for item in chosen["packages"][platform]:
        kind = "conda" if "conda" in item else "pypi"
        url = str(item[kind])
        one = by_url.get(url)
        if one is None:
            raise _bad(place, f"{url} is named by the environment and not described")
        if kind == "conda":
            conda.append(_conda(url, one.get("sha256"), one.get("size")))
        else:
            name, version = str(one.get("name", "")), str(one.get("version", ""))
            pip.append(_pip(name, version, url, {"sha256": one.get("sha256")}))
    return Imported(
        kind="pixi",
        environment=environment,
        platform=platform,
        channels=tuple(_short(str(one["url"])) for one in chosen.get("channels") or ()),
        conda=tuple(conda),
        pip=tuple(pip),
        python=None,
        cuda=None,
        environments=names,
        platforms=platforms,
    )


def _other_platform(place: str, platform: str, platforms: Sequence[str]) -> LockError:
    return LockError(
        "import-platform",
        f"{place}: it locks nothing for {platform}",
        hint=f"it is made for {', '.join(platforms) or 'no platform'}",
    )


def _short(url: str) -> str:
    url = re.sub(r"//[^/@]*@", "//", url).rstrip("/")
    return url.removeprefix(CHANNEL_HOST)


def _conda(url: str, sha256: Any, size: Any) -> LockedConda:
    """A package out of its address: ``CHANNEL/SUBDIR/NAME-VERSION-BUILD.conda``."""
    clean = re.sub(r"//[^/@]*@", "//", url).partition("#")[0]
    match = re.fullmatch(r"(.+)/([^/]+)/([^/]+)-([^-/]+)-([^-/]+)\.(conda|tar\.bz2)", clean)
    if match is None:
        raise LockError("import-unreadable", f"{clean} is not the address of a conda package")
    return LockedConda(
        name=match[3],
        version=match[4],
        build=match[5],
        channel=_short(match[1]),
        subdir=match[2],
        filename=clean.rsplit("/", 1)[1],
        sha256=str(sha256 or ""),
        size=int(size) if size else None,
    )


def _pip(name: str, version: str, url: str, hashes: Mapping[str, Any]) -> LockedPackage:
    value = hashes.get("sha256")
    return LockedPackage(
        name=re.sub(r"[-_.]+", "-", name).lower(),
        version=version,
        index="default",
        hashes=(f"sha256:{value}",) if value else (),
        url=re.sub(r"//[^/@]*@", "//", url).partition("#")[0] or None if url.startswith("git+") else None,
    )


def _finished(found: Imported, place: str, declared: str | None) -> Imported:
    """Refuse what has no hash; say what the contents claim, against what was declared."""
    from dataclasses import replace

    from packaging.version import Version

    from envforge.lockers.conda import effective_cuda

    bare = [f"{one.name} {one.version}" for one in found.conda if not re.fullmatch(r"[0-9a-f]{64}", one.sha256)]
    bare += [f"{one.name} {one.version} (pip)" for one in found.pip if not one.hashes]
    if bare:
        raise LockError(
            "import-without-hash",
            f"{place}: {len(bare)} packages have no sha256 (md5 is not enough)",
            context=tuple(bare[:50]),
            hint="lock it again with a newer version of that tool, or with `envforge lock`",
        )
    python = next((one.version for one in found.conda if one.name == "python"), None)
    cuda = effective_cuda(found.conda)
    notes = []
    if cuda and declared and Version(cuda) > Version(declared):
        notes.append(
            f"the contents are built for CUDA {cuda}, __cuda is declared as {declared}: the driver must fit {cuda}"
        )
    if "defaults" in found.channels or any("repo.anaconda.com" in one for one in found.channels):
        notes.append("the channel 'defaults' has licence terms for larger organisations")
    order = tuple(sorted(found.conda, key=lambda one: (one.subdir, one.name, one.filename)))
    pip = tuple(sorted(found.pip, key=lambda one: one.name))
    return replace(found, conda=order, pip=pip, python=python, cuda=cuda, notes=tuple(notes))
