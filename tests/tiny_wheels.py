"""Tiny real wheels, and a private prefix with some of them installed by uv without a network."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from envforge import process


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    requires: tuple[str, ...] = (),
    license: str = "",
    tag: str = "py3-none-any",
    scripts: Mapping[str, str] | None = None,
) -> Path:
    """Write ``folder/NAME-VERSION-TAG.whl`` with a right RECORD and return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"License: {license}\n" if license else ""
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    members = dict(files) | {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    if scripts:
        lines = "[console_scripts]\n" + "".join(f"{key} = {value}\n" for key, value in scripts.items())
        members[f"{info}/entry_points.txt"] = lines.encode()
    rows = []
    for path, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}\n")
    rows.append(f"{info}/RECORD,,\n")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, content in members.items():
            archive.writestr(zipfile.ZipInfo(path), content)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join(rows))
    return target


def sha256(path: Path) -> str:
    """``sha256:…`` of a file, as locks write it."""
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def prefix(folder: Path, wheels: list[Path]) -> Path:
    """A virtual environment of this Python with the wheels installed; returns its interpreter."""
    uv = Path(sys.executable).with_name("uv")
    made = process.run([uv, "venv", "-q", "--offline", "--python", sys.executable, folder])
    assert made.ok, made.tail()
    python = folder / "bin" / "python"
    if wheels:
        install = [uv, "pip", "install", "-q", "--offline", "--no-index", "--no-deps", "--python", python, *wheels]
        done = process.run(install)
        assert done.ok, done.tail()
    return python
