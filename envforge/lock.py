"""Lock records, their canonical bytes, the inputs digest, and whether a lock still fits. Pure.

``lockfiles/NAME/envforge.lock.yaml`` ties together ``pip.<index label>.txt`` (hash-checked requirement
files, one per index) and ``conda.<subdir>.txt`` (explicit, with sha256).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LOCK_SCHEMA = 1
LOCK_FILE = "envforge.lock.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPackage:
    """A pip package: normalised name, exact version, index label, sorted ``sha256:…`` of every file allowed."""

    name: str
    version: str
    index: str
    hashes: tuple[str, ...]
    via: tuple[str, ...] = ()
    source_only: bool = False  # no wheel for the target: it will be compiled


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedConda:
    """A conda package of the explicit lock."""

    name: str
    version: str
    build: str
    channel: str
    subdir: str
    filename: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedBase:
    """The base image: its tag always, a digest only when it is an image index's; else the reason why not."""

    image: str
    digest: str | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """One environment's lock. ``resolution_digest`` says what it was made from, ``inputs_digest`` is the identity."""

    name: str
    resolution_digest: str
    inputs_digest: str
    python: str
    platform: str
    base: LockedBase
    pip: tuple[LockedPackage, ...]
    conda: tuple[LockedConda, ...] = ()
    apt: tuple[tuple[str, str], ...] = ()  # (package, exact version) when known
    indexes: Mapping[str, str] = field(default_factory=dict)  # label -> URL, never the default index
    tools: Mapping[str, str] = field(default_factory=dict)  # installers used inside the image: {"uv": "0.9.1"}
    as_of: str | None = None
    notes: tuple[str, ...] = ()  # "not rebuilt here", "transcribed from …"
