"""Put what tools/probe_wheel.py measured into the tables of torch and tensorflow: kernels per (release, build).

python tools/update_kernels.py            # shows the difference
python tools/update_kernels.py --write
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from update_common import DATA, Distrusted, update  # noqa: E402


def kernels(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """(binary, PTX) capabilities of an architecture list: ``sm_90a`` counts as 9.0, ``compute_90`` is PTX."""
    found: dict[str, set[int]] = {"sm": set(), "compute": set()}
    for word in words:
        kind, _, number = word.rstrip("af").partition("_")
        found[kind].add(int(number))
    sass, ptx = ([f"{n // 10}.{n % 10}" for n in sorted(found[kind])] for kind in ("sm", "compute"))
    return sass, ptx


def images(probe: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(binary, PTX) capabilities of the library with the most CUDA images: the one that computes.

    Others do not count: a helper library may carry PTX or more architectures than the kernels have.
    """
    libraries = sorted(probe["fatbins"].items(), key=lambda item: (item[1]["images"], item[0]))
    if not libraries:
        return [], []
    main_library = libraries[-1][1]
    return list(main_library["sass"]), list(main_library["ptx"])


def cuda_series(text: str) -> str:
    """``12.4 (torch/version.py)`` -> 12.4; of a range (``<13.0,>=12.5.82 (…)``) its lower end."""
    bounds = text.split(" ")[0]
    match = re.search(r">=(\d+\.\d+)", bounds) or re.match(r"=*(\d+\.\d+)", bounds)
    if match is None:
        raise Distrusted(f"no CUDA version in {text!r}")
    return match[1]


def apply(framework: str, table: Mapping[str, Any], probes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A copy of a table with the measured kernels. Raises Distrusted for a probe that fits no row."""
    new: dict[str, Any] = deepcopy(dict(table))
    rows = {row["version"]: row for row in new["releases"]}
    for probe in probes:
        listed, inside = kernels(probe.get("arch_list") or ()), images(probe)
        sass = listed[0] or inside[0]
        if len(sass) < 3:
            raise Distrusted(f"{framework} {probe['version']}: an architecture list of {len(sass)} is not believed")
        series = cuda_series(probe["libraries"]["cuda"])
        build = next((b for b in rows.get(probe["version"], {}).get("builds", ()) if b["cuda"] == series), None)
        if build is None:
            raise Distrusted(f"{framework} {probe['version']} with CUDA {series} has no row")
        build["kernels"] = sass
        # An architecture list names its PTX too: none named means none there.
        build.pop("ptx", None)
        if listed[1] or inside[1]:
            build["ptx"] = listed[1] or inside[1]
        build.pop("low", None)
        row = rows[probe["version"]]
        said = f"measured: {probe['command']}"
        if said not in row["source"]:
            row["source"] = [*(text for text in row["source"] if not text.startswith("measured: ")), said]
            row["checked"] = probe["date"]
    return new


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Measured kernels into the tables.")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    from envforge import tables

    for framework in ("torch", "tensorflow"):
        found = sorted((DATA / "probes").glob(f"{framework}-[0-9]*.json"))
        probes = [json.loads(path.read_text()) for path in found]
        update(framework, apply(framework, tables.read(framework), probes), write=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
