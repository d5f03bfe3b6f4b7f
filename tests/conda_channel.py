"""A conda channel made by the tests: real ``.tar.bz2`` packages with paths.json, repodata, served on 127.0.0.1."""

from __future__ import annotations

import bz2
import hashlib
import http.server
import io
import json
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envforge import elf

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TIMESTAMP = 1_700_000_000_000  # 2023-11-14, in milliseconds as repodata has it


@dataclass
class Package:
    """A package to make. ``files``: path in the prefix -> content; ``links``: path -> target."""

    name: str
    version: str
    build: str = "0"
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    executables: tuple[str, ...] = ()
    subdir: str = "linux-64"
    noarch: str | None = None  # "python" or "generic" (then subdir is noarch)
    timestamp: int = TIMESTAMP
    placeholder: str = ""  # text in the files that stands for the prefix
    entry_points: tuple[str, ...] = ()  # of a noarch python package
    license: str = "MIT"

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-{self.build}.tar.bz2"

    @property
    def number(self) -> int:
        tail = self.build.rsplit("_", 1)[-1]
        return int(tail) if tail.isdigit() else 0


def _index(package: Package) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": package.name,
        "version": package.version,
        "build": package.build,
        "build_number": package.number,
        "depends": list(package.depends),
        "constrains": list(package.constrains),
        "license": package.license,
        "subdir": package.subdir,
        "timestamp": package.timestamp,
    }
    if package.noarch:
        found["noarch"] = package.noarch
    return found


def archive(package: Package) -> bytes:
    """The package file: info/index.json, info/paths.json, info/files and the content."""
    paths = [
        {
            "_path": path,
            "path_type": "hardlink",
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_in_bytes": len(content),
        }
        | (
            {"prefix_placeholder": package.placeholder, "file_mode": "text"}
            if package.placeholder and package.placeholder.encode() in content
            else {}
        )
        for path, content in sorted(package.files.items())
    ]
    paths += [
        {"_path": path, "path_type": "softlink", "sha256": hashlib.sha256(b"").hexdigest(), "size_in_bytes": 0}
        for path in sorted(package.links)
    ]
    members: dict[str, bytes] = {
        "info/index.json": json.dumps(_index(package)).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/files": "".join(f"{one['_path']}\n" for one in paths).encode(),
    }
    if package.noarch == "python":
        members["info/link.json"] = json.dumps(
            {
                "noarch": {"type": "python", "entry_points": list(package.entry_points)},
                "package_metadata_version": 1,
            }
        ).encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path, content in [*members.items(), *sorted(package.files.items())]:
            member = tarfile.TarInfo(path)
            member.size = len(content)
            member.mode = 0o755 if path in package.executables else 0o644
            tar.addfile(member, io.BytesIO(content))
        for path, target in sorted(package.links.items()):
            member = tarfile.TarInfo(path)
            member.type = tarfile.SYMTYPE
            member.linkname = target
            tar.addfile(member)
    return bz2.compress(raw.getvalue(), 1)


def write(root: Path, channel: str, packages: list[Package]) -> dict[str, str]:
    """Write ``root/channel`` with its repodata; returns "subdir/filename" -> sha256."""
    digests: dict[str, str] = {}
    subdirs = {"noarch", "linux-64", "linux-aarch64"} | {one.subdir for one in packages}
    for subdir in sorted(subdirs):
        folder = root / channel / subdir
        folder.mkdir(parents=True, exist_ok=True)
        table: dict[str, Any] = {}
        for package in packages:
            if package.subdir != subdir:
                continue
            content = archive(package)
            (folder / package.filename).write_bytes(content)
            digests[f"{subdir}/{package.filename}"] = hashlib.sha256(content).hexdigest()
            table[package.filename] = _index(package) | {
                "sha256": digests[f"{subdir}/{package.filename}"],
                "md5": hashlib.md5(content).hexdigest(),
                "size": len(content),
            }
        repodata = {"info": {"subdir": subdir}, "packages": table, "packages.conda": {}, "repodata_version": 1}
        (folder / "repodata.json").write_text(json.dumps(repodata), encoding="utf-8")
    return digests


@contextmanager
def served(root: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve ``root``; yields the base address (no slash at the end)."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, directory=str(root), **kwargs)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = http.server.ThreadingHTTPServer((host, 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def both(package: Package) -> list[Package]:
    """The package for both processor kinds."""
    from dataclasses import replace

    return [replace(package, subdir="linux-64"), replace(package, subdir="linux-aarch64")]


def cuda_family() -> list[Package]:
    """``cuda-version`` 11.8, 12.4, 12.9 with a cudart, and a framework built for each, and one for the CPU."""
    found: list[Package] = []
    for version in ("11.8", "12.4", "12.9"):
        tag = version.replace(".", "")
        major = version.split(".")[0]
        found.append(
            Package(
                "cuda-version", version, "h0_3", constrains=("__cuda >=" + major,), subdir="noarch", noarch="generic"
            )
        )
        found += both(
            Package(
                "cuda-cudart",
                f"{version}.1",
                "h1_0",
                depends=(f"cuda-version >={version},<{version}.99",),
                files={f"lib/libcudart.so.{version}.1": f"cudart {version}".encode()},
                links={f"lib/libcudart.so.{major}": f"libcudart.so.{version}.1"},
            )
        )
        found += both(
            Package(
                "pytorch",
                "2.3.1",
                f"cuda{tag}_py311_h2_300",
                depends=("python 3.11.*", "__cuda", f"cuda-version {version}.*", "cuda-cudart", "numpy"),
                files={"lib/python3.11/site-packages/torch/__init__.py": f"cuda = '{version}'\n".encode()},
            )
        )
    found += both(
        Package(
            "pytorch",
            "2.3.1",
            "cpu_py311_h3_0",
            depends=("python 3.11.*", "numpy"),
            files={"lib/python3.11/site-packages/torch/__init__.py": b"cuda = None\n"},
        )
    )
    return found


def plain_python() -> list[Package]:
    """A ``python`` that is only a name, numpy for it, and a noarch package."""
    found = both(
        Package("python", "3.11.9", "h4_0", depends=("__glibc >=2.17",), files={"bin/python3.11": b"#!/bin/sh\n"})
    )
    found += both(Package("python", "3.12.4", "h4_0", files={"bin/python3.12": b"#!/bin/sh\n"}))
    for version in ("1.26.4", "2.1.0"):
        found += both(
            Package(
                "numpy",
                version,
                "py311h5_0",
                depends=("python 3.11.*",),
                files={"lib/python3.11/site-packages/numpy/__init__.py": f"__version__ = '{version}'\n".encode()},
                timestamp=TIMESTAMP if version.startswith("1") else TIMESTAMP + 40_000_000_000,
            )
        )
    found.append(
        Package(
            "tidy",
            "1.0",
            "pyh6_0",
            depends=("python >=3.8",),
            files={"site-packages/tidy/__init__.py": b"name = 'tidy'\n"},
            subdir="noarch",
            noarch="python",
        )
    )
    return found


def broken() -> list[Package]:
    """Packages that cannot be had: a dependency nobody has, two that exclude each other, a glibc of tomorrow."""
    return [
        Package("needs-ghost", "1.0", depends=("ghost >=2",)),
        Package("wants-old-numpy", "1.0", depends=("numpy <2",)),
        Package("wants-new-numpy", "1.0", depends=("numpy >=2",)),
        Package("future", "1.0", depends=("__glibc >=2.99",)),
        Package("fast-cpu", "1.0", "v4_0", depends=("__archspec 1 x86_64_v4",)),
    ]


def relocated(program: Path) -> bytes:
    """The interpreter with its search path made relative to itself, as conda's own build does."""
    content = program.read_bytes()
    for folder in elf.facts(str(program))["search"]:
        relative = b"$ORIGIN/../lib"
        if folder.encode() != relative:
            assert len(folder) >= len(relative), f"no room for a relative path in {folder}"
            content = content.replace(folder.encode() + b"\0", relative.ljust(len(folder), b"\0") + b"\0")
    return content


def real_python() -> Package:
    """This interpreter as a conda package: the program and the standard library without its tests."""
    root = Path(sys.base_prefix)
    program = (root / "bin" / f"python{PYTHON}").resolve()
    files = {f"bin/python{PYTHON}": relocated(program)}
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*")):
        relative = path.relative_to(library)
        unused = {"test", "tests", "site-packages", "__pycache__", "dist-packages", "idlelib"} & set(relative.parts)
        if path.is_file() and not unused and not relative.parts[0].startswith(("config-", "ensurepip", "lib2to3")):
            files[f"lib/python{PYTHON}/{relative}"] = path.read_bytes()
    shared = root / "lib" / f"libpython{PYTHON}.so.1.0"
    if shared.exists():
        files[f"lib/libpython{PYTHON}.so.1.0"] = shared.read_bytes()
    return Package(
        "python",
        f"{PYTHON}.99",
        "h1_0",
        files=files,
        links={"bin/python": f"python{PYTHON}", "bin/python3": f"python{PYTHON}"},
        executables=(f"bin/python{PYTHON}",),
    )
