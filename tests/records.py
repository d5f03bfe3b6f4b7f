"""Small Resolution, Lock and Rendered records for tests of engines: one pure-Python package, no framework."""

from __future__ import annotations

from dataclasses import replace

from envforge.lock import Lock, LockedBase, LockedPackage
from envforge.plan import Rendered
from envforge.resolve import BaseChoice, Resolution
from envforge.spec import AptSpec, BudgetSpec, SmokeSpec, UserSpec

BASE = "envforge/base:bookworm-py3.11"

# The package of the contract suite: tiny, pure Python, no dependency.
PACKAGE = LockedPackage(
    name="iniconfig",
    version="2.1.0",
    index="default",
    hashes=(
        "sha256:3abbd2e30b36733fee78f9c7f7308f2d0050e88f0087fd25c2645f63c773e1c7",
        "sha256:9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760",
    ),
)


def resolution(name: str = "contract", *, python: str = "3.11") -> Resolution:
    return Resolution(
        name=name,
        description="",
        kind="environment",
        python=python,
        platform="linux/amd64",
        base=BaseChoice(
            image="python:3.11-slim-bookworm", digest=None, system="debian:bookworm", glibc="2.36", python_from="image"
        ),
        cuda=None,
        frameworks=(),
        requirements=(),
        constraints=(),
        indexes={},
        index_packages={},
        find_links=(),
        mirrors={},
        conda=(),
        channels=(),
        apt=(),
        apt_options=AptSpec(),
        env=(),
        user=UserSpec(),
        workdir="/work",
        files=(),
        hooks=(),
        smoke=SmokeSpec(),
        budget=BudgetSpec(),
        glibc="2.36",
        untested=False,
        verdict="ok",
    )


def lock(digest: str, name: str = "contract", *, python: str = "3.11") -> Lock:
    return Lock(
        name=name,
        resolution_digest="sha256:" + "1" * 64,
        inputs_digest=digest,
        python=python,
        platform="linux/amd64",
        base=LockedBase(image="python:3.11-slim-bookworm", digest=None, reason="test"),
        pip=(PACKAGE,),
    )


def rendered(digest: str, *, lines: str = "", base: str = BASE) -> Rendered:
    """A Dockerfile that needs no download: a virtual environment from the base's own Python."""
    text = (
        f"FROM {base}\n"
        "RUN python3 -m venv --without-pip /opt/env\n"
        "ENV PATH=/opt/env/bin:/usr/local/bin:/usr/bin:/bin MARK=contract\n"
        f"{lines}"
        f'LABEL envforge.inputs-digest="{digest}" envforge.name="contract"\n'
    )
    return Rendered(dockerfile=text)


def broken(lock_: Lock) -> Lock:
    """The same lock with a hash no file has."""
    return replace(lock_, pip=(replace(PACKAGE, hashes=("sha256:" + "0" * 64,)),))
