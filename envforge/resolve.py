"""Spec + tables -> Resolution (every choice filled in, each with its reason) or a conflict. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from envforge.spec import AptSpec, BudgetSpec, CudaSource, FileSpec, HookSpec, SmokeSpec, Toolchain, UserSpec

DEFAULT_INDEX = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a field got its value; ``field`` is the spec path ("base.image"), shown by `show` and as a comment."""

    field: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseChoice:
    """The base image. ``python_from``: the image has the interpreter, apt installs it, or uv fetches it."""

    image: str  # "python:3.11-slim-bookworm" (with tag, without digest)
    digest: str | None  # "sha256:…" only when it is that of an image index or was given by hand
    system: str  # "debian:bookworm", "ubuntu:22.04"
    glibc: str  # "2.36"
    python_from: Literal["image", "apt", "uv", "conda"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaChoice:
    """The one CUDA of the environment. ``version`` "12.4"; ``tag`` "cu124"; ``cudnn`` "9.1" or None."""

    version: str
    tag: str
    source: CudaSource
    toolchain: Toolchain
    compat: bool
    cudnn: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkChoice:
    """A framework with its version decided. ``version`` may carry the local label; ``distribution`` is the pip name."""

    name: str  # "torch", "tensorflow", "jax", …
    distribution: str  # "torch", "tensorflow-cpu", "paddlepaddle-gpu"
    version: str
    accelerator: Literal["cpu", "cuda"]
    cuda: str | None  # CUDA version of this build, None for CPU
    index: str  # index label, DEFAULT_INDEX for the default one


@dataclass(frozen=True, kw_only=True, slots=True)
class PipRequirement:
    """One requirement handed to the pip solver: PEP 508 text, the only index it may come from, and why it is there."""

    text: str
    index: str = DEFAULT_INDEX
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """Everything decided before locking. Two equal Resolutions lock the same way on any machine on the same date."""

    name: str
    description: str
    kind: Literal["environment", "base"]
    python: str  # "3.11"
    platform: str  # "linux/amd64"
    base: BaseChoice
    cuda: CudaChoice | None
    frameworks: tuple[FrameworkChoice, ...]
    requirements: tuple[PipRequirement, ...]
    constraints: tuple[PipRequirement, ...]  # bounds only, installed when something needs them
    indexes: Mapping[str, str]  # label -> URL; the default index has no entry
    index_packages: Mapping[str, tuple[str, ...]]  # label -> fnmatch patterns of packages bound to it
    find_links: tuple[str, ...]  # labels whose URL is a flat page of files
    mirrors: Mapping[str, str]
    conda: tuple[str, ...]
    channels: tuple[str, ...]
    apt: tuple[str, ...]
    apt_options: AptSpec
    env: tuple[tuple[str, str], ...]  # sorted
    user: UserSpec
    workdir: str
    files: tuple[FileSpec, ...]
    hooks: tuple[HookSpec, ...]
    smoke: SmokeSpec
    budget: BudgetSpec
    glibc: str  # oldest glibc that locked wheels must accept
    untested: bool  # an unverified choice was let through
    verdict: str  # ok | ok-with-limits | unverified
    reasons: tuple[Reason, ...] = field(default=())
