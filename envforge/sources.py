"""Own code of a spec (``files``): reading it for the build context and for the identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from envforge.errors import SpecError
from envforge.lock import Lock, inputs_digest, inputs_document
from envforge.plan import Rendered
from envforge.resolve import Resolution
from envforge.spec import FileSpec

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


def collect(files: Sequence[FileSpec]) -> list[dict[str, bytes]]:
    """For each entry {path below the source: content}; the one key of a single file is its name.

    Symbolic links, version control and caches are left out. Raises SpecError ``file-missing`` for a source that
    is not there, and ``file-outside`` for one that a link leads out of the spec's folder.
    """
    return [_read(item, item.folder if item.folder is not None else Path.cwd()) for item in files]


def _read(item: FileSpec, folder: Path) -> dict[str, bytes]:
    path = folder / item.source
    if not path.exists():
        raise SpecError(
            "file-missing",
            f"files: {item.source!r} is not in {folder}",
            hint="the path is relative to the folder of the spec",
        )
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SpecError("file-outside", f"files: {item.source!r} leads out of the folder of the spec")
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {found.relative_to(path).as_posix(): found.read_bytes() for found in _walk(path)}


def digests(files: Sequence[FileSpec]) -> dict[str, str]:
    """Target -> sha256 over names and contents."""
    out = {}
    for item, content in zip(files, collect(files), strict=True):
        total = hashlib.sha256()
        for name, data in sorted(content.items()):
            total.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
        out[item.target] = total.hexdigest()
    return out


def with_code(lock: Lock, resolution: Resolution) -> Lock:
    """The lock with own code in its identity: an edit makes another image, not a stale lock."""
    if not resolution.files:
        return lock
    document = inputs_document(resolution, lock, files=digests(resolution.files))
    return replace(lock, inputs_digest=inputs_digest(document))


def with_files(rendered: Rendered, files: Sequence[FileSpec]) -> Rendered:
    """The context with own code in it, under ``files/N/`` in the order of the spec."""
    if not files:
        return rendered
    context = dict(rendered.files)
    for number, content in enumerate(collect(files)):
        for name, data in content.items():
            context[f"files/{number}/{name}"] = data
    return replace(rendered, files=context)
