"""Small resolutions and locks for tests."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from envforge.console import Console
from envforge.lock import Lock, LockedBase, LockedPackage, seal
from envforge.resolve import BaseChoice, PipRequirement, Resolution
from envforge.spec import AptSpec, BudgetSpec, SmokeSpec, UserSpec


def resolution(
    *requirements: str | PipRequirement,
    constraints: Sequence[str] = (),
    indexes: Mapping[str, str] | None = None,
    index_packages: Mapping[str, Sequence[str]] | None = None,
    **changes: Any,
) -> Resolution:
    """A resolution for Python 3.11 on Debian bookworm, linux/amd64, with these pip requirements."""
    values: dict[str, Any] = {
        "name": "sample",
        "description": "",
        "kind": "environment",
        "python": "3.11",
        "platform": "linux/amd64",
        "base": BaseChoice(
            image="python:3.11-slim-bookworm",
            digest=None,
            system="debian:bookworm",
            glibc="2.36",
            python_from="image",
        ),
        "cuda": None,
        "frameworks": (),
        "requirements": tuple(PipRequirement(text=item) if isinstance(item, str) else item for item in requirements),
        "constraints": tuple(PipRequirement(text=item) for item in constraints),
        "indexes": dict(indexes or {}),
        "index_packages": {label: tuple(globs) for label, globs in (index_packages or {}).items()},
        "find_links": (),
        "mirrors": {},
        "conda": (),
        "channels": ("conda-forge",),
        "apt": (),
        "apt_options": AptSpec(),
        "env": (),
        "user": UserSpec(),
        "workdir": "/work",
        "files": (),
        "hooks": (),
        "smoke": SmokeSpec(),
        "budget": BudgetSpec(),
        "glibc": "2.36",
        "untested": False,
        "verdict": "ok",
    }
    values.update(changes)
    return Resolution(**values)


def sample_lock(made_for: Resolution, *packages: LockedPackage, **changes: Any) -> Lock:
    """A sealed lock of these packages."""
    values: dict[str, Any] = {
        "name": made_for.name,
        "resolution_digest": "",
        "inputs_digest": "",
        "python": made_for.python,
        "platform": made_for.platform,
        "base": LockedBase(image=made_for.base.image, digest=None, reason="no registry was asked"),
        "pip": packages,
    }
    values.update(changes)
    return seal(Lock(**values), made_for)


def quiet_console() -> Console:
    """A console whose stderr can be read back by ``console.stderr.getvalue()``."""
    return Console(stdout=io.StringIO(), stderr=io.StringIO(), color=False)
