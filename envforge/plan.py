"""Resolution + Lock -> BuildPlan: ordered layers, files, labels, tag. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from envforge.lock import Lock
from envforge.resolve import Resolution

Form = Literal["buildkit", "plain"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPlan:
    """All that the renderer sees. ``lock`` is None only for `render --unlocked` (said inside the Dockerfile)."""

    resolution: Resolution
    lock: Lock | None
    form: Form
    repository: str  # "envforge/torch-cu124"
    tag: str  # first 12 of the inputs digest, or "unlocked"
    labels: tuple[tuple[str, str], ...]
    prefix: str = "/opt/env"  # the virtual environment inside the image


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A build context: Dockerfile text and every other file by its path in the context (bytes, mode 0644)."""

    dockerfile: str
    files: Mapping[str, bytes] = field(default_factory=dict)
