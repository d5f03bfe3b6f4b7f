"""A small Resolution for tests that need one; every field can be replaced by name."""

from __future__ import annotations

from typing import Any

from envforge.resolve import BaseChoice, CudaChoice, FrameworkChoice, Resolution
from envforge.spec import AptSpec, BudgetSpec, SmokeSpec, UserSpec


def cuda(version: str = "12.4", source: Any = "conda", **changes: Any) -> CudaChoice:
    """A CUDA choice."""
    fields: dict[str, Any] = {
        "version": version,
        "tag": "cu" + version.replace(".", ""),
        "source": source,
        "toolchain": "none",
        "compat": False,
        "cudnn": None,
    }
    return CudaChoice(**(fields | changes))


def framework(name: Any = "torch", version: str = "2.3.1", accelerator: Any = "cuda") -> FrameworkChoice:
    """A framework choice from the default index."""
    return FrameworkChoice(
        name=name, distribution=name, version=version, accelerator=accelerator, cuda=None, index="default"
    )


def resolution(**changes: Any) -> Resolution:
    """A CPU environment of Python 3.11 on bookworm with one conda channel called "main"."""
    fields: dict[str, Any] = {
        "name": "case",
        "description": "",
        "kind": "environment",
        "python": "3.11",
        "platform": "linux/amd64",
        "base": BaseChoice(
            image="debian:bookworm", digest=None, system="debian:bookworm", glibc="2.36", python_from="conda"
        ),
        "cuda": None,
        "frameworks": (),
        "requirements": (),
        "constraints": (),
        "indexes": {},
        "index_packages": {},
        "find_links": (),
        "mirrors": {},
        "conda": (),
        "channels": ("main",),
        "apt": (),
        "apt_options": AptSpec(),
        "env": (),
        "user": UserSpec(),
        "workdir": "/work",
        "files": (),
        "hooks": (),
        "smoke": SmokeSpec(),
        "budget": BudgetSpec(),
        "glibc": "2.28",
        "untested": False,
        "verdict": "ok",
    }
    return Resolution(**(fields | changes))
