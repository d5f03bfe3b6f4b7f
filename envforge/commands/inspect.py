"""`envforge inspect`: what is known of a built environment without running it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from envforge.console import Console

if TYPE_CHECKING:
    from envforge.engine import Engine, ImageInfo

EXAMPLE = "envforge inspect jax-cpu"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|IMAGE", help="environment name, image tag or id, or prefix path")
    parser.add_argument("--engine", choices=["auto", "docker", "local"], default="auto", help="default: look in both")


def _engines(choice: str) -> Iterator[Engine]:
    """The engines to look in; a Docker engine that does not answer is an error only when asked for."""
    from envforge.errors import EngineError

    if choice != "local":
        from envforge.docker_engine import DockerEngine

        try:
            yield DockerEngine.connect()
        except EngineError:
            if choice == "docker":
                raise
    if choice != "docker":
        from envforge.local_engine import LocalEngine

        yield LocalEngine()


def _found(engine: Engine, name: str) -> ImageInfo | None:
    """Newest environment of that name, else the image itself."""
    from envforge.errors import EngineError

    repository = f"envforge/{name.replace('@', '-')}:"
    named = [info for info in engine.images() if any(tag.startswith(repository) for tag in info.tags)]
    if named:
        return max(named, key=lambda info: info.created)
    try:
        return engine.inspect(name)
    except EngineError as error:
        if error.reference != "image-not-found":
            raise
        return None


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge.errors import EngineError

    for engine in _engines(args.engine):
        info = _found(engine, args.name)
        if info is not None:
            document = describe(engine.name, info)
            console.document(document)
            _print(document, console)
            return 0
    raise EngineError(
        "image-not-found",
        f"no engine here has an environment or image {args.name!r}",
        hint=f"envforge build {args.name}",
    )


def describe(engine: str, info: ImageInfo) -> dict[str, Any]:
    """The document of `inspect --json`."""
    from envforge import record

    name = info.labels.get("envforge.name", "")
    digest = info.labels.get("envforge.inputs-digest", "")
    last = record.latest(name, digest, engine) if name and digest else None
    return {
        "schema": 1,
        "engine": engine,
        "image": info.image,
        "tags": list(info.tags),
        "name": name or None,
        "inputs_digest": digest or None,
        "created": info.created,
        "size_bytes": info.size_bytes,
        "user": info.user,
        "env": dict(info.env),
        "labels": dict(info.labels),
        "layers": list(info.layers),
        "repo_digests": list(info.repo_digests),
        "status": last.get("status") if last else None,
        "gpu_tested": last.get("gpu_tested") if last else None,
        "checks": last.get("checks", []) if last else [],
        "record": last.get("record") if last else None,
    }


def _print(document: dict[str, Any], console: Console) -> None:
    lines = [
        ("image", document["image"]),
        ("tags", ", ".join(document["tags"]) or "none: not tested, or the tests failed"),
        ("identity", document["inputs_digest"] or "not made by envforge"),
        ("engine", document["engine"]),
        ("created", document["created"]),
        ("size", f"{document['size_bytes'] / 1e6:.0f} MB in {len(document['layers'])} layers"),
        ("user", document["user"] or "root"),
        ("tests", document["status"] or "no record on this machine"),
        ("record", document["record"] or "-"),
    ]
    for label, value in lines:
        console.result(f"{label:<9} {value}")
    for key, value in sorted(document["labels"].items()):
        console.result(f"label     {key}={value}")
