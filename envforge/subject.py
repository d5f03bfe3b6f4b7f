"""What a command looks at: a NAME with its lock and its newest environment, an image, a prefix or an interpreter."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envforge.console import Console
from envforge.engine import Engine, ImageInfo
from envforge.errors import EngineError, EnvforgeError, LockError, SpecError
from envforge.inventory import Inventory
from envforge.lock import Lock


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """``engine`` and ``info`` are None for a bare interpreter and for a lock that nothing was built from."""

    name: str
    lock: Lock | None
    engine: Engine | None
    info: ImageInfo | None
    python: Path | None = None

    @property
    def built(self) -> bool:
        """Whether there is an environment to look into."""
        return self.info is not None or self.python is not None

    def inventory(self, *, hashing: bool = True, timeout: float = 900) -> Inventory:
        """Look into it. Raises EngineError when there is nothing to look into or it does not answer."""
        from envforge import inventory

        if self.python is not None:
            return inventory.of_interpreter(self.python, hashing=hashing, timeout=timeout)
        if self.engine is None or self.info is None:
            raise EngineError(
                "not-built",
                f"{self.name} is locked, and nothing that was built from this lock is here",
                hint=f"envforge build {self.name}",
            )
        return inventory.of_image(self.engine, self.info.image, hashing=hashing, timeout=timeout, info=self.info)

    def labels(self) -> Mapping[str, str] | None:
        """The labels of the image or prefix; None for a bare interpreter."""
        return self.info.labels if self.info is not None else None

    def expected_labels(self) -> dict[str, str] | None:
        """The labels its lock asks for."""
        if self.lock is None or self.info is None or self.engine is None:
            return None
        found = {"envforge.name": self.lock.name, "envforge.inputs-digest": self.lock.inputs_digest}
        if self.engine.name == "docker":
            found |= {"envforge.python": self.lock.python, "envforge.platform": self.lock.platform}
        return found


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options every command has that looks at an environment."""
    parser.add_argument("--engine", choices=("auto", "docker", "local"), default="auto", help="where to look")
    parser.add_argument("--python", type=Path, metavar="PATH", help="look at this interpreter's environment instead")


def find(
    reference: str | None, *, engine: str, python: Path | None, console: Console, need_lock: bool = False
) -> Subject:
    """The subject a person means. Names come before images.

    Raises LockError when ``need_lock`` and there is none, EngineError when nothing fits.
    """
    from envforge import lock as locks

    if python is not None:
        lock = locks.read(reference) if reference else None
        return Subject(name=reference or str(python), lock=lock, engine=None, info=None, python=_interpreter(python))
    if reference is None:
        from envforge.errors import UsageError

        raise UsageError("usage", "name a spec, an image or --python PATH", hint="see: envforge list")
    path = Path(reference)
    if path.is_dir() and ((path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir()):
        known = _local_image(path)
        if known is None:
            return Subject(name=reference, lock=None, engine=None, info=None, python=_interpreter(path))
        return _of_image(known[1], known[0], reference, need_lock)
    name = _spec_name(reference)
    if name is not None:
        return _of_name(name, engine, console, need_lock)
    for one in _engines(engine, console):
        try:
            return _of_image(one.inspect(reference), one, reference, need_lock)
        except EngineError as problem:
            if problem.reference != "image-not-found":
                raise
    raise EngineError(
        "image-not-found",
        f"{reference!r} is neither the name of a spec nor an image of an engine that answers here",
        hint="see: envforge list; or give an image's tag or id, or --python PATH",
    )


def _interpreter(path: Path) -> Path:
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.exists():
        raise EngineError("no-interpreter", f"{found} does not exist", hint="name a Python interpreter or its prefix")
    return found


def _local_image(path: Path) -> tuple[Engine, ImageInfo] | None:
    from envforge.local_engine import LocalEngine

    engine = LocalEngine()
    try:
        return engine, engine.inspect(str(path.resolve()))
    except EnvforgeError:
        return None


def _spec_name(reference: str) -> str | None:
    """The name of the spec ``reference`` stands for, or of a lock without a spec; None when it is neither."""
    from envforge import lock as locks
    from envforge import spec

    if "/" in reference.strip("./") and ":" in reference and not Path(reference).exists():
        return None  # repository:tag
    try:
        found = spec.load(reference)
        return found.name if found.variant is None or "@" in found.name else f"{found.name}@{found.variant}"
    except SpecError as problem:
        if problem.reference != "spec-not-found":
            raise
    try:
        return reference if locks.exists(reference) else None
    except EnvforgeError:
        return None


def _engines(choice: str, console: Console) -> list[Engine]:
    """The engines to ask, Docker first; one that does not answer is passed over unless it was named."""
    from envforge.local_engine import LocalEngine

    found: list[Engine] = []
    if choice in ("auto", "docker"):
        from envforge.docker_engine import DockerEngine

        try:
            found.append(DockerEngine.connect())
        except EngineError as problem:
            if choice == "docker":
                raise
            console.detail(f"no Docker engine answers: {problem.message}")
    if choice in ("auto", "local"):
        found.append(LocalEngine())
    return found


def _of_name(name: str, engine: str, console: Console, need_lock: bool) -> Subject:
    from envforge import lock as locks

    lock = locks.read(name)
    if lock is None:
        if need_lock:
            raise LockError("lock-missing", f"there is no lock for {name!r}", hint=f"envforge lock {name}")
        return Subject(name=name, lock=None, engine=None, info=None)
    for one in _engines(engine, console):
        info = one.find(lock.inputs_digest) or _untagged(one, lock.inputs_digest)
        if info is not None:
            console.detail(f"{name}: {info.image} ({one.name})")
            return Subject(name=name, lock=lock, engine=one, info=info)
    return Subject(name=name, lock=lock, engine=None, info=None)


def _untagged(engine: Engine, digest: str) -> ImageInfo | None:
    return next((one for one in engine.images() if one.labels.get("envforge.inputs-digest") == digest), None)


def _of_image(info: ImageInfo, engine: Engine, reference: str, need_lock: bool) -> Subject:
    from envforge import lock as locks

    name = info.labels.get("envforge.name", "")
    lock = locks.read(name) if name else None
    if lock is None and need_lock:
        raise LockError(
            "lock-missing",
            f"{reference}: " + (f"there is no lock for {name!r}" if name else "it carries no envforge label"),
            hint="run where the lock lies (./lockfiles), or name the spec",
        )
    return Subject(name=name or reference, lock=lock, engine=engine, info=info)
