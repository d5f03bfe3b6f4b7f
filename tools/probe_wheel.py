"""Read out of a published wheel what its labels do not say, without a GPU and without installing it.

    python tools/probe_wheel.py torch==2.6.0 --python 3.11
    python tools/probe_wheel.py onnxruntime-gpu==1.26.0 --write

Found are: the architectures its CUDA kernels are compiled for (the flags torch reports as its architecture
list, and the images inside ``.nv_fatbin`` of each shared library), the CUDA and cuDNN it names, what it
declares to need, and imports that nothing declares. Only the parts needed are fetched, by range requests;
``--write`` keeps the answer in envforge/data/probes/.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import mmap
import re
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from email.parser import Parser
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from update_common import BLOCK, DATA, open_wheel, project  # noqa: E402

PROBES = DATA / "probes"
SCHEMA = 1
FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
_ENTRY = struct.Struct("<HHIQIIHHI")  # kind, version, header size, payload size, …, minor, major, arch
_KINDS = {1: "ptx", 2: "sass"}
# Distributions whose import name cannot be told from their name.
IMPORTS = {
    "absl-py": {"absl"},
    "protobuf": {"google"},
    "typing-extensions": {"typing_extensions"},
    "jinja2": {"jinja2"},
    "pyyaml": {"yaml"},
    "pillow": {"PIL"},
    "ml-dtypes": {"ml_dtypes"},
    "opt-einsum": {"opt_einsum"},
    "google-pasta": {"pasta"},
    "setuptools": {"setuptools", "pkg_resources"},
    "jax-cuda12-pjrt": {"jax_plugins"},
    "jax-cuda13-pjrt": {"jax_plugins"},
    "cuda-bindings": {"cuda"},
    "python-dateutil": {"dateutil"},
    "tensorflow-io-gcs-filesystem": {"tensorflow_io_gcs_filesystem"},
}


def choose_file(files: list[dict[str, Any]], version: str, python: str, machine: str) -> dict[str, Any]:
    """The wheel pip would take for that CPython and Linux machine. Raises ``LookupError`` when there is none."""
    tag = "cp" + python.replace(".", "")
    found = []
    for file in files:
        match = re.fullmatch(r"([^-]+)-([^-]+)(-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl", file["filename"])
        if not match or match[2].lower() != version.lower():
            continue
        pythons, platform = match[4].split("."), match[6]
        exact = tag in pythons and match[5] in (tag, "abi3")
        loose = any(p in ("py3", "py2") for p in pythons) or (match[5] == "abi3" and pythons[0] <= tag)
        if not (exact or loose) or (platform != "any" and not (machine in platform and "linux" in platform)):
            continue
        found.append(((exact, file["filename"]), file))
    if not found:
        raise LookupError(f"no wheel of version {version} for CPython {python} on Linux {machine}")
    return max(found, key=lambda item: item[0])[1]


# --- CUDA images inside a shared library -------------------------------------------------------------------


def fatbin_images(data: Any, start: int = 0, end: int | None = None) -> Iterator[tuple[str, int]]:
    """(kind, architecture) of every CUDA image in ``data`` (bytes or mmap): ``("sass", 80)``, ``("ptx", 90)``."""
    end = len(data) if end is None else end
    at = data.find(FATBIN_MAGIC, start, end)
    while at >= 0:
        following = at + 4
        if at + 16 <= end:
            version, header, size = struct.unpack_from("<HHQ", data, at + 4)
            if version == 1 and header >= 16 and at + header + size <= end:
                entries = list(_entries(data, at + header, at + header + size))
                if entries:
                    yield from entries
                    following = at + header + size
        at = data.find(FATBIN_MAGIC, following, end)


def _entries(data: Any, at: int, end: int) -> Iterator[tuple[str, int]]:
    while at + _ENTRY.size <= end:
        kind, _, header, size, _, _, _, _, arch = _ENTRY.unpack_from(data, at)
        if kind not in _KINDS or header < _ENTRY.size or not 10 <= arch <= 999 or at + header + size > end:
            return
        yield _KINDS[kind], arch
        at += header + size


def architectures(images: Iterator[tuple[str, int]]) -> dict[str, Any]:
    """``{"sass": ["8.0", …], "ptx": […], "images": count}``, sorted by capability."""
    kinds: dict[str, set[int]] = {"sass": set(), "ptx": set()}
    count = 0
    for kind, arch in images:
        kinds[kind].add(arch)
        count += 1
    return {kind: [_dotted(arch) for arch in sorted(values)] for kind, values in kinds.items()} | {"images": count}


def _dotted(arch: int) -> str:
    return f"{arch // 10}.{arch % 10}"


def arch_flags(data: bytes) -> list[str]:
    """The compile flags torch reports as its architecture list: ``["sm_50", …, "compute_90"]``."""
    # The bytes before it may be part of another constant, so no boundary is asked for there.
    pattern = rb"((?:sm|compute)_\d{2,3}a?f?(?: (?:sm|compute)_\d{2,3}a?f?)+)\x00"
    found = max(re.findall(pattern, data), key=len, default=b"")
    return [word.decode() for word in found.split()]


# --- metadata and imports ----------------------------------------------------------------------------------


def declared(metadata: str, python: str = "3.11", machine: str = "x86_64") -> tuple[list[str], set[str]]:
    """(Requires-Dist lines, import names they bring on that Linux interpreter). Extras do not count as declared."""
    from packaging.requirements import InvalidRequirement, Requirement

    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "extra": "",
    }
    lines = Parser().parsestr(metadata).get_all("Requires-Dist") or []
    names: set[str] = set()
    for line in lines:
        try:
            found = Requirement(line)
        except InvalidRequirement:
            continue
        if found.marker is None or found.marker.evaluate(environment):
            name = re.sub(r"[-_.]+", "-", found.name).lower()
            names |= IMPORTS.get(name, {name.replace("-", "_")})
    return lines, names


def top_imports(source: str) -> set[str]:
    """Import names a module needs whenever it is imported: not in a function, a ``try`` or an ``if``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    names: set[str] = set()
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.ClassDef | ast.With):
            todo += node.body
    return names


_NOT_SHIPPED = re.compile(r"(^|/)(tests?|testing|benchmarks?|examples?|_vendor|tools)(/|$)|(^|/)(test_|conftest)")


def undeclared(sources: Mapping[str, str], needs: set[str]) -> dict[str, list[str]]:
    """Import name -> up to three files of the wheel that import it although nothing declares it."""
    own = {name.split("/")[0].removesuffix(".py") for name in sources}
    known = own | needs | set(sys.stdlib_module_names) | {"__future__"}
    folders: dict[str, set[str]] = {}
    for path in sources:
        folder, _, file = path.rpartition("/")
        folders.setdefault(folder, set()).add(file.removesuffix(".py"))
    found: dict[str, list[str]] = {}
    for path, text in sources.items():
        if _NOT_SHIPPED.search(path):
            continue
        # Scripts import their neighbours by bare name.
        for name in top_imports(text) - known - folders[path.rpartition("/")[0]]:
            found.setdefault(name, []).append(path)
    return {name: sorted(paths, key=lambda p: (p.count("/"), p))[:3] for name, paths in sorted(found.items())}


# --- the probe ---------------------------------------------------------------------------------------------


def library_versions(names: list[str], texts: Mapping[str, bytes], requires: list[str]) -> dict[str, str]:
    """CUDA and cuDNN as the wheel's own files and pins name them, with where each was read."""
    found: dict[str, str] = {}
    for path, data in texts.items():
        text = data.decode("utf-8", "replace")
        if path.endswith("version.py") and (match := re.search(r"^cuda\b.*?= '([\d.]+)'", text, re.M)):
            found["cuda"] = f"{match[1]} ({path})"
        if path.endswith("build_info.py"):
            for key, label in (("cuda_version", "cuda"), ("cudnn_version", "cudnn")):
                if match := re.search(rf"['\"]{key}['\"]: *['\"]([\d.]+)['\"]", text):
                    found[label] = f"{match[1]} ({path})"
        if path.endswith("build_and_package_info.py") and (m := re.search(r"cuda_version = ['\"]([\d.]+)", text)):
            found["cuda"] = f"{m[1]} ({path})"
    for line in requires:
        if match := re.match(r"(nvidia-cudnn[\w-]*)\s*\(?([^;)]*)", line):
            found.setdefault("cudnn", f"{match[2].strip()} ({match[1]})")
        if match := re.match(r"(nvidia-cuda-runtime[\w-]*|cuda-toolkit)(?:\[[^]]*\])?\s*\(?([^;)]*)", line):
            found.setdefault("cuda", f"{match[2].strip()} ({match[1]})")
    for name in names:
        if match := re.search(r"libcudnn[\w]*\.so\.([\d.]+)$|libcudnn-[0-9a-f]+\.so\.([\d.]+)$", name):
            found.setdefault("cudnn", f"{match[1] or match[2]} ({name})")
    return found


def scan_library(archive: zipfile.ZipFile, member: str, folder: Path) -> dict[str, Any]:
    """Architectures of the CUDA images in one member, unpacked into ``folder`` for the time being."""
    path = folder / "library.so"
    with archive.open(member) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, BLOCK)
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return architectures(fatbin_images(data))
    finally:
        path.unlink()


def probe(
    archive: zipfile.ZipFile,
    folder: Path,
    *,
    fatbins: bool,
    say: Callable[[str], None],
    python: str = "3.11",
    machine: str = "x86_64",
) -> dict[str, Any]:
    """Everything this tool can read out of an open wheel."""
    names = archive.namelist()
    metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode("utf-8", "replace")
    requires, needs = declared(metadata, python, machine)
    sources = {n: archive.read(n).decode("utf-8", "replace") for n in names if n.endswith(".py")}
    # Compiled-in text files that carry versions.
    texts = {n: sources[n].encode() for n in sources if n.endswith(("version.py", "_info.py"))}
    found: dict[str, Any] = {"libraries": library_versions(names, texts, requires)}
    flags_in = [n for n in names if n.endswith("libtorch_python.so")]
    if flags_in:
        say(f"reading the architecture list in {flags_in[0]}")
        found["arch_list"] = arch_flags(archive.read(flags_in[0]))
    found["fatbins"] = {}
    for info in archive.infolist():
        if fatbins and re.search(r"\.so(\.[\d.]+)?$", info.filename) and info.file_size > 1_000_000:
            say(f"looking for CUDA images in {info.filename} ({info.file_size >> 20} MiB)")
            images = scan_library(archive, info.filename, folder)
            if images["images"]:
                found["fatbins"][info.filename] = images
    found["requires"] = requires
    found["undeclared_imports"] = undeclared(sources, needs)
    return found


def run(requirement: str, python: str, machine: str, *, fatbins: bool) -> dict[str, Any]:
    """Find the wheel of ``NAME==VERSION`` on the default index and probe it."""
    name, _, version = requirement.partition("==")
    file = choose_file(project(name)["files"], version, python, machine)

    remote = open_wheel(file)
    with tempfile.TemporaryDirectory(prefix="probe-wheel-") as folder, zipfile.ZipFile(remote) as archive:
        found = probe(
            archive,
            Path(folder),
            fatbins=fatbins,
            say=lambda text: print(text, file=sys.stderr),
            python=python,
            machine=machine,
        )
    return {
        "schema": SCHEMA,
        "distribution": name,
        "version": version,
        "file": file["filename"],
        "sha256": file.get("hashes", {}).get("sha256", ""),
        "size": int(file["size"]),
        "fetched": remote.fetched,
        "python": python,
        "command": f"python tools/probe_wheel.py {requirement} --python {python}{'' if fatbins else ' --no-fatbins'}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **found,
    }


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Read architectures, CUDA, cuDNN and undeclared imports of a wheel.")
    parser.add_argument("requirement", help="NAME==VERSION")
    parser.add_argument("--python", default="3.11")
    parser.add_argument("--machine", default="x86_64")
    parser.add_argument("--no-fatbins", action="store_true", help="do not unpack the large libraries")
    parser.add_argument("--write", action="store_true", help="keep the answer in envforge/data/probes/")
    args = parser.parse_args(argv)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!]+", args.requirement):
        parser.error("give NAME==VERSION")
    found = run(args.requirement, args.python, args.machine, fatbins=not args.no_fatbins)
    text = json.dumps(found, indent=1, sort_keys=False) + "\n"
    if args.write:
        from envforge.paths import write_atomic

        path = PROBES / f"{found['distribution']}-{found['version']}.json"
        write_atomic(path, text.encode())
        print(path.relative_to(DATA.parent.parent), file=sys.stderr)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
