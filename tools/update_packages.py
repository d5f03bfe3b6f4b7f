"""New releases of exporters and runtimes (onnx, onnxruntime, tf2onnx, openvino …) for packages.yaml.

python tools/update_packages.py onnxruntime      # shows the difference
python tools/update_packages.py --write          # all of them
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import update_common as common  # noqa: E402

NEEDS = ("numpy", "protobuf", "onnx", "onnxruntime", "jax", "flax", "ml-dtypes", "tensorflow")


def row(name: str, version: str, files: list[dict[str, Any]], metadata: str) -> dict[str, Any]:
    """The row of a new release: what metadata proves. An opset is not in it and stays unknown."""
    needs = common.requirements(metadata)
    found: dict[str, Any] = {"name": name, "version": version}
    pythons = common.pythons(files)
    if pythons:
        found["python"] = pythons
    asked = next((file["requires-python"] for file in files if file.get("requires-python")), None)
    if asked and not pythons:
        found["requires_python"] = asked
    kept = {need: [text for text in needs[need] if text] for need in NEEDS if any(needs.get(need, ()))}
    if kept:
        found["needs"] = kept
    found["source"] = [f"PyPI metadata of {name} {version}"]
    found["checked"] = common.today()
    return found


def refresh(
    name: str, table: Mapping[str, Any], answer: Mapping[str, Any], metadata: Callable[[Mapping[str, Any]], str | None]
) -> dict[str, Any]:
    """A copy of the table with rows for newer releases of one package. Raises Distrusted."""
    new: dict[str, Any] = deepcopy(dict(table))
    mine = [entry for entry in new["packages"] if entry["name"] == name]
    if not mine:
        raise common.Distrusted(f"{name} is not in packages.yaml: add its first row by hand")
    found = common.releases(answer)
    known = dict.fromkeys([*found, *common.withdrawn(answer)])
    place = max(i for i, entry in enumerate(new["packages"]) if entry["name"] == name) + 1
    for version in common.newer(mine, known):
        if version not in found:
            continue
        text = next((text for file in found[version] if (text := metadata(file))), None)
        if text is None:
            raise common.Distrusted(f"{name} {version}: the index serves no metadata")
        new["packages"].insert(place, row(name, version, found[version], text))
        place += 1
    return new


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 also when nothing changed, 1 when a source is not believed."""
    parser = argparse.ArgumentParser(description="New releases of exporters and runtimes.")
    parser.add_argument("name", nargs="*", help="default: every package of the table")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    from envforge import tables

    table: Mapping[str, Any] = tables.read("packages")
    code = 0
    for name in args.name or sorted({entry["name"] for entry in table["packages"]}):
        try:
            table = refresh(name, table, common.project(name), common.core_metadata)
        except common.Distrusted as error:
            print(f"{name}: not believed: {error}", file=sys.stderr)
            code = 1
    common.update("packages", table, write=args.write)
    return code


if __name__ == "__main__":
    sys.exit(main())
