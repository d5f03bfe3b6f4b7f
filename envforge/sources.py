"""Own code of a spec (``files``): reading it for the build context and for the identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from envforge.errors import SpecError
from envforge.plan import Rendered
from envforge.spec import EnvSpec, FileSpec

_LEFT_OUT = {
    ".git",
    "__pycache__",
    ".venv",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
}


def _walk(path: Path) -> Iterator[Path]:
    for entry in sorted(path.iterdir()):
        if entry.name in _LEFT_OUT or entry.is_symlink():
            continue
        if entry.is_dir():
            yield from _walk(entry)
        elif entry.is_file():
            yield entry


def collect(spec: EnvSpec) -> dict[str, dict[str, bytes]]:
    """Target -> {path below the source: content}; the one key of a single file is its name.

    Symbolic links, version control and caches are left out. Raises SpecError ``file-missing`` for a source that
    is not there, and ``file-outside`` for one that a link leads out of the spec's folder.
    """
    folder = spec.path.parent if spec.path is not None else Path.cwd()
    return {item.target: _read(item, folder) for item in spec.files}


def _read(item: FileSpec, folder: Path) -> dict[str, bytes]:
    path = folder / item.source
    if not path.exists():
        raise SpecError(
            "file-missing",
            f"files: {item.source!r} is not in {folder}",
            hint="the path is relative to the spec",
        )
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SpecError("file-outside", f"files: {item.source!r} leads out of the folder of the spec")
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {found.relative_to(path).as_posix(): found.read_bytes() for found in _walk(path)}


def digests(spec: EnvSpec) -> dict[str, str]:
    """Target -> sha256 over names and contents: own code is part of the identity."""
    out = {}
    for target, files in collect(spec).items():
        total = hashlib.sha256()
        for name, content in sorted(files.items()):
            total.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
        out[target] = total.hexdigest()
    return out


def with_files(rendered: Rendered, spec: EnvSpec) -> Rendered:
    """The context with own code in it, under ``files/N/`` in the order of the spec."""
    if not spec.files:
        return rendered
    files = dict(rendered.files)
    for number, content in enumerate(collect(spec).values()):
        for name, data in content.items():
            files[f"files/{number}/{name}"] = data
    return replace(rendered, files=files)
