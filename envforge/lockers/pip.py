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
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge.errors import EnvforgeError, LockError, NetworkError
from envforge.lock import Lock, LockedPackage
from envforge.resolve import DEFAULT_INDEX

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.process import Outcome
    from envforge.pylock import PylockFile
    from envforge.resolve import Resolution

PROJECT = "envforge-lock"  # stands for the spec in uv's explanations
TIMEOUT = 900.0  # seconds for one run of uv; its own limits for a request are far below
_ROUNDS = 8  # bindings settle in two rounds; more means that something goes in circles

# The glibc versions uv has a platform for. A target between two takes the lower one.
_GLIBC_MINORS = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}

# Settings that may reach uv: where the default index is and how to get there. Everything else would let this
# machine decide what is locked.
_KEPT = re.compile(
    r"PATH|HOME|USERPROFILE|SYSTEMROOT|TMPDIR|TEMP|TMP|LANG|LC_ALL|XDG_CACHE_HOME|XDG_DATA_HOME|"
    r"SSL_CERT_FILE|SSL_CERT_DIR|SSL_CLIENT_CERT|NETRC|(HTTP|HTTPS|ALL|NO)_PROXY|(http|https|all|no)_proxy|"
    r"UV_CACHE_DIR|UV_DEFAULT_INDEX|UV_INDEX_URL|UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)|UV_KEYRING_PROVIDER|"
    r"UV_NATIVE_TLS|UV_SYSTEM_CERTS|UV_INSECURE_HOST|UV_OFFLINE|UV_HTTP_TIMEOUT|UV_REQUEST_TIMEOUT|"
    r"UV_HTTP_CONNECT_TIMEOUT|UV_HTTP_RETRIES|UV_CONCURRENT_DOWNLOADS"
)
_DROPPED_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How indexes are reached from this machine; never recorded and never part of a result.

    ``index_url`` stands for the default index, ``index_urls`` (label -> URL) for labelled ones, ``ca_bundle``
    is a file of certificates to trust.
    """

    index_url: str | None = None
    index_urls: Mapping[str, str] = field(default_factory=dict)
    ca_bundle: Path | None = None


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """What one run of uv is given; grows from round to round."""

    bindings: dict[str, str]  # normalised name -> index label
    added: dict[str, str] = field(default_factory=dict)  # bound though only others need them
    sources: set[str] = field(default_factory=set)  # packages that may be taken as source
    seen: set[str] = field(default_factory=set)  # every package met so far
    anything: bool = False  # source is accepted everywhere: nothing is solved, only looked up
    undated: list[str] = field(default_factory=list)  # packages of an index that gives no upload times


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One solved set, and what uv said about it."""

    packages: tuple[LockedPackage, ...]
    files: Mapping[str, tuple[str, ...]]  # package -> file names allowed


def normalise(name: str) -> str:
    """A project name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _name_of(requirement: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    if not match:
        raise LockError("lock-requirement", f"not a requirement: {requirement!r}", hint="write it as name==version")
    return normalise(match[1].rstrip("._-"))


# ---------------------------------------------------------------------------------------------- the target


def platform_of(resolution: Resolution) -> str:
    """uv's name of the target, such as ``x86_64-manylinux_2_36``. Raises LockError for a target without wheels."""
    machine = _MACHINES.get(resolution.platform)
    match = re.fullmatch(r"2\.(\d+)", resolution.glibc)
    if machine is None or match is None:
        raise LockError(
            "lock-platform",
            f"no wheels can be locked for {resolution.platform} with glibc {resolution.glibc}",
            hint="use linux/amd64 or linux/arm64 on a system with glibc 2.17 or newer",
        )
    usable = [minor for minor in _GLIBC_MINORS if minor <= int(match[1])]
    if not usable:
        raise LockError(
            "lock-platform",
            f"glibc {resolution.glibc} is older than every wheel accepts (2.17)",
            hint="choose a newer base image, or a newer `targets.glibc`",
        )
    return f"{machine}-manylinux_2_{usable[-1]}"


def environment(
    index_url: str | None = None,
    *,
    ca_bundle: Path | None = None,
    source: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment uv runs with, and the secrets in it (to be masked in everything shown)."""
    given = os.environ if source is None else source
    env = {key: value for key, value in given.items() if _KEPT.fullmatch(key)}
    # pip's settings name index and certificates on hosts where uv has none of its own.
    if index_url:
        env.pop("UV_INDEX_URL", None)
        env["UV_DEFAULT_INDEX"] = index_url
    elif "UV_DEFAULT_INDEX" not in env and "UV_INDEX_URL" not in env and given.get("PIP_INDEX_URL"):
        env["UV_DEFAULT_INDEX"] = given["PIP_INDEX_URL"]
    if ca_bundle is not None:
        env["SSL_CERT_FILE"] = str(ca_bundle)
    for name in ("REQUESTS_CA_BUNDLE", "PIP_CERT"):
        if "SSL_CERT_FILE" not in env and given.get(name):
            env["SSL_CERT_FILE"] = given[name]
    env["NO_COLOR"] = "1"
    env["UV_NO_PROGRESS"] = "1"
    secrets = [value for key, value in env.items() if key.endswith("_PASSWORD") and value]
    for key in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        match = re.match(r"[a-z]+://([^/@\s]*)@", env.get(key, ""))
        if match:
            secrets += [part for part in (match[1], match[1].partition(":")[2]) if part]
    return env, tuple(secrets)


def as_of_time(as_of: str) -> str:
    """The end of a day (``2026-11-01``, UTC) as uv's cut-off: files uploaded on that day still count."""
    from datetime import date, timedelta

    try:
        day = date.fromisoformat(as_of)
    except ValueError:
        raise LockError("lock-as-of", f"not a date: {as_of!r}", hint="write it as 2026-11-01") from None
    return f"{(day + timedelta(days=1)).isoformat()}T00:00:00Z"


# ---------------------------------------------------------------------------------------------- the project


def _text(value: str) -> str:
    """A TOML basic string."""
    import json

    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def project_file(
    resolution: Resolution,
    bindings: Mapping[str, str],
    added: Sequence[str],
    index_urls: Mapping[str, str] | None = None,
) -> str:
    """The project uv compiles: requirements, constraints, and for every bound package its only index."""
    urls = {**resolution.indexes, **(index_urls or {})}
    wanted = [requirement.text for requirement in resolution.requirements] + sorted(added)
    bounds = [bound.text for bound in resolution.constraints]
    lines = [
        "[project]",
        f"name = {_text(PROJECT)}",
        'version = "0"',
        f"requires-python = {_text('>=' + resolution.python)}",
        f"dependencies = [{', '.join(_text(item) for item in wanted)}]",
        "[tool.uv]",
        f"constraint-dependencies = [{', '.join(_text(item) for item in bounds)}]",
        "[tool.uv.workspace]",  # a project above the temporary folder must not have a say
        "members = []",
        "[tool.uv.sources]",
    ]
    lines += [f"{_text(name)} = {{ index = {_text(label)} }}" for name, label in sorted(bindings.items())]
    for label in sorted({*bindings.values()}):
        lines += ["[[tool.uv.index]]", f"name = {_text(label)}", f"url = {_text(urls[label])}"]
        lines.append("explicit = true")
        if label in resolution.find_links:
            lines.append('format = "flat"')
    return "\n".join(lines) + "\n"


def label_for(name: str, resolution: Resolution) -> str | None:
    """The index whose patterns claim this package, or None for the default one."""
    for label, patterns in sorted(resolution.index_packages.items()):
        if label in resolution.indexes and any(fnmatchcase(name, pattern.lower()) for pattern in patterns):
            return label
    return None


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
                hint=f"take them out and set {_credential_names(label)} or use ~/.netrc",
            )
    return bindings


def _credential_names(label: str) -> str:
    word = re.sub(r"[^A-Z0-9]", "_", label.upper())
    return f"UV_INDEX_{word}_USERNAME and UV_INDEX_{word}_PASSWORD"


# ------------------------------------------------------------------------------------------------- solving


def _arguments(resolution: Resolution, attempt: _Attempt, as_of: str | None, upgrade: Sequence[str]) -> list[str]:
    words = ["--no-config", "--generate-hashes", "--no-header", "--format", "pylock.toml", "-o", "pylock.toml"]
    words += ["--python", sys.executable, "--python-version", resolution.python]
    words += ["--python-platform", platform_of(resolution), "--no-python-downloads", "-v"]
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


def _preferences(previous: Lock) -> str:
    """The former pins as the pylock file that uv prefers to keep to (hashes and places do not matter to it)."""
    lines = ['lock-version = "1.0"', 'created-by = "envforge"']
    for package in previous.pip:
        if package.url:
            continue
        lines += ["[[packages]]", f"name = {_text(package.name)}", f"version = {_text(package.version)}"]
        file = f"{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
        hash_ = package.hashes[0].removeprefix("sha256:")
        lines.append(
            f"wheels = [{{ url = {_text('https://index.invalid/' + file)}, hashes = {{ sha256 = {_text(hash_)} }} }}]"
        )
    return "\n".join(lines) + "\n"


def _run_uv(folder: Path, words: Sequence[str], reach: Reach, previous: Lock | None) -> tuple[Outcome, str]:
    """uv's outcome and the pylock text it wrote ("" when it failed)."""
    from envforge import process

    env, secrets = environment(reach.index_url, ca_bundle=reach.ca_bundle)
    target = folder / "pylock.toml"
    target.unlink(missing_ok=True)
    if previous is not None and previous.pip:
        target.write_text(_preferences(previous), encoding="utf-8")
    outcome = process.run(
        [uv_binary(), "pip", "compile", "pyproject.toml", *words],
        env=env,
        cwd=folder,
        timeout=TIMEOUT,
        secrets=secrets,
    )
    if not outcome.ok:
        return outcome, ""
    return outcome, target.read_text(encoding="utf-8")


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
        for _ in range(_ROUNDS):
            bindings = {**attempt.bindings, **attempt.added}
            text = project_file(resolution, bindings, sorted(attempt.added), how.index_urls)
            (folder / "pyproject.toml").write_text(text, encoding="utf-8")
            words = _arguments(resolution, attempt, as_of, [normalise(item) for item in upgrade])
            outcome, answer = _run_uv(folder, words, how, previous)
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
            outcome, answer = _run_uv(Path(name), words, reach, None)
        if outcome.ok:
            wheels = [_file_name(file) for e in tomllib.loads(answer)["packages"] for file in e.get("wheels", ())]
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


# ------------------------------------------------------------------------------------------------- parsing


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
    return package, tuple(sorted(_file_name(item) for item in chosen))


def _file_name(item: Mapping[str, Any]) -> str:
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


# ----------------------------------------------------------------------------------------- judging a result


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


def named(resolution: Resolution, url: str) -> str:
    """The label of the index an address belongs to, as words."""
    best = ""
    for label, root in resolution.indexes.items():
        host = re.sub(r"^([a-z]+://[^/]+).*", r"\1", root)
        if url.startswith(root.rstrip("/")) or (not best and url.startswith(host + "/")):
            best = label
    return f"index {best!r}" if best else "the default package index"


def explain(
    outcome: Outcome, resolution: Resolution, bindings: Mapping[str, str], *, as_of: str | None = None
) -> EnvforgeError:
    """uv's failure as one of our errors: the network first, then what was impossible and who asked for it."""
    return _network_error(outcome, resolution, bindings) or _lock_error(outcome, resolution, bindings, as_of)


def _network_error(outcome: Outcome, resolution: Resolution, bindings: Mapping[str, str]) -> NetworkError | None:
    text = outcome.stderr
    refused = re.search(r"request for: (\S+)\n(?:(?!request for:).)*?failure: (401|403) ", text, re.DOTALL)
    # PyTorch's index answers 403 for every package it does not have.
    if refused and refused[2] == "403" and "//download.pytorch.org/" in refused[1]:
        refused = None
    failed = re.search(r"Failed to (?:fetch|download)[^:\n]*: `?(\S+?)`?\n", text)
    if outcome.timed_out:
        return NetworkError("index-timeout", f"locking did not end within {TIMEOUT:.0f} s", hint="try again later")
    if refused or re.search(r"cause: HTTP status client error \((401|403)", text):
        where = named(resolution, refused[1] if refused else failed[1] if failed else "")
        label = re.search(r"'(.*)'", where)
        names = _credential_names(label[1]) if label else "UV_DEFAULT_INDEX with user and password"
        return NetworkError(
            "index-credentials",
            f"{where} wants credentials, or refuses the ones given",
            hint=f"set {names}, or use ~/.netrc; they are never written to the lock",
        )
    if not failed and "error sending request" not in text:
        return None
    where = named(resolution, failed[1] if failed else "")
    causes = tuple(line.strip() for line in text.splitlines() if line.strip().startswith("cause:"))
    reference, words, hint = "index-unreachable", "cannot be reached", "check network, proxy and the index address"
    status = re.search(r"HTTP status \w+ error \((\d+)[^)]*\)", text)
    if status:
        reference, words, hint = "index-error", f"answers with HTTP {status[1]}", "try again later, or use a mirror"
    elif "timed out" in text:
        reference, words, hint = "index-timeout", "does not answer in time", "try again, or raise UV_HTTP_TIMEOUT"
    elif "certificate" in text or "UnknownIssuer" in text:
        reference, words = "index-certificate", "shows a certificate that is not trusted here"
        hint = "set SSL_CERT_FILE to your organisation's CA bundle"
    return NetworkError(reference, f"{where} {words}", context=causes, hint=hint)


def _sentences(text: str) -> list[str]:
    """uv's explanation as one line each, in our words for the project."""
    start = text.find("error: ")
    lines = [line.strip() for line in text[max(start, 0) :].splitlines() if not line.startswith(("DEBUG", "TRACE"))]
    joined = " ".join(re.sub(r"^cause: ", "", line) for line in lines[1:] if line and not line.startswith("hint:"))
    joined = joined.replace(f"{PROJECT} depends on", "the spec asks for")
    joined = re.sub(r"all versions of (\S+) depend on", r"\1 depends on", joined)
    joined = joined.replace("your requirements are unsatisfiable", "no set of versions fits")
    parts = re.split(r"(?<=\.) (?=Because |And )", joined)
    hints = [line for line in lines if line.startswith("hint:")]
    return [part for part in parts if part] + [hint.removeprefix("hint: ") for hint in hints]


def _lock_error(outcome: Outcome, resolution: Resolution, bindings: Mapping[str, str], as_of: str | None) -> LockError:
    text = outcome.stderr
    target = f"Python {resolution.python} on {resolution.platform} with glibc {resolution.glibc}"
    context = tuple(_sentences(text)) or outcome.tail(10)

    def place(name: str) -> str:
        return f"index {bindings[name]!r}" if name in bindings else "the default package index"

    built = re.search(r"Failed to (?:download and )?build `([^`]+)`", text)
    if built:
        return LockError(
            "lock-source-build",
            f"{built[1]} has no wheel and its source could not be read on this machine",
            context=context,
            hint="choose a version with a wheel for the target, or build one and give its index",
        )
    absent = re.search(r"Because (\S+) was not found in (?:the package registry|the provided package locations)", text)
    if absent:
        name = normalise(absent[1])
        return LockError(
            "lock-not-found", f"{name} is not on {place(name)}", context=context, hint="check the name and its index"
        )
    wheelless = re.search(r"(\S+?)(?:==\S+)? has no wheels with a matching (.+?) tag", text)
    if wheelless:
        return LockError(
            "lock-no-wheel",
            f"{normalise(wheelless[1])} has no wheel for {target}",
            context=context,
            hint="choose a version or Python for which there is one",
        )
    if as_of and "filtered by `exclude-newer`" in text:
        return LockError(
            "lock-as-of", f"no set of versions fits as of {as_of}", context=context, hint="choose a later date"
        )
    withdrawn = re.search(r"Because (\S+) was yanked(?: \(reason: (.*?)\))? and", text)
    if withdrawn:
        return LockError(
            "lock-yanked",
            f"{withdrawn[1]} was withdrawn by its maker ({withdrawn[2] or 'no reason given'}) and nothing else fits",
            context=context,
            hint="choose another version, or pin this one exactly with ==",
        )
    missing = re.search(r"there is no version of (\S+?)((?:==|>|<|~=)[^\s,]+)", text)
    if missing:
        name = normalise(missing[1])
        return LockError(
            "lock-no-version",
            f"{name}{missing[2]} is not on {place(name)}",
            context=context,
            hint="choose another version, or name the index that has it",
        )
    return LockError(
        "lock-impossible",
        f"no set of pip packages fits {resolution.name} ({target})",
        context=context,
        hint="loosen one of the requirements named above",
    )


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
        outcome, answer = _run_uv(Path(name), [*_arguments(local, attempt, None, ()), "--no-deps"], how, None)
    if not outcome.ok:
        raise explain(outcome, local, bindings)
    wanted = {value for package in listed for value in package.hashes}
    for entry in loads(answer).packages:
        for file in (*entry.wheels, *((entry.sdist,) if entry.sdist else ())):
            if file.sha256 in wanted:
                places[str(file.sha256)] = file
    return places


# ------------------------------------------------------------------------------------------------ installer


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


_FINDING = threading.Lock()


@cache
def _found_uv() -> str:
    import uv

    return str(uv.find_uv_bin())


def uv_binary() -> str:
    """The uv program of this installation's ``uv`` package.

    Guarded: finding it reads sysconfig, whose first use from two threads at once gives half-filled answers.
    """
    with _FINDING:
        return _found_uv()


def uv_version() -> str:
    """The version of the uv this installation locks with."""
    from importlib.metadata import version

    return version("uv")
