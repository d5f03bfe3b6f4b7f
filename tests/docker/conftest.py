"""Shared by the Docker tests: a Debian base made from packages, once per session."""

from __future__ import annotations

import subprocess
import sys

import pytest


def bootstrap(python: str) -> str:
    """The bootstrapped base for a Python; made when this engine does not have it yet."""
    done = subprocess.run(
        [sys.executable, "-m", "envforge", "base", "bootstrap", "--python", python], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    suite = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}[python]
    return f"envforge/base:{suite}-py{python}"


@pytest.fixture(scope="session")
def bookworm_base() -> str:
    return bootstrap("3.11")
