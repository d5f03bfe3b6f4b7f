"""What the user wrote: a YAML spec read into :class:`EnvSpec`, every problem reported at once with its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SPEC_SCHEMA = 1

FrameworkName = Literal["torch", "tensorflow", "jax", "keras", "paddle", "mindspore", "mxnet"]
Accelerator = Literal["auto", "cpu", "cuda"]
CudaSource = Literal["wheels", "base", "conda"]
Toolchain = Literal["none", "nvcc", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkSpec:
    """One framework. ``version`` is exact (may carry a local label such as ``2.7.1+cu118``); ``None``: newest known.

    ``accelerator: auto`` means cuda when the spec has ``cuda``, else cpu. ``index`` is a label of ``indexes``
    or a well-known one (``pytorch-cu118``); ``None``: chosen by the resolver.
    """

    version: str | None = None
    index: str | None = None
    extras: tuple[str, ...] = ()
    accelerator: Accelerator = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseSpec:
    """The base image: a reference with a tag, or ``auto``; ``digest`` pins it by hand."""

    image: str = "auto"
    digest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaSpec:
    """The CUDA the frameworks are built for (``version`` "12.4"); YAML key ``from`` is ``source`` here."""

    version: str
    source: CudaSource = "wheels"
    toolchain: Toolchain = "none"
    compat: bool = False
    cudnn: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagesSpec:
    """Further packages: PEP 508 requirements, Debian package names, conda match specs."""

    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSpec:
    """A package index other than the default one; only ``packages`` (fnmatch patterns) come from it."""

    url: str
    packages: tuple[str, ...] = ()
    find_links: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class UserSpec:
    """The user of the image. ``name: root`` keeps root."""

    name: str = "envforge"
    uid: int = 1000
    gid: int = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSpec:
    """Own code: ``source`` relative to the spec file, ``target`` inside the image; ``install``: pip-install it."""

    source: str
    target: str
    install: Literal["none", "wheel", "editable"] = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class HookSpec:
    """A named extra build step: an argument list (never a shell line), part of the identity."""

    name: str
    command: tuple[str, ...]
    after: Literal["base", "apt", "pip", "files"] = "pip"
    user: Literal["root", "user"] = "root"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetsSpec:
    """Machines it must run on: drivers ("535.104.05"), GPUs ("A100", "sm_90"), the oldest glibc."""

    drivers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    glibc: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeSpec:
    """Smoke level that earns the tag, seconds allowed for one check, checks left out with a reason each."""

    level: int = 4
    timeout: int = 300
    without: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSpec:
    """Upper bounds: image size in MB (10^6 bytes), build time in seconds."""

    size_mb: int | None = None
    build_seconds: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AptSpec:
    """Debian packages: snapshot date (``2026-11-01``) to install from."""

    snapshot: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSpec:
    """A spec with ``extends`` and the chosen variant already merged. Sequences are tuples; nothing is edited later."""

    schema: int = SPEC_SCHEMA
    name: str
    description: str = ""
    kind: Literal["environment", "base"] = "environment"
    extends: str | None = None
    python: str = "3.11"
    platform: Literal["linux/amd64", "linux/arm64"] = "linux/amd64"
    base: BaseSpec = BaseSpec()
    cuda: CudaSpec | None = None
    frameworks: Mapping[FrameworkName, FrameworkSpec] = field(default_factory=dict)
    packages: PackagesSpec = PackagesSpec()
    channels: tuple[str, ...] = ("conda-forge",)
    indexes: Mapping[str, IndexSpec] = field(default_factory=dict)
    mirrors: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    user: UserSpec = UserSpec()
    workdir: str = "/work"
    files: tuple[FileSpec, ...] = ()
    hooks: tuple[HookSpec, ...] = ()
    targets: TargetsSpec = TargetsSpec()
    smoke: SmokeSpec = SmokeSpec()
    budget: BudgetSpec = BudgetSpec()
    apt: AptSpec = AptSpec()
    allow_untested: bool = False
    # Where it came from; not part of the identity.
    variant: str | None = None
    path: Path | None = None
