"""New releases and withdrawn ones of the frameworks, read from the package index's metadata.

    python tools/update_frameworks.py torch jax      # shows the difference
    python tools/update_frameworks.py --write        # all of them

A new row holds what metadata proves: Pythons, glibc, the CUDA and cuDNN it pins, bounds. Kernels are not in the
metadata: such a build is marked low until tools/probe_wheel.py has read it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import update_common as common  # noqa: E402

DISTRIBUTIONS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "paddle": "paddlepaddle",
    "mindspore": "mindspore",
}
BOUNDS = ("numpy", "protobuf", "scipy", "h5py", "ml-dtypes", "setuptools")


def pinned_cuda(needs: Mapping[str, list[str]]) -> tuple[str | None, str | None]:
    """(CUDA series, cuDNN) that the pins of a release name, None where there are none."""
    cuda = cudnn = None
    for name, bounds in needs.items():
        exact = re.fullmatch(r"==([\d.]+)", bounds[0])
        if exact and re.match(r"nvidia-cuda-runtime|cuda-toolkit", name):
            cuda = ".".join(exact[1].split(".")[:2])
        if exact and name.startswith("nvidia-cudnn"):
            cudnn = exact[1]
    return cuda, cudnn


def row(framework: str, version: str, files: list[dict[str, Any]], metadata: str) -> dict[str, Any]:
    """The row of a new release. Raises Distrusted when it has no Linux wheel for any Python."""
    needs = common.requirements(metadata)
    found: dict[str, Any] = {"version": version}
    uploads = sorted(str(file["upload-time"])[:10] for file in files if file.get("upload-time"))
    if uploads:
        found["released"] = uploads[0]
    found["python"] = common.pythons(files)
    libc = common.glibc(files)
    if not found["python"] or not libc:
        raise common.Distrusted(f"{framework} {version}: no Linux wheel for a known Python")
    found["glibc"] = libc
    cuda, cudnn = pinned_cuda(needs) if framework == "torch" else (None, None)
    found["default"] = dict.fromkeys(libc, cuda or "cpu")
    if cuda:
        build = {"cuda": cuda, "index": "default", "platforms": sorted(libc), "cudnn": cudnn, "low": "kernels"}
        found["builds"] = [{name: value for name, value in build.items() if value}]
    for name in BOUNDS:
        if any(needs.get(name, ())):
            found[name.replace("-", "_")] = [text for text in needs[name] if text]
    distribution = DISTRIBUTIONS[framework]
    found["source"] = [f"PyPI metadata of {distribution} {version}"]
    found["checked"] = common.today()
    return found


def refresh(
    framework: str,
    table: Mapping[str, Any],
    answer: Mapping[str, Any],
    metadata: Callable[[Mapping[str, Any]], str | None],
) -> dict[str, Any]:
    """A copy of the table with rows for newer releases, and withdrawn ones marked. Raises Distrusted."""
    new: dict[str, Any] = deepcopy(dict(table))
    found = common.releases(answer)
    gone = common.withdrawn(answer)
    # A jax release is pure Python: its Pythons and glibc are those of jaxlib, which needs a person.
    known = dict.fromkeys([*found, *gone])
    for version in common.newer(new["releases"], known, allowed_gone=_allowed(framework)):
        if version not in found:
            continue
        files = found[version]
        text = next((text for file in files if (text := metadata(file))), None)
        if text is None:
            raise common.Distrusted(f"{framework} {version}: the index serves no metadata")
        new["releases"].append(row(framework, version, files, text))
    for entry in new["releases"]:
        if entry["version"] in gone and "yanked" not in entry:
            entry["yanked"] = gone[entry["version"]]
            entry["checked"] = common.today()
    return new


def _allowed(framework: str) -> int:
    # Old jax is there as source only; other mindspore and paddle releases live on their vendors' indexes.
    return {"jax": 30, "paddle": 25, "torch": 5}.get(framework, 5)


def main(argv: list[str] | None = None) -> int:
    """Command line; 0 also when nothing changed, 1 when a source is not believed."""
    parser = argparse.ArgumentParser(description="New and withdrawn framework releases.")
    parser.add_argument("framework", nargs="*", choices=[[], *DISTRIBUTIONS], help="default: all")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    from envforge import tables

    code = 0
    for framework in args.framework or DISTRIBUTIONS:
        try:
            answer = common.project(DISTRIBUTIONS[framework])
            new = refresh(framework, tables.read(framework), answer, common.core_metadata)
            common.update(framework, new, write=args.write)
        except common.Distrusted as error:
            print(f"{framework}: not believed: {error}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
