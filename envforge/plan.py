"""Resolution + Lock -> BuildPlan: ordered layers, files, labels, tag. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from envforge.errors import LockError
from envforge.lock import TEMPLATE_VERSION, Lock
from envforge.resolve import Resolution

PREFIX = "/opt/env"

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
    prefix: str = PREFIX  # the virtual environment inside the image
    base: str = ""  # what FROM names: the resolution's image with its digest, or a substitute
    substituted: bool = False  # the base is not the one the spec asks for


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A build context: Dockerfile text and every other file by its path in the context (bytes, mode 0644)."""

    dockerfile: str
    files: Mapping[str, bytes] = field(default_factory=dict)


def repository(name: str) -> str:
    """The image repository of an environment; ``NAME@variant`` becomes ``NAME-variant``."""
    return f"envforge/{name.replace('@', '-')}"


def make_plan(
    resolution: Resolution, lock: Lock | None, form: Form = "buildkit", *, base: str | None = None
) -> BuildPlan:
    """The plan for one environment.

    ``base`` is the reference to build on when it is not the resolution's own (a lab's copy or a substitute); a
    reference that ends in the resolution's image is a copy of it, every other one is a substitute and labelled.
    Raises LockError when the lock belongs to another environment.
    """
    if lock is not None and lock.name != resolution.name:
        raise LockError(
            "lock-foreign",
            f"this lock is of {lock.name!r}, not of {resolution.name!r}",
            hint=f"envforge lock {resolution.name}",
        )
    digest = (lock.base.digest if lock is not None else None) or resolution.base.digest
    own = resolution.base.image + (f"@{digest}" if digest else "")
    chosen = base or own
    image = f"/{chosen.partition('@')[0]}"
    substituted = base is not None and not image.endswith(f"/{resolution.base.image}")
    identity = lock.inputs_digest if lock is not None else ""
    tag = identity.removeprefix("sha256:")[:12] if lock is not None else "unlocked"
    return BuildPlan(
        resolution=resolution,
        lock=lock,
        form=form,
        repository=repository(resolution.name),
        tag=tag,
        labels=_labels(resolution, identity, own, chosen if substituted else "", digest, tag),
        base=chosen,
        substituted=substituted,
    )


def _labels(
    resolution: Resolution, identity: str, own: str, substitute: str, digest: str | None, tag: str
) -> tuple[tuple[str, str], ...]:
    """OCI and envforge labels, sorted. No time, no host and no tool version: they are not part of the identity."""
    labels = {
        "org.opencontainers.image.title": resolution.name,
        "org.opencontainers.image.version": tag,
        "org.opencontainers.image.base.name": substitute or resolution.base.image,
        "envforge.name": resolution.name,
        "envforge.base": own,
        "envforge.python": resolution.python,
        "envforge.platform": resolution.platform,
        "envforge.verdict": resolution.verdict,
        "envforge.template": str(TEMPLATE_VERSION),
        "envforge.frameworks": " ".join(f"{item.name}={item.version}" for item in resolution.frameworks),
    }
    if resolution.description:
        labels["org.opencontainers.image.description"] = resolution.description
    if digest and not substitute:  # a substitute never carries the original's digest
        labels["org.opencontainers.image.base.digest"] = digest
    if substitute:
        labels["envforge.base-substituted"] = substitute
    if identity:
        labels["envforge.inputs-digest"] = identity
    if resolution.cuda is not None:
        labels["envforge.cuda"] = resolution.cuda.version
    if resolution.untested:
        labels["envforge.untested"] = "true"
    return tuple(sorted((key, value) for key, value in labels.items() if value))
