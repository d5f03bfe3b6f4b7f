"""uv's answer read into packages, and what is known to be wrong with some answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envforge.errors import LockError
from envforge.lock import LockedPackage
from envforge.lockers.uv import normalise
from envforge.resolve import DEFAULT_INDEX

if TYPE_CHECKING:
    from envforge.resolve import Resolution


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One solved set, and what uv said about it."""

    packages: tuple[LockedPackage, ...]
    files: Mapping[str, tuple[str, ...]]  # package -> file names allowed


def parse(pylock: str, log: str, bindings: Mapping[str, str]) -> Answer:
    """uv's pylock text as packages: files for the target only, source files only where there is no wheel."""
    import tomllib

    owners = _owners(log)
    yanked = {
        (normalise(name), version): reason
        for name, version, reason in re.findall(
            r"warning: `([^=`]+)==([^`]+)` is yanked(?: \(reason: \"(.*)\"\))?", log
        )
    }
    packages: list[LockedPackage] = []
    files: dict[str, tuple[str, ...]] = {}
    for entry in tomllib.loads(pylock).get("packages", ()):
        package, names = _package(entry, bindings, owners, yanked)
        packages.append(package)
        files[package.name] = names
    return Answer(packages=tuple(sorted(packages, key=lambda p: (p.index, p.name))), files=files)


def _package(
    entry: Mapping[str, Any],
    bindings: Mapping[str, str],
    owners: Mapping[str, Mapping[str, str]],
    yanked: Mapping[tuple[str, str], str],
) -> tuple[LockedPackage, tuple[str, ...]]:
    name, version = normalise(entry["name"]), str(entry.get("version", ""))
    url = None
    if "archive" in entry:
        chosen, source_only, url = [entry["archive"]], False, str(entry["archive"]["url"])
    elif entry.get("wheels"):
        chosen, source_only = list(entry["wheels"]), False
    elif "sdist" in entry:
        chosen, source_only = [entry["sdist"]], True
    else:
        raise LockError(
            "lock-vcs",
            f"{name} comes from a folder or from version control, which has no hash to check",
            hint="put it under `files`, or build a wheel and give its index",
        )
    hashes = []
    for item in chosen:
        value = item.get("hashes", {}).get("sha256")
        if not value:
            raise LockError("lock-no-hash", f"the index gives no sha256 for a file of {name} {version}")
        hashes.append(f"sha256:{value}")
    package = LockedPackage(
        name=name,
        version=version,
        index=bindings.get(name, DEFAULT_INDEX),
        hashes=tuple(sorted(set(hashes))),
        via=tuple(sorted({owner for owner, at in owners.get(name, {}).items() if owner != name or at == "spec"})),
        source_only=source_only,
        yanked=yanked.get((name, version)),
        url=url,
    )
    return package, tuple(sorted(file_name(item) for item in chosen))


def file_name(item: Mapping[str, Any]) -> str:
    from urllib.parse import unquote, urlsplit

    return str(item.get("name") or unquote(urlsplit(str(item.get("url", ""))).path).rsplit("/", 1)[-1])


def _owners(log: str) -> dict[str, dict[str, str]]:
    """Package -> who asked for it, read from uv's log. Only words for people: without the log it stays empty."""
    chosen: dict[str, str] = {}
    for name, version in re.findall(r"Selecting: ([A-Za-z0-9._-]+)==(\S+) ", log):
        chosen[normalise(name)] = version
    owners: dict[str, dict[str, str]] = {}
    for name in re.findall(r"Adding direct dependency: ([A-Za-z0-9._-]+)", log):
        owners.setdefault(normalise(name), {})["spec"] = "spec"
    pattern = r"Adding transitive dependency for ([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+): ([A-Za-z0-9._-]+)"
    for owner, version, name in re.findall(pattern, log):
        if chosen.get(normalise(owner)) == version:
            owners.setdefault(normalise(name), {})[normalise(owner)] = version
    for name, found in owners.items():
        found.pop(name, None)
    return owners


def cuda_library_warnings(resolution: Resolution, packages: Sequence[LockedPackage]) -> tuple[str, ...]:
    """A CUDA build of torch that brings no CUDA libraries, on a base that has none, cannot be imported.

    torch 2.6.0+cu126 was published with metadata that forgot them, and every resolver believed it.
    """
    from packaging.version import InvalidVersion, Version

    if resolution.platform != "linux/amd64" or "cuda" in resolution.base.image.partition(":")[0]:
        return ()
    if resolution.cuda is not None and resolution.cuda.source != "wheels":
        return ()
    torch = next((package for package in packages if package.name == "torch"), None)
    if torch is None or any(package.name.startswith("nvidia-") for package in packages):
        return ()
    try:
        version = Version(torch.version)
    except InvalidVersion:
        return ()
    # Up to 2.1 the libraries were inside the wheel of the PyTorch index; later builds name them as packages.
    if not (version.local or "").startswith("cu") or version.release < (2, 2):
        return ()
    return (
        f"torch {torch.version} brings no nvidia-* package and the base {resolution.base.image} has no CUDA libraries: "
        "the import will fail for a missing library (libcusparseLt, libcudart, …); use another CUDA build "
        "(2.6.0+cu124 lists them), a base image with CUDA and cuDNN, or add the missing nvidia-* pins",
    )
