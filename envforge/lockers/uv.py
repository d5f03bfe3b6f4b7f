"""Runs uv for a target: its program, platform names, clean environment and the project file it solves."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envforge.errors import LockError
from envforge.lock import Lock

if TYPE_CHECKING:
    from envforge.process import Outcome
    from envforge.resolve import Resolution

PROJECT = "envforge-lock"  # stands for the spec in uv's explanations

TIMEOUT = 900.0  # seconds for one run of uv; its own limits for a request are far below

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How indexes are reached from this machine; never recorded and never part of a result.

    ``index_url`` stands for the default index, ``index_urls`` (label -> URL) for labelled ones, ``ca_bundle``
    is a file of certificates to trust.
    """

    index_url: str | None = None
    index_urls: Mapping[str, str] = field(default_factory=dict)
    ca_bundle: Path | None = None


def normalise(name: str) -> str:
    """A project name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


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


def toml_text(value: str) -> str:
    """A TOML basic string."""
    import json

    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


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


def _preferences(previous: Lock) -> str:
    """The former pins as the pylock file that uv prefers to keep to (hashes and places do not matter to it)."""
    lines = ['lock-version = "1.0"', 'created-by = "envforge"']
    for package in previous.pip:
        if package.url:
            continue
        lines += ["[[packages]]", f"name = {toml_text(package.name)}", f"version = {toml_text(package.version)}"]
        place = f"https://index.invalid/{package.name.replace('-', '_')}-{package.version}-py3-none-any.whl"
        hash_ = package.hashes[0].removeprefix("sha256:")
        lines.append(f"wheels = [{{ url = {toml_text(place)}, hashes = {{ sha256 = {toml_text(hash_)} }} }}]")
    return "\n".join(lines) + "\n"


def run_uv(folder: Path, words: Sequence[str], reach: Reach, previous: Lock | None) -> tuple[Outcome, str]:
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


def constraints_file(resolution: Resolution) -> str:
    """The bounds for packages that need not be there, one a line."""
    return "".join(f"{bound.text}\n" for bound in resolution.constraints)


def label_for(name: str, resolution: Resolution) -> str | None:
    """The index whose patterns claim this package, or None for the default one."""
    for label, patterns in sorted(resolution.index_packages.items()):
        if label in resolution.indexes and any(fnmatchcase(name, pattern.lower()) for pattern in patterns):
            return label
    return None


def project_file(
    resolution: Resolution,
    bindings: Mapping[str, str],
    added: Sequence[str],
    index_urls: Mapping[str, str] | None = None,
) -> str:
    """The project uv compiles: requirements, and for every bound package its only index.

    Constraints are not here: without configuration files uv does not read them from a project
    (see :func:`constraints_file`).
    """
    urls = {**resolution.indexes, **(index_urls or {})}
    wanted = [requirement.text for requirement in resolution.requirements] + sorted(added)
    lines = [
        "[project]",
        f"name = {toml_text(PROJECT)}",
        'version = "0"',
        f"requires-python = {toml_text('>=' + resolution.python)}",
        f"dependencies = [{', '.join(toml_text(item) for item in wanted)}]",
        "[tool.uv.workspace]",  # a project above the temporary folder must not have a say
        "members = []",
        "[tool.uv.sources]",
    ]
    lines += [f"{toml_text(name)} = {{ index = {toml_text(label)} }}" for name, label in sorted(bindings.items())]
    for label in sorted({*bindings.values()}):
        lines += ["[[tool.uv.index]]", f"name = {toml_text(label)}", f"url = {toml_text(urls[label])}"]
        lines.append("explicit = true")
        if label in resolution.find_links:
            lines.append('format = "flat"')
    return "\n".join(lines) + "\n"
