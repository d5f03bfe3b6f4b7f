"""`envforge push`: publish a tested image."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from envforge.console import Console
from envforge.errors import EXIT_OK, EngineError

if TYPE_CHECKING:
    from envforge.publish import Pushed

EXAMPLE = "envforge push torch-cu124 --to registry.lab:5000/ml/torch-cu124 --also stable"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What, where to, under which further tags."""
    parser.add_argument("name", metavar="NAME|IMAGE", help="environment, or tag or id of its image")
    parser.add_argument(
        "--to",
        metavar="REGISTRY/REPO",
        help='repository; one that ends in "/" gets the environment\'s name (default: $ENVFORGE_PUSH_TO)',
    )
    parser.add_argument(
        "--also", metavar="TAG", nargs="+", action="extend", default=[], help="further tags, which move to this image"
    )
    parser.add_argument(
        "--policy",
        choices=["fixed", "version"],
        default="version",
        help="fixed: only the tag that never moves; version: also one per framework, CUDA and Python (default)",
    )
    parser.add_argument("--replace", action="store_true", help="overwrite a fixed tag that holds another image")


def run(args: argparse.Namespace, console: Console) -> int:
    """0 when the registry holds the image under every tag."""
    from envforge import publish, record, subject

    found = subject.find(args.name, engine="docker", python=None, console=console)
    if found.info is None or found.engine is None:
        raise EngineError(
            "not-built", f"no image of {found.name} is in this engine", hint=f"envforge build {found.name}"
        )
    info = found.info
    name = info.labels.get("envforge.name") or found.name
    records = record.read_all(name)
    publish.require_tested(info, records)
    lock = found.lock
    packages = [*(one.name for one in lock.pip), *(one.name for one in lock.conda)] if lock is not None else []
    wanted = publish.Publication(
        name=name,
        image=info.image,
        repository=publish.target(args.name, name, args.to or os.environ.get("ENVFORGE_PUSH_TO")),
        tags=publish.tags(info, args.also, args.policy),
        tested_on_gpu=publish.tested_on_gpu(info, records),
        notice=publish.notice(info, packages),
    )
    if wanted.notice:
        console.warn(wanted.notice)
    console.note(f"push: {name} → {wanted.repository} ({info.size_bytes / 1e6:.0f} MB before compression) …")
    engine: publish.PushEngine = found.engine  # type: ignore[assignment]  # asked for by name: the Docker engine
    done = publish.publish(engine, wanted, replace_fixed=args.replace, note=console.note, progress=console.detail)
    console.document(
        {
            "schema": 1,
            "name": name,
            "image": done.reference,
            "image_id": info.image,
            "digest": done.digest,
            "tags": [f"{wanted.repository}:{tag}" for tag in done.tags],
            "moved": dict(done.moved),
            "tested_on_gpu": wanted.tested_on_gpu,
            "notice": wanted.notice or None,
            "confirmed": done.confirmed,
            "already_there": done.already_there,
            "retries": done.retries,
        }
    )
    _print(done, wanted.repository, wanted.tested_on_gpu, console)
    return EXIT_OK


def _print(done: Pushed, repository: str, gpu: bool, console: Console) -> None:
    console.result(f"image:  {done.reference}")
    for number, tag in enumerate(done.tags):
        before = done.moved.get(tag)
        kind = "fixed" if number == 0 else "moves" + (f", was {before[:19]}" if before else "")
        console.result(f"tag:    {repository}:{tag} ({kind})")
    console.result("tested on a GPU" if gpu else "not tested on a GPU")
    if not done.confirmed:
        console.result("the registry could not be asked whether it has arrived; the engine says so")
