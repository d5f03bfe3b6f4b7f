"""`envforge clean`: remove what envforge made. Shows sizes; deletes only with --yes."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envforge.console import Console

if TYPE_CHECKING:
    from envforge.docker_engine import DockerEngine

EXAMPLE = "envforge clean --yes images caches"

KINDS = ("images", "containers", "bases", "prefixes", "caches", "logs", "records")
_DEFAULT = ("images", "containers", "prefixes", "caches", "logs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing that can be removed. ``size_bytes`` of images counts shared layers each time."""

    kind: str
    name: str
    size_bytes: int
    remove: Callable[[], None]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; default: all but bases and records"
    )
    parser.add_argument("--yes", action="store_true", help="really remove; without it only the list is shown")
    parser.add_argument("--dry-run", action="store_true", help="only show the list (the default without --yes)")
    parser.add_argument("--name", help="only this environment")


def _size(path: Path) -> int:
    total = 0
    for root, _, names in os.walk(path):
        for name in names:
            total += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118 - hot loop
    return total


def _delete(path: Path) -> None:
    """Remove a file or folder that lies in ENVFORGE_HOME; anything else is refused."""
    from envforge import paths

    home = paths.home().resolve()
    if home not in path.resolve().parents:
        raise ValueError(f"{path} is not inside {home}")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _folder_items(kinds: set[str], name: str | None) -> list[Item]:
    from envforge import paths

    folders = {"prefixes": paths.prefixes(), "caches": paths.cache(), "logs": paths.logs(), "records": paths.records()}
    found = []
    for kind, folder in folders.items():
        if kind not in kinds or not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if name is not None and (kind == "caches" or not _belongs(path.name, name)):
                continue
            size = _size(path) if path.is_dir() else path.lstat().st_size
            found.append(Item(kind=kind, name=str(path), size_bytes=size, remove=partial(_delete, path)))
    return found


def _belongs(file: str, name: str) -> bool:
    """``torch-cu124-1a2b…`` belongs to torch-cu124 but ``torch-cu124-nightly-1a2b…`` does not."""
    import re

    plain = re.escape(name.replace("@", "-"))
    return (
        re.fullmatch(
            rf"(?:{re.escape(name)}|{plain}(?:-[0-9a-f]{{12,64}}|-\d{{8}}-\d{{6}}-[0-9a-f]{{6}})?(?:\.log)?)", file
        )
        is not None
    )


def _engine_items(engine: DockerEngine, kinds: set[str], name: str | None) -> list[Item]:
    found = []
    if "containers" in kinds and name is None:
        for container in engine.stray_containers():
            found.append(
                Item(
                    kind="containers",
                    name=container[:12],
                    size_bytes=0,
                    remove=partial(engine.remove_container, container),
                )
            )
    images = list(engine.images()) if "images" in kinds else []
    bases = list(engine.bases()) if "bases" in kinds and name is None else []
    for kind, rows in (("images", images), ("bases", bases)):
        for info in rows:
            if name is not None and info.labels.get("envforge.name") != name:
                continue
            shown = ", ".join(info.tags) or info.image.removeprefix("sha256:")[:12]
            found.append(
                Item(
                    kind=kind,
                    name=shown,
                    size_bytes=info.size_bytes,
                    remove=partial(engine.remove, info.image),
                )
            )
    return found


def _chosen(words: list[str]) -> set[str]:
    from envforge.errors import UsageError

    for word in words:
        if word not in KINDS:
            raise UsageError("usage", f"clean knows no kind {word!r}", hint=f"one of {', '.join(KINDS)}")
    return set(words or _DEFAULT)


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge.errors import EngineError

    kinds = _chosen(args.kinds)
    items = _folder_items(kinds, args.name)
    if kinds & {"images", "containers", "bases"}:
        from envforge.docker_engine import DockerEngine

        try:
            items += _engine_items(DockerEngine.connect(), kinds, args.name)
        except EngineError as error:
            console.note(f"images and containers were not looked at: {error.message}")
    for item in items:
        console.result(f"{item.kind:<11}{item.size_bytes / 1e6:>10.1f} MB  {item.name}")
    total = sum(item.size_bytes for item in items)
    console.result(f"{'total':<11}{total / 1e6:>10.1f} MB  {len(items)} items" if items else "nothing to remove")
    removing = args.yes and not args.dry_run
    failed = _remove(items, console) if removing else {}
    if items and not removing:
        console.result("nothing was removed; to remove it: envforge clean --yes")
    console.document(
        {
            "schema": 1,
            "removed": removing,
            "total_bytes": total,
            "items": [
                {"kind": item.kind, "name": item.name, "size_bytes": item.size_bytes, "error": failed.get(index)}
                for index, item in enumerate(items)
            ],
        }
    )
    return EngineError.exit_code if failed else 0


def _remove(items: list[Item], console: Console) -> dict[int, str]:
    """Remove all; what cannot be removed is said and counted, the rest goes on. Containers first: they hold images."""
    from envforge.errors import EngineError

    failed = {}
    order = {"containers": 0, "images": 1}
    for index, item in sorted(enumerate(items), key=lambda pair: order.get(pair[1].kind, 2)):
        try:
            item.remove()
        except (EngineError, OSError) as error:
            failed[index] = str(error)
            console.warn(f"{item.name} stays: {error}")
    return failed
