"""Base images: which one a build stands on, what replaces it where no registry answers, and how to make one.

A bootstrapped base is Debian's own Python on Debian's own packages. It may stand in for an image of the same
system and Python, is always named as a substitute, and never carries the original's digest.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from envforge import paths, process
from envforge.config import Config
from envforge.docker_errors import bootstrap_hint
from envforge.engine import EngineInfo, ImageInfo
from envforge.errors import EngineError, NetworkError, UsageError
from envforge.resolve import BaseChoice

REPOSITORY = "envforge/base"
LABEL = "envforge.bootstrap"
# Debian release -> its own Python; no release has 3.10 or 3.12.
SUITES: Mapping[str, str] = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
PACKAGES = ("ca-certificates", "python3", "python3-venv")
_FORGET_AFTER = 600.0  # seconds a failed pull is remembered, so that an unchanged build stays fast offline


class BaseEngine(Protocol):
    """What choosing and making bases asks of an engine (only the Docker engine has it)."""

    def info(self) -> EngineInfo: ...

    def has(self, reference: str) -> bool: ...

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> None: ...

    def bases(self) -> Sequence[ImageInfo]: ...

    def import_rootfs(self, tar: IO[bytes], repository: str, tag: str, changes: Sequence[str]) -> ImageInfo: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenBase:
    """``reference`` is what FROM gets. ``substituted``: it is not the image asked for, ``reason`` says why."""

    reference: str
    substituted: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrapped:
    """A base made here."""

    reference: str
    suite: str
    python: str
    image: str
    size_bytes: int
    seconds: float


# --- mapping -------------------------------------------------------------------------------------------------


def split_reference(image: str) -> tuple[str, str, str, str | None]:
    """(registry, repository, tag, digest) as Docker reads a name: ``python`` is ``docker.io/library/python:latest``."""
    name, _, digest = image.partition("@")
    head, slash, rest = name.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        registry, path = head, rest
    else:
        registry, path = "docker.io", name
    path, colon, tag = path.rpartition(":")
    if not colon:
        path, tag = tag, ""
    if registry == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return registry, path, tag or ("" if digest else "latest"), digest or None


def map_image(image: str, config: Config) -> tuple[str, str]:
    """The image to use instead of ``image`` by the config file, and why ("" when nothing is mapped).

    ``bases`` (exact name without a digest) wins over ``registries`` (host). A mapped registry keeps
    the digest: the content is the same. A mapped base drops it.
    """
    name = image.partition("@")[0]
    if name in config.bases:
        return config.bases[name], f"the config file maps {name} to {config.bases[name]}"
    registry, path, tag, digest = split_reference(image)
    other = config.registries.get(registry)
    if other is None:
        return image, ""
    mapped = f"{other.rstrip('/')}/{path}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
    return mapped, f"the config file maps {registry} to {other}"


# --- choosing ------------------------------------------------------------------------------------------------


def python_of(image: str) -> str | None:
    """``3.11`` of ``python:3.11-slim-bookworm``; None for images that are not named after a Python."""
    _, path, tag, _ = split_reference(image)
    version = tag.split("-", 1)[0].split(".")
    if path.rsplit("/", 1)[-1] == "python" and len(version) >= 2 and all(part.isdigit() for part in version[:2]):
        return ".".join(version[:2])
    return None


def substitute(base: BaseChoice, bases: Sequence[ImageInfo]) -> ImageInfo | None:
    """The bootstrapped base of the same system and Python, if there is one. Pure."""
    system, _, suite = base.system.partition(":")
    if system != "debian" or base.python_from == "uv":
        return None
    wanted = python_of(base.image) or SUITES.get(suite)
    for info in bases:
        if info.labels.get(LABEL) == suite and info.labels.get("envforge.bootstrap-python") == wanted:
            return info
    return None


def choose(engine: Any, base: BaseChoice, config: Config, progress: Callable[[str], None] | None = None) -> ChosenBase:
    """The base image this build can have: as the spec names it, as the config maps it, or a bootstrapped stand-in.

    Raises NetworkError (``image-not-found``, ``registry-refused``, ``registry-unreachable``) with the command
    that makes a stand-in when there is none; EngineError when the engine is lost.
    """
    source: BaseEngine = engine
    asked = f"{base.image}@{base.digest}" if base.digest else base.image
    reference, reason = map_image(asked, config)
    remapped = base.image in config.bases
    tagged = reference.partition("@")[0]
    # With a digest, an image that merely has the tag is not good enough.
    if source.has(reference):
        return ChosenBase(reference=reference, substituted=remapped, reason=reason or "as the spec names it")
    stand_in = substitute(base, source.bases())
    error = _remembered(reference)
    if error is None or stand_in is None:
        try:
            source.pull(reference, progress)
            return ChosenBase(reference=reference, substituted=remapped, reason=reason or "as the spec names it")
        except NetworkError as failure:
            error = failure.message
            _remember(reference, error)
            if stand_in is None:
                raise _no_base(base, failure) from failure
    assert stand_in is not None
    name = _own_tag(stand_in)
    return ChosenBase(
        reference=name, substituted=True, reason=f"{tagged} cannot be had: {error}; same system and Python"
    )


def _own_tag(info: ImageInfo) -> str:
    """The name we gave it; Podman shows it with a registry in front."""
    return next((tag for tag in info.tags if f"{REPOSITORY}:" in tag), info.tags[0])


def _no_base(base: BaseChoice, failure: NetworkError) -> NetworkError:
    python = python_of(base.image)
    system, _, suite = base.system.partition(":")
    if system == "debian" and (python or SUITES.get(suite)) == SUITES.get(suite):
        hint = bootstrap_hint(SUITES[suite])
    elif system == "debian" and python:
        hint = (
            f"no Debian release has Python {python} (only {', '.join(sorted(SUITES.values()))}), so no base can be "
            "made from packages: map the image in the config file (`bases`), or choose one of those versions"
        )
    else:
        hint = "map the registry or the image to another one in the config file (`registries`, `bases`)"
    if failure.reference == "image-not-found":
        from envforge.registry import live_name

        live = live_name(base.image)
        hint = f"{live}; or {hint}" if live else hint
    return NetworkError(failure.reference, failure.message, context=failure.context, hint=hint)


def _memory() -> Path:
    return paths.cache() / "unreachable-images.json"


def _remembered(reference: str) -> str | None:
    try:
        row = json.loads(_memory().read_text(encoding="utf-8")).get(reference)
        return str(row["message"]) if row and time.time() - float(row["at"]) < _FORGET_AFTER else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(reference: str, message: str) -> None:
    try:
        known = json.loads(_memory().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    known[reference] = {"message": message, "at": time.time()}
    paths.write_atomic(_memory(), json.dumps(known, indent=1).encode())


# --- making --------------------------------------------------------------------------------------------------


def suite_for(python: str) -> str:
    """The Debian release whose Python this is. UsageError ``no-debian-python`` when none has it."""
    for suite, version in SUITES.items():
        if version == python:
            return suite
    known = ", ".join(f"{version} ({suite})" for suite, version in SUITES.items())
    raise UsageError(
        "no-debian-python",
        f"no Debian release comes with Python {python}",
        hint=f"Pythons that can be bootstrapped: {known}; for {python} an image has to come from a registry, "
        "map one in the config file (`bases`)",
    )


def bootstrap(
    engine: Any,
    python: str,
    *,
    again: bool = False,
    note: Callable[[str], None],
    detail: Callable[[str], None] = lambda text: None,
) -> Bootstrapped:
    """Make ``envforge/base:<suite>-py<python>`` from Debian packages and import it; one that is there is kept.

    Needs root and the program debootstrap here (the engine may be elsewhere); packages come from where
    debootstrap finds them by itself. Raises UsageError, EngineError ``no-debootstrap``, ``needs-root``,
    ``bootstrap-failed``.
    """
    target: BaseEngine = engine
    suite = suite_for(python)
    for info in () if again else target.bases():
        if info.labels.get(LABEL) == suite and info.labels.get("envforge.bootstrap-python") == python:
            note(f"{REPOSITORY}:{suite}-py{python} is already there, made {info.created[:10]}; --again makes it anew")
            return Bootstrapped(
                reference=_own_tag(info),
                suite=suite,
                python=python,
                image=info.image,
                size_bytes=info.size_bytes,
                seconds=0.0,
            )
    program = shutil.which("debootstrap", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if program is None:
        raise EngineError(
            "no-debootstrap", "the program debootstrap is not installed", hint="apt-get install debootstrap"
        )
    if hasattr(os, "geteuid") and os.geteuid() != 0:
        raise EngineError(
            "needs-root",
            "making a base from packages unpacks files of other owners and needs root",
            hint=f"sudo envforge base bootstrap --python {python}",
        )
    started, begun = time.monotonic(), time.time()
    tag = f"{suite}-py{python}"
    architecture = target.info().platform.partition("/")[2]
    paths.cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bootstrap-", dir=paths.cache()) as folder:
        root = Path(folder) / "root"
        note(f"debootstrap {suite} ({architecture}), about a minute …")
        command: list[str | Path] = [
            program,
            "--variant=minbase",
            f"--arch={architecture}",
            f"--include={','.join(PACKAGES)}",
            suite,
            root,
        ]
        outcome = process.run(command, env=_debootstrap_env(), on_line=detail, timeout=3600)
        if not outcome.ok:
            log = root / "debootstrap" / "debootstrap.log"
            more = tuple(log.read_text("utf-8", "replace").splitlines()[-10:]) if log.is_file() else ()
            raise EngineError(
                "bootstrap-failed",
                f"debootstrap ended with code {outcome.code}",
                context=(*outcome.tail(10), *more),
                hint="is the Debian mirror reachable? debootstrap uses its own default mirror",
            )
        link_python(root, python)
        note("importing …")
        with tempfile.TemporaryFile(dir=folder) as tar:
            write_rootfs(root, tar, newest=begun)
            tar.seek(0)
            image = target.import_rootfs(tar, REPOSITORY, tag, _changes(suite, python))
    return Bootstrapped(
        reference=f"{REPOSITORY}:{tag}",
        suite=suite,
        python=python,
        image=image.image,
        size_bytes=image.size_bytes,
        seconds=time.monotonic() - started,
    )


def _debootstrap_env() -> dict[str, str]:
    kept = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "TMPDIR", "HOME")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    # The day an account is made stands in /etc/shadow; with this variable it does not.
    env["SOURCE_DATE_EPOCH"] = "0"
    return env | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


def _changes(suite: str, python: str) -> list[str]:
    return [
        f"LABEL {LABEL}={suite}",
        f"LABEL envforge.bootstrap-python={python}",
        f'LABEL org.opencontainers.image.title="Debian {suite} with Python {python}, from packages"',
        'CMD ["python3"]',
    ]


def link_python(root: Path, python: str) -> None:
    """Names under /usr/local/bin as the official Python images have them, so that one Dockerfile fits both."""
    folder = root / "usr" / "local" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", f"python{python}"):
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(f"/usr/bin/python{python}")


# What differs from one run to the next or belongs to the machine that made it.
_LEFT_OUT = (
    "var/cache/apt/", "var/lib/apt/lists/", "var/log/", "var/cache/ldconfig/", "var/cache/debconf/", "tmp/", "run/",
    "debootstrap/", "dev/", "proc/", "sys/", "var/lib/systemd/random-seed",
)  # fmt: skip
_EMPTIED = {"etc/machine-id", "etc/hostname", "etc/resolv.conf"}


def write_rootfs(root: Path, target: IO[bytes], newest: float | None = None) -> None:
    """The tree as a tar that depends on its content only: sorted, numeric owners, caches and logs left out.

    Times of files are kept when they are the packages' own, that is older than ``newest`` (seconds; None: all are);
    of newer files, folders and links they are zero.
    """
    limit = newest if newest is not None else float("inf")
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if any(name.startswith(prefix) for prefix in _LEFT_OUT):
                continue
            member = archive.gettarinfo(path, arcname=name)
            if "__pycache__" in name or member is None:
                continue  # compiled with the time of this run inside; Python makes them again
            member.uname = member.gname = ""
            member.mtime = int(member.mtime) if member.isreg() and member.mtime < limit else 0
            member.pax_headers = {}
            if name in _EMPTIED:
                member.size, member.mtime, member.type, member.linkname = 0, 0, tarfile.REGTYPE, ""
                archive.addfile(member, io.BytesIO(b""))
            elif member.isreg():
                with path.open("rb") as stream:
                    archive.addfile(member, stream)
            else:
                archive.addfile(member)
