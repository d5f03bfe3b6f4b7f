"""pip packages: runs ``uv pip compile`` for the target of a resolution and returns every file by hash.

Each package has exactly one index. uv is given a project file in which packages bound to an index other than the
default one name that index, and every such index is *explicit*: uv looks there for nothing else, and never looks
for a bound package elsewhere. Packages that only others need and that match the patterns of an index are found in
the first answer and bound in a second one; until then no code of an index runs, because builds are off.

Nothing of this machine decides the result: Python and platform come from the resolution, uv's configuration files
and all ``UV_*``/``PIP_*`` settings are left out except those that say where the default index is and how to reach it.
Credentials reach uv by its environment only.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envforge.errors import LockError
from envforge.lock import Lock, LockedPackage
from envforge.lockers.pip_answer import Answer, cuda_library_warnings, file_name, parse
from envforge.lockers.pip_errors import credential_names, explain
from envforge.lockers.uv import (
    PROJECT,
    Reach,
    as_of_time,
    constraints_file,
    environment,
    label_for,
    normalise,
    platform_of,
    project_file,
    run_uv,
    uv_binary,
    uv_version,
)
from envforge.resolve import DEFAULT_INDEX

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.process import Outcome
    from envforge.pylock import PylockFile
    from envforge.resolve import Resolution

__all__ = [
    "PROJECT",
    "Answer",
    "Reach",
    "as_of_time",
    "cuda_library_warnings",
    "environment",
    "locate",
    "lock",
    "lock_tools",
    "normalise",
    "parse",
    "platform_of",
    "solve",
    "uv_binary",
    "uv_version",
]

_ROUNDS = 8  # bindings settle in two rounds; more means that something goes in circles

_DROPPED_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_EXTRA_INDEX_URL")


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """What one run of uv is given; grows from round to round."""

    bindings: dict[str, str]  # normalised name -> index label
    added: dict[str, str] = field(default_factory=dict)  # bound though only others need them
    sources: set[str] = field(default_factory=set)  # packages that may be taken as source
    seen: set[str] = field(default_factory=set)  # every package met so far
    anything: bool = False  # source is accepted everywhere: nothing is solved, only looked up
    undated: list[str] = field(default_factory=list)  # packages of an index that gives no upload times


def _name_of(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if not match:
        raise LockError("lock-requirement", f"not a requirement: {requirement!r}", hint="write it as name==version")
    return normalise(match[1].rstrip("._-"))


def _first_bindings(resolution: Resolution) -> dict[str, str]:
    """Packages whose index is known before solving; raises LockError for an index nobody declared."""
    bindings: dict[str, str] = {}
    for wanted in resolution.requirements:
        name = _name_of(wanted.text)
        label = wanted.index if wanted.index != DEFAULT_INDEX else label_for(name, resolution)
        if re.search(r"@\s*(git|hg|svn|bzr)\+", wanted.text):
            raise LockError(
                "lock-vcs",
                f"{wanted.text!r} is source from version control, which has no hash to check",
                hint="put it under `files` with install: wheel, or build a wheel and give its index",
            )
        if label is None:
            continue
        if label not in resolution.indexes:
            raise LockError(
                "lock-index-unknown",
                f"{wanted.text!r} wants the index {label!r}, which is not declared",
                hint="add it under `indexes` with its url",
            )
        bindings[name] = label
    for label, url in resolution.indexes.items():
        if re.match(r"[a-z]+://[^/\s]*@", url):
            raise LockError(
                "index-credentials-in-spec",
                f"the address of index {label!r} holds credentials, which would end up in the lock",
                hint=f"take them out and set {credential_names(label)} or use ~/.netrc",
            )
    return bindings


def _arguments(resolution: Resolution, attempt: _Attempt, as_of: str | None, upgrade: Sequence[str]) -> list[str]:
    words = ["--no-config", "--generate-hashes", "--no-header", "--format", "pylock.toml", "-o", "pylock.toml"]
    words += ["--python", sys.executable, "--python-version", resolution.python]
    words += ["--python-platform", platform_of(resolution), "--no-python-downloads", "-v"]
    if resolution.constraints:
        words += ["--constraints", "constraints.txt"]
    if as_of:
        words += ["--exclude-newer", as_of_time(as_of)]
        for name in attempt.undated:
            words += ["--exclude-newer-package", f"{name}=false"]
    for name in upgrade:
        words += ["--upgrade-package", name]
    if not attempt.sources and not attempt.anything:
        words.append("--no-build")
    elif not attempt.anything:
        # The others keep to wheels: an older wheel is better than a newer release that must be compiled.
        for name in sorted(attempt.seen - attempt.sources):
            words += ["--only-binary", name]
    return words


def lock(
    resolution: Resolution,
    *,
    as_of: str | None = None,
    upgrade: Sequence[str] = (),
    previous: Lock | None = None,
    index_url: str | None = None,
    reach: Reach | None = None,
    console: Console,
) -> tuple[LockedPackage, ...]:
    """Every pip package of the environment: exact version, its one index, the hashes of the files that fit the target.

    ``as_of`` (a date) leaves out files uploaded later. ``previous`` keeps its pins where they still fit, except for
    the packages named in ``upgrade``. ``index_url`` replaces the default index for this run and is never recorded;
    ``reach`` says more about how this machine gets to the indexes.
    One run of uv where there is one index. Raises LockError when no set of versions fits, NetworkError when an
    index cannot be reached or answers with an error.
    """
    how = reach or Reach()
    if index_url:
        how = replace(how, index_url=index_url)
    return solve(resolution, as_of=as_of, upgrade=upgrade, previous=previous, reach=how, console=console).packages


def solve(
    resolution: Resolution,
    *,
    as_of: str | None = None,
    upgrade: Sequence[str] = (),
    previous: Lock | None = None,
    reach: Reach | None = None,
    console: Console,
) -> Answer:
    """As :func:`lock`, with the file names beside the packages."""
    import tempfile

    if not resolution.requirements:
        return Answer(packages=(), files={})
    _warn_of_dropped_indexes(console)
    how = reach or Reach()
    attempt = _Attempt(bindings=_first_bindings(resolution))
    with tempfile.TemporaryDirectory(prefix="envforge-lock-") as name:
        folder = Path(name)
        (folder / "constraints.txt").write_text(constraints_file(resolution), encoding="utf-8")
        for _ in range(_ROUNDS):
            bindings = {**attempt.bindings, **attempt.added}
            text = project_file(resolution, bindings, sorted(attempt.added), how.index_urls)
            (folder / "pyproject.toml").write_text(text, encoding="utf-8")
            words = _arguments(resolution, attempt, as_of, [normalise(item) for item in upgrade])
            outcome, answer = run_uv(folder, words, how, previous)
            if not outcome.ok:
                if _learn(attempt, resolution, outcome, as_of, console):
                    continue
                shown = replace(resolution, indexes={**resolution.indexes, **how.index_urls})
                raise explain(outcome, shown, bindings, as_of=as_of)
            found = parse(answer, outcome.stderr, bindings)
            if _rebind(attempt, resolution, found):
                continue
            _refuse_needless_source(found, resolution, bindings, how)
            found = replace(found, packages=tuple(_asked_by_others(p, attempt.added) for p in found.packages))
            _report(found, resolution, console)
            return found
    raise LockError("lock-unsettled", f"the indexes of {resolution.name} could not be settled in {_ROUNDS} rounds")


def _refuse_needless_source(found: Answer, resolution: Resolution, bindings: Mapping[str, str], reach: Reach) -> None:
    """Compiling what has wheels for other Pythons is not a lock but a gamble: refused, naming who asks for it.

    Source is right only for a release that has no wheel for Linux at all.
    """
    for package in found.packages:
        if not package.source_only or not _has_linux_wheel(package, resolution, bindings, reach):
            continue
        target = f"Python {resolution.python} on {resolution.platform} with glibc {resolution.glibc}"
        asked = [
            w.text for w in (*resolution.requirements, *resolution.constraints) if _name_of(w.text) == package.name
        ]
        context = [f"the spec asks for {text}" for text in asked]
        context += [f"{owner} needs {package.name}" for owner in package.via if owner != "spec"]
        raise LockError(
            "lock-no-wheel",
            f"{package.name} {package.version} has no wheel for {target}; it has wheels for other targets",
            context=tuple(context),
            hint=f"choose another Python, or allow another version of {package.name}",
        )


def _has_linux_wheel(package: LockedPackage, resolution: Resolution, bindings: Mapping[str, str], reach: Reach) -> bool:
    """Whether this release has a wheel for some Python on Linux (asked only for packages taken as source)."""
    import tempfile
    import tomllib

    from envforge.resolve import PipRequirement

    pin = PipRequirement(text=f"{package.name}=={package.version}", index=package.index)
    local = replace(resolution, requirements=(pin,), constraints=())
    bound = {name: label for name, label in bindings.items() if name == package.name}
    for python in ("3.8", "3.11", "3.13"):
        with tempfile.TemporaryDirectory(prefix="envforge-lock-") as name:
            text = project_file(replace(local, python=python), bound, (), reach.index_urls)
            (Path(name) / "pyproject.toml").write_text(text, encoding="utf-8")
            words = ["--no-config", "--no-header", "--generate-hashes", "--format", "pylock.toml", "-o", "pylock.toml"]
            words += ["--universal", "--no-deps", "--no-build", "--python", sys.executable, "--python-version", python]
            outcome, answer = run_uv(Path(name), words, reach, None)
        if outcome.ok:
            wheels = [file_name(file) for e in tomllib.loads(answer)["packages"] for file in e.get("wheels", ())]
            return any("linux" in file or file.endswith("-any.whl") for file in wheels)
    return False


def _warn_of_dropped_indexes(console: Console) -> None:
    for name in _DROPPED_INDEXES:
        if os.environ.get(name):
            console.detail(f"{name} is not used for locking: name the index in the spec, with the packages it serves")


def _rebind(attempt: _Attempt, resolution: Resolution, found: Answer) -> bool:
    """Bind packages that an index claims but the default one served; drop bindings nobody needs. True: run again."""
    strays = {
        package.name: label
        for package in found.packages
        if package.index == DEFAULT_INDEX and package.url is None and (label := label_for(package.name, resolution))
    }
    idle = [name for name in attempt.added if not _needed(name, found)]
    attempt.added.update(strays)
    for name in idle:
        del attempt.added[name]
    return bool(strays or idle)


def _asked_by_others(package: LockedPackage, added: Mapping[str, str]) -> LockedPackage:
    """The package without "spec" among its owners when only the binding put it into the project."""
    if package.name not in added:
        return package
    return replace(package, via=tuple(owner for owner in package.via if owner != "spec"))


def _needed(name: str, found: Answer) -> bool:
    for package in found.packages:
        if package.name == name:
            return not package.via or any(owner != "spec" for owner in package.via)
    return False


def _learn(attempt: _Attempt, resolution: Resolution, outcome: Outcome, as_of: str | None, console: Console) -> bool:
    """What a failed run teaches for another one: bindings, missing upload times, source-only packages."""
    text = outcome.stderr
    seen = {normalise(name) for name in re.findall(r"Adding transitive dependency for \S+: ([A-Za-z0-9._-]+)", text)}
    claimed = {name: label for name in seen if (label := label_for(name, resolution))}
    fresh = {n: label for n, label in claimed.items() if n not in attempt.bindings and n not in attempt.added}
    if fresh:
        attempt.added.update(fresh)
        return True
    if as_of:
        hints = re.findall(r"hint: `([^`]+)` was filtered by `exclude-newer`(.*)", text)
        bound = {**attempt.bindings, **attempt.added}
        undated = [n for n, rest in hints if "published at" not in rest and n in bound and n not in attempt.undated]
        if undated:
            for name in undated:
                console.note(f"index {bound[name]} gives no upload times: {name} is taken as it is today")
            attempt.undated += undated
            return True
    names = {normalise(n) for n in re.findall(r"Wheels are required for `([^`]+)` because building from", text)}
    fresh_sources = names - attempt.sources
    attempt.seen |= seen | {normalise(n) for n in re.findall(r"Adding direct dependency: ([A-Za-z0-9._-]+)", text)}
    if fresh_sources:
        listed = ", ".join(sorted(fresh_sources))
        console.note(f"no wheel for {listed}: locking from source, which may run its build script here")
        attempt.sources |= fresh_sources
        return True
    return False


def _report(found: Answer, resolution: Resolution, console: Console) -> None:
    for package in found.packages:
        if package.source_only:
            console.warn(
                f"{package.name} {package.version} has no wheel for {resolution.platform} "
                f"and Python {resolution.python}: it is compiled during the build, "
                "which may need a compiler (and nvcc for CUDA code)"
            )
        if package.yanked is not None:
            why = f" ({package.yanked})" if package.yanked else ""
            console.warn(
                f"{package.name} {package.version} was withdrawn by its maker{why}; an exact pin still takes it"
            )
    for text in cuda_library_warnings(resolution, found.packages):
        console.warn(text)


def locate(
    lock: Lock, resolution: Resolution, *, reach: Reach | None = None, console: Console
) -> dict[str, PylockFile]:
    """Where the file of each locked hash is now (``sha256:…`` -> file), asked from the indexes in one run of uv.

    Files withdrawn since are missing from the answer. Raises NetworkError, and LockError when a release is gone.
    """
    import tempfile

    from envforge.pylock import loads
    from envforge.resolve import PipRequirement

    how = reach or Reach()
    listed = [package for package in lock.pip if not package.url]
    bindings = {package.name: package.index for package in listed if package.index != DEFAULT_INDEX}
    pins = tuple(PipRequirement(text=f"{p.name}=={p.version}", index=p.index) for p in listed)
    local = replace(resolution, requirements=pins, constraints=(), indexes={**resolution.indexes, **lock.indexes})
    places: dict[str, PylockFile] = {}
    with tempfile.TemporaryDirectory(prefix="envforge-lock-") as name:
        text = project_file(local, bindings, (), how.index_urls)
        (Path(name) / "pyproject.toml").write_text(text, encoding="utf-8")
        attempt = _Attempt(bindings=bindings, anything=True)
        outcome, answer = run_uv(Path(name), [*_arguments(local, attempt, None, ()), "--no-deps"], how, None)
    if not outcome.ok:
        raise explain(outcome, local, bindings)
    wanted = {value for package in listed for value in package.hashes}
    for entry in loads(answer).packages:
        for file in (*entry.wheels, *((entry.sdist,) if entry.sdist else ())):
            if file.sha256 in wanted:
                places[str(file.sha256)] = file
    return places


def lock_tools(resolution: Resolution, *, reach: Reach | None = None, console: Console) -> tuple[LockedPackage, ...]:
    """The installer used inside the image, by hash: uv in the version that makes the lock.

    Empty, with a warning, when the default index does not have it. The answer is kept in the cache folder:
    the hashes of a published version do not change.
    """
    import json

    from envforge import paths

    version = uv_version()
    kept = paths.cache() / f"uv-{version}-{platform_of(resolution)}.json"
    try:
        hashes = tuple(json.loads(kept.read_text(encoding="utf-8")))
        if hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes):
            return (LockedPackage(name="uv", version=version, index=DEFAULT_INDEX, hashes=hashes),)
    except (OSError, ValueError, TypeError):
        pass  # not there or not ours: ask the index
    from envforge.resolve import PipRequirement

    only = replace(resolution, requirements=(PipRequirement(text=f"uv=={version}"),), constraints=(), cuda=None)
    try:
        found = solve(only, reach=reach, console=console).packages
    except LockError as error:
        console.warn(f"the installer is pinned by version only, not by hash: {error.message}")
        return ()
    tools = tuple(replace(package, via=()) for package in found if package.name == "uv")
    paths.write_atomic(kept, json.dumps(list(tools[0].hashes)).encode())
    return tools
