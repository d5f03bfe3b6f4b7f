"""Where envforge keeps what it makes on this machine. ``ENVFORGE_HOME`` moves all of it."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """``$ENVFORGE_HOME``, else ``$XDG_DATA_HOME/envforge``, else ``~/.local/share/envforge`` (not created)."""
    chosen = os.environ.get("ENVFORGE_HOME")
    if chosen:
        return Path(chosen).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "envforge"


def records() -> Path:
    """One folder per environment name, one JSON record per build or smoke run."""
    return home() / "records"


def prefixes() -> Path:
    """Private prefixes of the local engine."""
    return home() / "prefixes"


def logs() -> Path:
    """Full build logs."""
    return home() / "logs"


def cache() -> Path:
    """Download caches (may be deleted at any time)."""
    return home() / "cache"


def locks() -> Path:
    """File locks that keep two envforge processes apart."""
    return home() / "locks"


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside ``path`` and rename: a reader sees the old file or the new one, never half of it."""
    import tempfile

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
