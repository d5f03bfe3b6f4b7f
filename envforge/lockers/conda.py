"""Conda locks by py-rattler: strict channel order, virtual packages from the spec, every file by sha256.

Nothing of the machine that locks has a say: ``__cuda``, ``__glibc`` and ``__archspec`` come from the resolution,
so linux-64 and linux-aarch64 are locked from either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envforge.conda_names import CHANNEL_HOST, INSTALLER_VERSION, SUBDIRS, channel_url, environment, package_url
from envforge.errors import LockError, NetworkError

__all__ = ["CHANNEL_HOST", "INSTALLER_VERSION", "SUBDIRS", "channel_url", "environment", "lock", "package_url"]

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.lock import LockedConda
    from envforge.resolve import Resolution

# Kernel that images of the last years run on; only packages that need a newer one care.
KERNEL = "5.15"
ARCHSPEC = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
# The conda package of each framework.
FRAMEWORKS = {
    "torch": "pytorch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "keras": "keras",
    "paddle": "paddlepaddle",
    "mxnet": "mxnet",
}
# Names that carry the CUDA version of a build; each is bound to the spec's CUDA when something needs it.
CUDA_NAMES = ("cuda-version", "cudatoolkit", "pytorch-cuda")
# A build string that claims a CUDA version: cuda118_py311…, py3.12_cuda12.4_cudnn9…, …cuda129py312….
_CLAIM = re.compile(r"cuda[_]?(\d{2})(\d)(?!\d)|cuda(\d{2})\.(\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A limit that the publishers' metadata lacks: ``constraint`` holds when ``package`` below ``below`` is wanted."""

    package: str
    below: str
    constraint: str
    why: str


KNOWN_BOUNDS = (
    Bound(
        package="pytorch",
        below="2.4",
        constraint="mkl <2024.1",
        why="builds before 2.4 fail at import with mkl 2024.1: undefined symbol iJIT_NotifyEvent "
        "(pytorch/pytorch issue 123097)",
    ),
)


def virtual_packages(resolution: Resolution, subdir: str) -> dict[str, str]:
    """The virtual packages of the target, name -> version; ``__cuda`` only when the environment has CUDA."""
    found = {"__unix": "0", "__linux": KERNEL, "__glibc": resolution.glibc, "__archspec": "1"}
    if resolution.cuda is not None:
        found["__cuda"] = resolution.cuda.version
    if subdir not in ARCHSPEC:
        raise LockError(
            "conda-platform",
            f"{resolution.name}: no conda lock for {subdir}",
            hint=f"known: {', '.join(ARCHSPEC)}",
        )
    return dict(sorted(found.items()))


def settings(resolution: Resolution) -> dict[str, str]:
    """What decided the conda part beside the specs; stands in the lock and is part of the identity."""
    subdir = SUBDIRS[resolution.platform]
    virtual = virtual_packages(resolution, subdir)
    return {
        "priority": "strict",
        "channels": ",".join(resolution.channels),
        "virtual": ",".join(f"{name}={version}" for name, version in virtual.items()),
        "archspec": ARCHSPEC[subdir],
    }


def _name_of(spec: str) -> str:
    match = re.match(r"(?:[^\s\[]*::)?([A-Za-z0-9_.-]+?)(?=[\s=<>!~\[]|$)", spec.strip())
    return match.group(1).lower() if match else spec


def requested(resolution: Resolution) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(specs to install, bounds on what comes with them), duplicates removed, in the spec's order.

    Build strings and per-package channels (``pytorch::pytorch=2.0.0=*cuda11.7*``) are kept as written.
    """
    wanted = list(dict.fromkeys(" ".join(spec.split()) for spec in resolution.conda))
    names = {_name_of(spec) for spec in wanted}
    if "python" not in names:
        wanted.insert(0, f"python {resolution.python}.*")
    pip_names = {re.split(r"[\s\[<>=!~;@]", one.text, maxsplit=1)[0].lower() for one in resolution.requirements}
    cuda = resolution.cuda
    if cuda is not None and cuda.source == "conda":
        for framework in resolution.frameworks:
            name = FRAMEWORKS.get(framework.name)
            if name is None or name in names or framework.distribution.lower() in pip_names:
                continue
            build = " *cuda*" if framework.accelerator == "cuda" and framework.name != "jax" else ""
            wanted.append(f"{name} {framework.version.split('+')[0]}{build or ' *'}".removesuffix(" *"))
            if framework.name == "jax" and framework.accelerator == "cuda":
                wanted.append("jaxlib * *cuda*")
    bounds = []
    if cuda is not None and cuda.source == "conda":
        bounds += [f"{name} {cuda.version}.*" for name in CUDA_NAMES if name not in names]
        if cuda.cudnn:
            bounds.append(f"cudnn {cuda.cudnn}.*")
    # What the tables know of pip packages of the same name holds for conda's builds too (numpy<2 for old torch).
    for item in resolution.constraints:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)\s*((?:==|!=|<=|>=|<|>)[A-Za-z0-9_.*+!,<>=]+)", item.text.strip())
        if match:
            bounds.append(f"{match.group(1)} {match.group(2)}")
    bounds += [bound.constraint for bound, _ in known_bounds(wanted)]
    return tuple(wanted), tuple(dict.fromkeys(bounds))


# Distributions that a conda package of another name carries.
CARRIED = {"pytorch": ("torch",), "pytorch-gpu": (), "tensorflow-base": ("tensorflow",), "msgpack-python": ("msgpack",)}


def clashes(packages: Sequence[LockedConda], pip: Sequence[str]) -> list[str]:
    """Distributions of the pip lock that a conda package already brings: pip would overwrite its files."""
    brought = {}
    for package in packages:
        name = package.name.lower().replace("_", "-").replace(".", "-")
        for distribution in CARRIED.get(name, (name,)):
            brought[distribution] = package
    return [
        f"{name}: in the pip lock and brought by conda ({brought[name].name} {brought[name].version})"
        for name in sorted(set(pip) & set(brought))
    ]


def known_bounds(specs: Sequence[str]) -> tuple[tuple[Bound, str], ...]:
    """Limits that apply to these specs, each with the spec that brought it; not where the user set one himself."""
    from packaging.version import Version

    names = {_name_of(spec) for spec in specs}
    found = []
    for bound in KNOWN_BOUNDS:
        if _name_of(bound.constraint) in names:
            continue
        for spec in specs:
            match = re.search(r"[\s=](\d+(?:\.\d+)*)", spec)
            if _name_of(spec) == bound.package and match and Version(match.group(1)) < Version(bound.below):
                found.append((bound, spec))
    return tuple(found)


def lock(
    resolution: Resolution,
    *,
    subdirs: Sequence[str] = ("linux-64",),
    as_of: str | None = None,
    channels_base: str | None = None,
    console: Console | None = None,
) -> tuple[LockedConda, ...]:
    """Solve once per subdir and return every package, sorted by subdir and name.

    ``as_of``: ISO date or time; packages uploaded later do not exist. ``channels_base``: another host for
    channel names (a mirror). Raises LockError (who needs what) and NetworkError (which channel).
    """
    found: dict[tuple[str, str, str], LockedConda] = {}
    if "defaults" in resolution.channels and console is not None:
        console.warn("the channel 'defaults' has licence terms for larger organisations; conda-forge has none")
    for subdir in subdirs:
        for package in _solve(resolution, subdir, as_of, channels_base, console):
            found[(package.subdir, package.name, package.filename)] = package
    packages = tuple(found[key] for key in sorted(found))
    for line in claims_against(resolution, packages):
        if console is not None:
            console.warn(line)
    return packages


def _solve(
    resolution: Resolution, subdir: str, as_of: str | None, base: str | None, console: Console | None
) -> list[LockedConda]:
    import asyncio

    import rattler

    wanted, bounds = requested(resolution)
    if console is not None:
        for bound, spec in known_bounds(wanted):
            console.note(f"bound added for {spec}: {bound.constraint} ({bound.why})")
        console.note(f"solving {len(wanted)} conda specs for {subdir} …")
    channels = [rattler.Channel(channel_url(name, base)) for name in _channels(resolution, wanted)]
    virtual = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name),
            rattler.Version(version),
            rattler.BuildString(ARCHSPEC[subdir] if name == "__archspec" else "0"),
        )
        for name, version in virtual_packages(resolution, subdir).items()
    ]
    arguments: dict[str, Any] = {
        "sources": channels,
        "specs": [_match(rattler, spec, base) for spec in wanted],
        "platforms": [subdir, "noarch"],
        "gateway": rattler.Gateway(client=rattler.Client(), show_progress=False),
        "virtual_packages": virtual,
        "channel_priority": rattler.ChannelPriority.Strict,
        "constraints": [_match(rattler, spec, base) for spec in bounds],
        "exclude_newer": _moment(as_of) if as_of else None,
        "channel_relations": "disabled",
    }
    try:
        records = asyncio.run(_call(rattler, arguments))
    except Exception as problem:
        raise _explained(problem, resolution, subdir, wanted, bounds) from problem
    return [_locked(record, resolution, base) for record in records]


async def _call(rattler: Any, arguments: dict[str, Any]) -> Any:
    return await rattler.solve(**arguments)


def _channels(resolution: Resolution, wanted: Sequence[str]) -> list[str]:
    """The spec's channels in its order; one that only a ``channel::package`` names comes last."""
    named = [spec.split("::", 1)[0] for spec in wanted if "::" in spec]
    return list(dict.fromkeys([*resolution.channels, *named]))


def _match(rattler: Any, spec: str, base: str | None) -> Any:
    if "::" in spec:
        channel, rest = spec.split("::", 1)
        spec = f"{channel_url(channel, base)}::{rest}"
    try:
        return rattler.MatchSpec(spec)
    except Exception as problem:
        raise LockError(
            "conda-spec", f"{spec!r} is not a conda package spec: {problem}", hint="for example: numpy >=1.26,<2"
        ) from problem


def _moment(text: str) -> Any:
    import datetime

    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as problem:
        raise LockError("as-of", f"{text!r} is not a date", hint="for example: --as-of 2026-11-01") from problem
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _locked(record: Any, resolution: Resolution, base: str | None) -> LockedConda:
    from envforge.lock import LockedConda

    name = str(record.name.source)
    if not record.sha256:
        raise LockError(
            "conda-hash-missing",
            f"{resolution.name}: {record.file_name} of {record.channel} has no sha256 in its channel's index",
            hint="choose another build, or a channel whose index carries sha256",
        )
    return LockedConda(
        name=name,
        version=str(record.version),
        build=str(record.build),
        channel=_short_channel(str(record.url), base),
        subdir=str(record.subdir),
        filename=str(record.file_name),
        sha256=bytes(record.sha256).hex(),
        size=int(record.size) if record.size is not None else None,
    )


def _short_channel(url: str, base: str | None) -> str:
    """``conda-forge`` from the address of a file; a channel of another host stays a URL, without credentials."""
    channel = re.sub(r"//[^/@]*@", "//", url.rsplit("/", 2)[0])
    for host in (base, CHANNEL_HOST):
        if host and channel.startswith(host.rstrip("/") + "/"):
            return channel[len(host.rstrip("/")) + 1 :]
    return channel


def claims(package: LockedConda) -> str | None:
    """The CUDA version a package says it is for: its build string, or its version for the CUDA name packages."""
    if package.name in CUDA_NAMES:
        return ".".join(package.version.split(".")[:2])
    match = _CLAIM.search(package.build)
    if match is None:
        return None
    return f"{match.group(1)}.{match.group(2)}" if match.group(1) else f"{match.group(3)}.{match.group(4)}"


def effective_cuda(packages: Sequence[LockedConda]) -> str | None:
    """The newest CUDA version the packages are built for; None: no package claims one."""
    from packaging.version import Version

    found = [claim for claim in (claims(package) for package in packages) if claim]
    return max(found, key=Version) if found else None


def claims_against(resolution: Resolution, packages: Sequence[LockedConda]) -> list[str]:
    """Sentences about builds made for a newer CUDA than the one declared (legal, and it raises the driver)."""
    from packaging.version import Version

    declared = resolution.cuda.version if resolution.cuda else None
    lines = []
    for package in packages:
        claim = claims(package)
        if claim is None:
            continue
        if declared is None:
            lines.append(
                f"{package.name} {package.version} {package.build} is built for CUDA {claim}, the spec has no CUDA"
            )
        elif Version(claim) > Version(declared):
            lines.append(
                f"{package.name} {package.version} {package.build} is built for CUDA {claim}, "
                f"the spec declares {declared}: the driver must fit {claim}"
            )
    return lines


def _explained(
    problem: Exception, resolution: Resolution, subdir: str, wanted: Sequence[str], bounds: Sequence[str]
) -> LockError | NetworkError:
    """rattler's error as ours: the solver's own account line by line, or the channel that did not answer."""
    if isinstance(problem, LockError):
        return problem
    kind = type(problem).__name__
    text = re.sub(r"//[^/@\s]*@", "//", str(problem))
    if kind == "SolverError":
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        virtual = virtual_packages(resolution, subdir)
        lines.append("asked for: " + "; ".join([*wanted, *(f"{one} (bound)" for one in bounds)]))
        lines.append("target: " + ", ".join(f"{name} {version}" for name, version in virtual.items()))
        lines.append("channels, strict order: " + ", ".join(_channels(resolution, wanted)))
        return LockError(
            "conda-conflict",
            f"{resolution.name}: the conda packages cannot be installed together on {subdir}",
            context=tuple(lines),
            hint="loosen one of the specs above, or name the channel of a package (channel::package)",
        )
    if kind in ("GatewayError", "FetchRepoDataError", "IoError"):
        channel = re.search(r"https?://\S+", text)
        return NetworkError(
            "conda-channel",
            f"{resolution.name}: the channel {channel.group(0).rstrip(').,') if channel else '?'} "
            f"cannot be read for {subdir}",
            context=tuple(text.splitlines()[:10]),
            hint="check the channel's name and the network; `mirrors` or a whole URL names another host",
        )
    return LockError(
        "conda-lock",
        f"{resolution.name}: {kind}: {text.splitlines()[0] if text else ''}",
        context=tuple(text.splitlines()[1:10]),
    )
