"""Everything a build needs in one folder: wheels side by side, conda files by subdir, each checked by hash.

``FOLDER/*.whl`` is what `build --offline FOLDER` hands to the installers as their only source; conda files lie in
``FOLDER/conda/SUBDIR``; ``FOLDER/manifest.json`` says what is there and for which lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge import paths
from envforge.errors import LockError, NetworkError
from envforge.lock import Lock, LockedPackage

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.lockers.pip import Reach
    from envforge.resolve import Resolution

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """One file to have: its place in the folder, where it is fetched from, its sha256 in hex, who it belongs to."""

    path: str
    url: str
    sha256: str
    package: str
    size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Vendored:
    """What was done: files in the folder, how many were fetched now, bytes of all."""

    folder: Path
    files: tuple[Wanted, ...]
    fetched: int
    size_bytes: int


def plan(
    lock: Lock, resolution: Resolution, *, reach: Reach | None = None, console: Console, conda_base: str | None = None
) -> tuple[Wanted, ...]:
    """Every file of the lock with its address, asked from the indexes. LockError when a file has been withdrawn."""
    from envforge.lockers import conda

    found = _pip_files(lock, resolution, reach, console)
    base = conda_base or resolution.mirrors.get("conda")
    found += [
        Wanted(
            path=f"conda/{one.subdir}/{one.filename}",
            url=conda.package_url(one, base),
            sha256=one.sha256,
            package=one.name,
            size=one.size,
        )
        for one in lock.conda
    ]
    return tuple(sorted(found, key=lambda one: one.path))


def _pip_files(lock: Lock, resolution: Resolution, reach: Reach | None, console: Console) -> list[Wanted]:
    from envforge.lockers import pip

    packages: list[LockedPackage] = [*lock.pip, *lock.tool_packages, *_rattler(lock, resolution, reach, console)]
    if not packages:
        return []
    whole = replace(lock, pip=tuple({(one.name, one.version): one for one in packages}.values()))
    places = pip.locate(whole, resolution, reach=reach, console=console)
    found, gone = [], []
    for package in whole.pip:
        if package.url:
            name = package.url.rsplit("/", 1)[-1].partition("#")[0]
            found.append(Wanted(path=name, url=package.url, sha256=_hex(package.hashes[0]), package=package.name))
            continue
        here = [places[value] for value in package.hashes if value in places]
        if not here:
            gone.append(f"{package.name} {package.version}: no file of the lock is on its index any more")
        for file in here:
            sha256 = _hex(file.sha256 or "")
            found.append(
                Wanted(path=file.name, url=file.url or "", sha256=sha256, package=package.name, size=file.size)
            )
    if gone:
        raise LockError(
            "file-withdrawn",
            f"{lock.name}: {len(gone)} locked packages cannot be fetched",
            context=tuple(gone),
            hint=f"envforge lock {lock.name} --upgrade PACKAGE",
        )
    return found


def _rattler(lock: Lock, resolution: Resolution, reach: Reach | None, console: Console) -> Sequence[LockedPackage]:
    """What installs conda packages inside the image, when the lock has any and does not hold it itself."""
    if not lock.conda or any(one.name == "py-rattler" for one in lock.tool_packages):
        return ()
    from envforge.lockers import conda, pip
    from envforge.resolve import PipRequirement

    version = lock.tools.get("py-rattler", conda.INSTALLER_VERSION)
    only = replace(resolution, requirements=(PipRequirement(text=f"py-rattler=={version}"),), constraints=(), cuda=None)
    return pip.solve(only, reach=reach, console=console).packages


def _hex(value: str) -> str:
    return value.removeprefix("sha256:")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


Fetch = Callable[[str, Path], None]


def fetcher(ca_bundle: Path | None = None) -> Fetch:
    """A function that downloads one address into a file, three tries. NetworkError names the address."""
    import requests

    session = requests.Session()
    if ca_bundle is not None:
        session.verify = str(ca_bundle)

    def fetch(url: str, target: Path) -> None:
        problem: Exception | None = None
        for _ in range(3):
            try:
                with session.get(url, stream=True, timeout=60) as answer:
                    answer.raise_for_status()
                    with target.open("wb") as stream:
                        for block in answer.iter_content(1 << 20):
                            stream.write(block)
                return
            except (requests.RequestException, OSError) as error:
                problem = error
                status = getattr(getattr(error, "response", None), "status_code", None)
                if status is not None and status < 500:
                    break
        import re

        said = re.sub(r"//[^/@\s]*@", "//", str(problem))
        raise NetworkError(
            "download",
            f"{re.sub(r'//[^/@]*@', '//', url)} cannot be fetched",
            context=(said,),
            hint="try again: files that are complete are kept",
        )

    return fetch


def fill(
    lock: Lock, wanted: Iterable[Wanted], folder: Path, *, fetch: Fetch, console: Console, jobs: int = 4
) -> Vendored:
    """Bring every file into the folder and write the manifest last. A file with another hash never stays.

    Files already there with the right hash are kept. Raises NetworkError and LockError ``hash-mismatch``.
    """
    from concurrent.futures import ThreadPoolExecutor

    files = tuple(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)

    def bring(one: Wanted) -> bool:
        target = folder / one.path
        if target.is_file() and _sha256(target) == one.sha256:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        try:
            fetch(one.url, part)
            have = _sha256(part)
            if have != one.sha256:
                raise LockError(
                    "hash-mismatch",
                    f"{one.path} of {one.package} is not the file that was locked",
                    context=(f"locked sha256 {one.sha256}", f"fetched sha256 {have}"),
                    hint="the file was replaced where it is kept, or changed on the way; do not use it",
                )
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        console.detail(f"fetched {one.path}")
        return True

    with ThreadPoolExecutor(jobs) as pool:
        fetched = sum(pool.map(bring, files))
    paths.write_atomic(folder / MANIFEST, _manifest(lock, files, folder))
    size = sum((folder / one.path).stat().st_size for one in files)
    return Vendored(folder=folder, files=files, fetched=fetched, size_bytes=size)


def _manifest(lock: Lock, files: tuple[Wanted, ...], folder: Path) -> bytes:
    document = {
        "schema": MANIFEST_SCHEMA,
        "name": lock.name,
        "inputs_digest": lock.inputs_digest,
        "files": [
            {
                "path": one.path,
                "sha256": one.sha256,
                "size": (folder / one.path).stat().st_size,
                "package": one.package,
            }
            for one in files
        ],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def check(folder: Path, lock: Lock) -> None:
    """Whether a folder is complete and unchanged for this lock. Raises LockError with every fault."""
    try:
        document: Mapping[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        rows = [(str(one["path"]), str(one["sha256"])) for one in document["files"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise LockError(
            "bundle-unusable",
            f"{folder} is not a complete bundle: {problem}",
            hint=f"envforge vendor {lock.name} -o {folder}",
        ) from problem
    faults = []
    listed = {value for _, value in rows}
    for path, value in rows:
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()) or not target.is_file():
            faults.append(f"{path}: missing")
        elif _sha256(target) != value:
            faults.append(f"{path}: changed since it was fetched")
    for package in (*lock.pip, *lock.tool_packages):
        if not listed & {_hex(value) for value in package.hashes}:
            faults.append(f"{package.name} {package.version}: not in the bundle")
    faults += [f"{one.filename}: not in the bundle" for one in lock.conda if one.sha256 not in listed]
    if faults:
        raise LockError(
            "bundle-incomplete",
            f"{folder} does not fit the lock of {lock.name}",
            context=tuple(faults[:50]),
            hint=f"envforge vendor {lock.name} -o {folder}",
        )
