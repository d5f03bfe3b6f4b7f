"""Other tools' pip locks: PEP 751 ``pylock.toml`` and hash-checked ``requirements.txt``, read and written. Pure.

Reading is strict where a mistake would install something else (hashes, versions, markers, lock version) and
lenient where files only carry more than we need (unknown keys, tool tables).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envforge.errors import LockError
from envforge.lock import Lock, LockedPackage

PYLOCK_MAJOR = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PylockFile:
    """A wheel, source archive or plain archive: where it is and its hashes (algorithm -> hex digest)."""

    name: str  # file name
    url: str | None = None
    path: str | None = None
    size: int | None = None
    upload_time: str | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str | None:
        """``sha256:…``, or None when the file gives only other algorithms."""
        value = self.hashes.get("sha256")
        return f"sha256:{value}" if value else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PylockPackage:
    """One ``[[packages]]`` entry. ``elsewhere`` is "vcs" or "directory" for what has no files."""

    name: str
    version: str | None = None
    marker: str | None = None
    requires_python: str | None = None
    index: str | None = None
    wheels: tuple[PylockFile, ...] = ()
    sdist: PylockFile | None = None
    archive: PylockFile | None = None
    elsewhere: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pylock:
    """A whole ``pylock.toml``."""

    created_by: str
    packages: tuple[PylockPackage, ...]
    lock_version: str = "1.0"
    requires_python: str | None = None
    environments: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    dependency_groups: tuple[str, ...] = ()
    default_groups: tuple[str, ...] = ()


def _bad(place: str, problem: str, hint: str = "make the file again with the tool that wrote it") -> LockError:
    return LockError("pylock", f"{place}: {problem}", hint=hint)


# ------------------------------------------------------------------------------------------------ reading


def loads(text: str, *, place: str = "pylock.toml") -> Pylock:
    """Read a ``pylock.toml``. Raises LockError: ``pylock-version`` for another major version, ``pylock`` otherwise."""
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _bad(place, f"not TOML: {error}") from None
    version = document.get("lock-version")
    if not isinstance(version, str) or not re.fullmatch(r"\d+\.\d+", version):
        raise _bad(place, "lock-version is missing or not of the form 1.0")
    if int(version.partition(".")[0]) != PYLOCK_MAJOR:
        raise LockError(
            "pylock-version",
            f"{place}: lock-version {version} is not known (this envforge reads {PYLOCK_MAJOR}.x)",
            hint="write the file again as version 1.0, or upgrade envforge",
        )
    created_by = document.get("created-by")
    if not isinstance(created_by, str):
        raise _bad(place, "created-by is missing")
    entries = document.get("packages", [])
    if not isinstance(entries, list):
        raise _bad(place, "packages is not an array of tables")
    return Pylock(
        lock_version=version,
        created_by=created_by,
        requires_python=_string(document, "requires-python", place),
        environments=_strings(document, "environments", place),
        extras=_strings(document, "extras", place),
        dependency_groups=_strings(document, "dependency-groups", place),
        default_groups=_strings(document, "default-groups", place),
        packages=tuple(_read_package(entry, place, number) for number, entry in enumerate(entries, 1)),
    )


def _string(table: Mapping[str, Any], key: str, place: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise _bad(place, f"{key} is not text")
    return value


def _strings(table: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(place, f"{key} is not an array of text")
    return tuple(value)


def _read_package(entry: Any, place: str, number: int) -> PylockPackage:
    where = f"{place}: package {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise _bad(where, "has no name")
    where = f"{place}: {entry['name']}"
    if entry["name"] != re.sub(r"[-_.]+", "-", entry["name"]).lower():
        raise _bad(where, "the name is not normalised")
    kinds = [kind for kind in ("vcs", "directory", "archive") if kind in entry]
    listed = [kind for kind in ("wheels", "sdist") if kind in entry]
    if len(kinds) > 1 or (kinds and listed):
        raise _bad(where, f"{' and '.join([*kinds, *listed])} exclude each other")
    wheels = entry.get("wheels", [])
    if not isinstance(wheels, list):
        raise _bad(where, "wheels is not an array")
    return PylockPackage(
        name=entry["name"],
        version=_string(entry, "version", where),
        marker=_string(entry, "marker", where),
        requires_python=_string(entry, "requires-python", where),
        index=_string(entry, "index", where),
        wheels=tuple(_read_file(item, where) for item in wheels),
        sdist=_read_file(entry["sdist"], where) if "sdist" in entry else None,
        archive=_read_file(entry["archive"], where) if "archive" in entry else None,
        elsewhere=kinds[0] if kinds and kinds[0] != "archive" else None,
    )


def _read_file(item: Any, where: str) -> PylockFile:
    from datetime import datetime
    from urllib.parse import unquote, urlsplit

    if not isinstance(item, dict):
        raise _bad(where, "a file is not a table")
    url, path = _string(item, "url", where), _string(item, "path", where)
    if url is None and path is None:
        raise _bad(where, "a file has neither url nor path")
    hashes = item.get("hashes")
    if not isinstance(hashes, dict) or not hashes or not all(isinstance(v, str) for v in hashes.values()):
        raise _bad(where, "a file has no hashes", "every file of a lock needs a hash")
    for algorithm, value in hashes.items():
        if algorithm == "sha256" and not re.fullmatch(r"[0-9a-f]{64}", value):
            raise _bad(where, f"not a sha256: {value}")
    place = unquote(urlsplit(url).path) if url is not None else str(path)
    name = _string(item, "name", where) or re.split(r"[/\\]", place)[-1]
    size = item.get("size")
    when = item.get("upload-time")
    return PylockFile(
        name=name,
        url=url,
        path=path,
        size=size if isinstance(size, int) else None,
        upload_time=when.isoformat().replace("+00:00", "Z") if isinstance(when, datetime) else None,
        hashes=dict(hashes),
    )


# ----------------------------------------------------------------------------------------------- choosing


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a lock is to be installed: Python "3.11", platform "linux/amd64", glibc "2.36"."""

    python: str
    platform: str = "linux/amd64"
    glibc: str = "2.36"

    @property
    def machine(self) -> str:
        return {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[self.platform]

    def markers(self) -> dict[str, str]:
        """The environment that markers are judged in; nothing is taken from this machine."""
        full = self.python if self.python.count(".") > 1 else f"{self.python}.0"
        return {
            "implementation_name": "cpython",
            "implementation_version": full,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": full,
            "python_version": ".".join(full.split(".")[:2]),
            "sys_platform": "linux",
            "extra": "",
        }

    def tags(self) -> frozenset[Any]:
        """Every wheel tag that installs there, plain ``linux_*`` ones included."""
        from packaging.tags import compatible_tags, cpython_tags

        version = tuple(int(part) for part in self.python.split(".")[:2])
        minor = int(self.glibc.partition(".")[2])
        platforms = [f"manylinux_2_{n}_{self.machine}" for n in range(minor, 4, -1)]
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
        platforms += [f"{name}_{self.machine}" for n, name in legacy.items() if n <= minor]
        platforms.append(f"linux_{self.machine}")
        tags = [*cpython_tags(version, platforms=platforms)]
        return frozenset([*tags, *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms)])


def select(pylock: Pylock, target: Target, *, place: str = "pylock.toml") -> tuple[LockedPackage, ...]:
    """The packages of a ``pylock.toml`` that are installed on a target, with the hashes of the files that fit it.

    The index of a package is given by its address (``default`` when the file names none). Raises LockError for a
    package without a usable file and for two entries of one name that both apply.
    """
    from packaging.markers import InvalidMarker, Marker

    environment, tags = target.markers(), target.tags()
    found: dict[str, LockedPackage] = {}
    for package in pylock.packages:
        try:
            if package.marker and not Marker(_without_groups(package.marker)).evaluate(environment):
                continue
        except InvalidMarker as error:
            raise _bad(f"{place}: {package.name}", f"marker cannot be read: {error}") from None
        if package.name in found:
            raise _bad(f"{place}: {package.name}", "two entries apply to the same target")
        found[package.name] = _locked(package, tags, target, place)
    return tuple(found[name] for name in sorted(found))


def _without_groups(marker: str) -> str:
    """A marker with conditions on extras and groups taken as not asked for (PEP 751's additions to markers)."""
    pattern = r"""['"][^'"]*['"]\s+(not\s+)?in\s+(extras|dependency_groups)"""

    def judged(match: re.Match[str]) -> str:
        return "python_version >= '0'" if match[1] else "python_version < '0'"

    return re.sub(pattern, judged, marker)


def _locked(package: PylockPackage, tags: frozenset[Any], target: Target, place: str) -> LockedPackage:
    where = f"{place}: {package.name}"
    if package.elsewhere:
        raise _bad(where, f"comes from {package.elsewhere}, which has no hash to check", "put it under `files`")
    usable = [file for file in package.wheels if _fits(file.name, tags, where)]
    source_only = False
    url = None
    if package.archive is not None:
        usable, url = [package.archive], package.archive.url
    elif not usable and package.sdist is not None:
        usable, source_only = [package.sdist], True
    if not usable:
        raise _bad(where, f"has no file for Python {target.python} on {target.platform} with glibc {target.glibc}")
    hashes = [file.sha256 for file in usable]
    if not all(hashes):
        raise _bad(where, "a file has no sha256")
    return LockedPackage(
        name=package.name,
        version=package.version or "",
        index=package.index or "default",
        hashes=tuple(sorted({value for value in hashes if value})),
        source_only=source_only,
        url=url,
    )


def _fits(filename: str, tags: frozenset[Any], where: str) -> bool:
    """Whether a wheel installs there; a build number (``torch-2.11.0-5-cp312-…``) is not part of the version."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        return not tags.isdisjoint(parse_wheel_filename(filename)[3])
    except InvalidWheelFilename as error:
        raise _bad(where, str(error)) from None


# ------------------------------------------------------------------------------------------------ writing


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _inline(file: PylockFile) -> str:
    parts = []
    derived = (file.url or file.path or "").rsplit("/", 1)[-1]
    if file.name != derived:
        parts.append(f"name = {_text(file.name)}")
    if file.upload_time:
        parts.append(f"upload-time = {file.upload_time}")
    if file.url:
        parts.append(f"url = {_text(file.url)}")
    if file.path:
        parts.append(f"path = {_text(file.path)}")
    if file.size is not None:
        parts.append(f"size = {file.size}")
    hashes = ", ".join(f"{name} = {_text(value)}" for name, value in sorted(file.hashes.items()))
    return "{ " + ", ".join([*parts, f"hashes = {{ {hashes} }}"]) + " }"


def dumps(pylock: Pylock) -> str:
    """The TOML text, packages sorted by name and version; ``loads(dumps(x))`` gives the same packages."""
    lines = [f"lock-version = {_text(pylock.lock_version)}"]
    for key, values in (("environments", pylock.environments), ("extras", pylock.extras)):
        if values:
            lines.append(f"{key} = [{', '.join(_text(value) for value in values)}]")
    if pylock.requires_python:
        lines.append(f"requires-python = {_text(pylock.requires_python)}")
    for key, values in (
        ("dependency-groups", pylock.dependency_groups),
        ("default-groups", pylock.default_groups),
    ):
        if values:
            lines.append(f"{key} = [{', '.join(_text(value) for value in values)}]")
    lines.append(f"created-by = {_text(pylock.created_by)}")
    for package in sorted(pylock.packages, key=lambda item: (item.name, item.version or "")):
        if package.elsewhere:
            raise ValueError(f"{package.name} comes from {package.elsewhere}, which is not written")
        lines += ["", "[[packages]]", f"name = {_text(package.name)}"]
        pairs = (
            ("version", package.version),
            ("marker", package.marker),
            ("requires-python", package.requires_python),
            ("index", package.index),
        )
        lines += [f"{key} = {_text(value)}" for key, value in pairs if value]
        if package.archive:
            lines.append(f"archive = {_inline(package.archive)}")
        if package.sdist:
            lines.append(f"sdist = {_inline(package.sdist)}")
        if package.wheels:
            lines += ["wheels = [", *(f"    {_inline(file)}," for file in package.wheels), "]"]
    return "\n".join(lines) + "\n"


def from_lock(lock: Lock, places: Mapping[str, PylockFile]) -> Pylock:
    """A lock as ``pylock.toml``. ``places`` says where the file of each hash is (``envforge.lockers.pip.locate``).

    Raises LockError ``pylock-unplaced`` when no file of a package is known: the standard demands an address.
    """
    packages = []
    for package in lock.pip:
        files = [places[value] for value in package.hashes if value in places]
        if package.url:
            archive = PylockFile(
                name=package.url.rsplit("/", 1)[-1],
                url=package.url,
                hashes={"sha256": package.hashes[0].removeprefix("sha256:")},
            )
            packages.append(PylockPackage(name=package.name, version=package.version or None, archive=archive))
            continue
        if not files:
            raise LockError(
                "pylock-unplaced",
                f"no file of {package.name} {package.version} is on its index any more",
                hint=f"run: envforge lock {lock.name}",
            )
        wheels = tuple(sorted((f for f in files if f.name.endswith(".whl")), key=lambda f: f.name))
        packages.append(
            PylockPackage(
                name=package.name,
                version=package.version,
                index=lock.indexes.get(package.index),
                wheels=wheels,
                sdist=next((f for f in files if not f.name.endswith(".whl")), None),
            )
        )
    machine = Target(python=lock.python, platform=lock.platform).machine
    version = ".".join(lock.python.split(".")[:2])
    marker = f"sys_platform == 'linux' and platform_machine == '{machine}' and python_version == '{version}'"
    return Pylock(
        created_by="envforge",
        environments=(marker,),
        requires_python=f"=={version}.*",
        packages=tuple(packages),
    )


# ------------------------------------------------------------------------------------- requirements.txt


@dataclass(frozen=True, kw_only=True, slots=True)
class HashedRequirements:
    """A hash-checked requirements file: its packages (markers judged) and the indexes it names, in order."""

    packages: tuple[LockedPackage, ...]
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()


def requirements_text(lock: Lock) -> str:
    """One ``requirements.txt`` for ``pip install --require-hashes``; indexes other than the default one are named.

    pip cannot bind a package to an index, but it accepts no file whose hash is not listed.
    """
    from envforge.lock import requirement_lines

    lines = [
        "# Generated by envforge, do not edit.",
        f"# To remake it: envforge export {lock.name} --format requirements",
    ]
    lines += [f"--extra-index-url {url}" for _, url in sorted(lock.indexes.items())]
    for package in sorted(lock.pip, key=lambda item: item.name):
        lines += requirement_lines(package)
    return "\n".join(lines) + "\n"


def read_requirements(text: str, target: Target, *, place: str = "requirements.txt") -> HashedRequirements:
    """Read a hash-checked requirements file (of pip-compile, uv, poetry export or ours).

    Every problem at once: LockError ``requirements-unpinned`` names each line without an exact version or a hash.
    """
    problems: list[str] = []
    packages: dict[str, LockedPackage] = {}
    options: dict[str, list[str]] = {"--index-url": [], "--extra-index-url": [], "--find-links": []}
    for number, line in _logical_lines(text):
        if line.startswith("-"):
            word, _, value = line.replace("=", " ", 1).partition(" ")
            word = {"-i": "--index-url", "-f": "--find-links"}.get(word, word)
            if word in options:
                options[word].append(value.strip())
            elif word not in ("--require-hashes", "--no-binary", "--only-binary", "--prefer-binary"):
                problems.append(f"{place}:{number}: option {word} is not read here")
            continue
        package, problem = _requirement(line, target)
        if problem:
            problems.append(f"{place}:{number}: {problem}")
        elif package is not None:
            packages[package.name] = package
    if problems:
        raise LockError(
            "requirements-unpinned",
            f"{place} is not a complete hash-checked list",
            context=tuple(problems),
            hint="write it with `uv pip compile --generate-hashes`, or import it with `envforge import`",
        )
    return HashedRequirements(
        packages=tuple(packages[name] for name in sorted(packages)),
        index_url=options["--index-url"][-1] if options["--index-url"] else None,
        extra_index_urls=tuple(options["--extra-index-url"]),
        find_links=tuple(options["--find-links"]),
    )


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines joined over backslashes, without comments, each with the number of its first line."""
    found: list[tuple[int, str]] = []
    held, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        if not held:
            start = number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        joined = (held + line).strip()
        held = ""
        if joined:
            found.append((start, joined))
    if held.strip():
        found.append((start, held.strip()))
    return found


def _requirement(line: str, target: Target) -> tuple[LockedPackage | None, str]:
    """The package of one logical line (None when its marker says no), or what is wrong with it."""
    from packaging.requirements import InvalidRequirement, Requirement

    head, *rest = re.split(r"\s+--hash[= ]", line)
    hashes = tuple(sorted(word.strip() for word in rest))
    try:
        wanted = Requirement(head)
    except InvalidRequirement:
        return None, f"cannot be read: {head}"
    if wanted.marker and not wanted.marker.evaluate(target.markers()):
        return None, ""
    name = re.sub(r"[-_.]+", "-", wanted.name).lower()
    pins = [bound.version for bound in wanted.specifier if bound.operator in ("==", "===") and "*" not in bound.version]
    if not wanted.url and len(pins) != 1:
        return None, f"{name} has no exact version"
    if not hashes or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes):
        return None, f"{name} has no sha256 hash" if not hashes else f"{name} has a hash that is no sha256"
    version = pins[0] if pins else ""
    return LockedPackage(name=name, version=version, index="default", hashes=hashes, url=wanted.url), ""
