"""Finds templates, smoke tests, locks and Compose files, in a checkout or inside an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """The shipped folder ``templates``, ``smoke_tests``, ``lockfiles`` or ``compose``.

    Raises ``FileNotFoundError`` when the installation is damaged.
    """
    bundled = _PACKAGE / "_bundled" / folder
    if bundled.is_dir():
        return bundled
    checkout = _PACKAGE.parent / folder
    if checkout.is_dir():
        return checkout
    raise FileNotFoundError(f"envforge's own folder {folder!r} is missing: reinstall envforge")


def data(name: str) -> Path:
    """A file of ``envforge/data``."""
    return _PACKAGE / "data" / name


def catalog() -> Path:
    """The folder of catalogue specs."""
    return _PACKAGE / "catalog"
