"""Makes locks of catalogue entries whose own index cannot be reached, from digests carried over by hand.

    python tools/transcribe_locks.py [NAME]… [--output-dir lockfiles]

The wheels in tools/transcribed_wheels.yaml are stood in for by empty wheels with the same names and requirements in
a local folder; the solver then locks everything else truly, from the default index, and the digests of the
stand-ins are replaced by the carried-over ones. Such a lock says "not rebuilt here" and has its sources beside it.
A wheel that is not in the file is never invented: the entry is then left out, with the reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from envforge import compat  # noqa: E402
from envforge import lock as lockfile  # noqa: E402
from envforge.commands.lock import _base, assemble, reach_of  # noqa: E402
from envforge.console import Console  # noqa: E402
from envforge.errors import EnvforgeError, LockError  # noqa: E402
from envforge.lockers import pip  # noqa: E402
from envforge.resolve import Resolution, resolve  # noqa: E402
from envforge.spec import load  # noqa: E402
from tests.wheels import wheel  # noqa: E402

DATA = Path(__file__).with_name("transcribed_wheels.yaml")
NAMES = (
    "torch-cu118",
    "torch-cu118@py312",
    "torch-cpu",
    "keras-torch-cpu",
    "torch-jax-cpu",
    "torch-tensorflow-cpu",
    "jax-cuda11",
)
NOTE = "not rebuilt here: the digests of {names} are transcribed, see sources.md"


def stand_ins(data: Mapping[str, Any], label: str, folder: Path) -> None:
    """Empty wheels with the names and requirements of the transcribed ones of an index."""
    requirements = {entry["release"]: entry["requires"] for entry in data["requirements"]}
    for row in data["wheels"]:
        if row["index"] != label:
            continue
        name, version, tag = row["file"].removesuffix(".whl").split("-", 2)
        made = wheel(name, version, tag=tag, requires=requirements[f"{name} {version}"])
        assert made.filename == row["file"]
        (folder / made.filename).write_bytes(made.content)


def transcribe(name: str, data: Mapping[str, Any], root: Path, console: Console) -> str:
    """Lock one entry and write it; returns what was done."""
    resolution = resolve(load(name), compat.load())
    digests = {(row["index"], row["file"]): row for row in data["wheels"]}
    labels = sorted({row["index"] for row in data["wheels"]} & set(resolution.indexes))
    with tempfile.TemporaryDirectory() as place:
        urls = {}
        for label in labels:
            folder = Path(place) / label
            folder.mkdir()
            stand_ins(data, label, folder)
            urls[label] = folder.as_uri()
        local = replace(resolution, find_links=tuple(labels))
        own = reach_of(resolution)
        found = pip.solve(local, reach=replace(own, index_urls={**own.index_urls, **urls}), console=console)
    used, packages = [], []
    for package in found.packages:
        if package.index not in labels:
            packages.append(package)
            continue
        rows = [digests[package.index, file] for file in found.files[package.name]]
        used += rows
        packages.append(replace(package, hashes=tuple(sorted(f"sha256:{row['sha256']}" for row in rows))))
    if not used:
        raise LockError("lock-not-transcribed", f"{name} needs none of the transcribed wheels", hint="envforge lock")
    made = assemble(
        resolution,
        packages,
        base=_base(resolution, None, console),
        installer=pip.lock_tools(resolution, console=console),
        notes=[NOTE.format(names=", ".join(sorted({row["file"].split("-")[0] for row in used})))],
    )
    folder = lockfile.write(name, made, root=root)
    (folder / "sources.md").write_text(sources(resolution, used, data), encoding="utf-8")
    return f"transcribed: {len(used)} of {len(packages)} packages"


def sources(resolution: Resolution, used: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> str:
    """The page beside the lock: where each digest and each requirement list was read."""
    lines = [
        f"# Sources of the lock of {resolution.name}",
        "",
        "Not rebuilt here: the index of the files below could not be reached where this lock was made. Their digests",
        "were carried over from public lock files, their requirements from public metadata; every other package was",
        "locked from the default index itself. `envforge lock` where that index can be reached makes the lock anew.",
        "",
        "| file | sha256 | read in |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {row['file']} | {row['sha256']} | {'; '.join(row['sources'])} |" for row in used]
    lines += ["", "| requirements of | read in |", "| --- | --- |"]
    releases = {" ".join(row["file"].split("-")[:2]) for row in used}
    for entry in data["requirements"]:
        if entry["release"] in releases:
            lines.append(f"| {entry['release']} | {'; '.join(entry['sources'])} |")
    if "cu118" in resolution.name:
        lines += ["", "Not known, and left out:", "", *(f"- {text}" for text in data["unknown"])]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--output-dir", type=Path, default=ROOT / "lockfiles")
    args = parser.parse_args()
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    console = Console(verbosity=-1)
    failed = 0
    for name in args.names:
        try:
            outcome = transcribe(name, data, args.output_dir, console)
        except EnvforgeError as error:
            outcome, failed = f"left out: [{error.reference}] {error.message}", failed + 1
        print(f"{name:<28}{outcome}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
