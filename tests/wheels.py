"""Makes tiny real wheels and source distributions, byte for byte the same each time."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TIME = (2020, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dist:
    """One distribution file: its name, bytes, core metadata and the Python it needs."""

    filename: str
    content: bytes
    metadata: bytes
    requires_python: str | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def project(self) -> str:
        return normalise(self.filename.split("-")[0])


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def core_metadata(
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    requires_python: str | None = None,
) -> bytes:
    """A METADATA / PKG-INFO file of version 2.2 (static, so that no build is needed to read it)."""
    lines = ["Metadata-Version: 2.2", f"Name: {name}", f"Version: {version}", "Summary: made by the tests"]
    if requires_python:
        lines.append(f"Requires-Python: {requires_python}")
    lines += [f"Requires-Dist: {text}" for text in requires]
    for extra, wanted in (extras or {}).items():
        lines.append(f"Provides-Extra: {extra}")
        for text in wanted:
            head, _, marker = text.partition(";")
            condition = f"({marker.strip()}) and extra == '{extra}'" if marker else f"extra == '{extra}'"
            lines.append(f"Requires-Dist: {head.strip()}; {condition}")
    return ("\n".join(lines) + "\n").encode()


def wheel(
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    extras: Mapping[str, Sequence[str]] | None = None,
    requires_python: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Dist:
    """A wheel with one module ``NAME/__init__.py`` (unless ``files`` says otherwise); ``version`` may be local."""
    module = re.sub(r"[-.]+", "_", name)
    info = f"{module}-{version}.dist-info"
    metadata = core_metadata(name, version, requires=requires, extras=extras, requires_python=requires_python)
    content: dict[str, bytes] = dict(files or {f"{module}/__init__.py": f"__version__ = {version!r}\n".encode()})
    content[f"{info}/METADATA"] = metadata
    python, abi, platform = tag.split("-")
    tags = [f"Tag: {p}-{a}-{q}" for p in python.split(".") for a in abi.split(".") for q in platform.split(".")]
    pure = "true" if platform == "any" else "false"
    head = ["Wheel-Version: 1.0", "Generator: tests", f"Root-Is-Purelib: {pure}", *tags]
    content[f"{info}/WHEEL"] = ("\n".join(head) + "\n").encode()
    record = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}")
    record.append(f"{info}/RECORD,,")
    content[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path, _TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return Dist(
        filename=f"{module}-{version}-{tag}.whl",
        content=buffer.getvalue(),
        metadata=metadata,
        requires_python=requires_python,
    )


_BACKEND = """\
import base64, hashlib, zipfile
NAME, VERSION, METADATA = {name!r}, {version!r}, {metadata!r}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = NAME + "-" + VERSION + ".dist-info"
    files = {{NAME + "/__init__.py": b"built = True\\n", info + "/METADATA": METADATA,
             info + "/WHEEL": b"Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}}
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(path + ",sha256=" + digest + "," + str(len(data)))
    files[info + "/RECORD"] = ("\\n".join(lines + [info + "/RECORD,,"]) + "\\n").encode()
    target = NAME + "-" + VERSION + "-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + target, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return target
"""


def sdist(name: str, version: str, *, requires: Sequence[str] = (), requires_python: str | None = None) -> Dist:
    """A source distribution with static metadata and a build backend of its own (builds without a network)."""
    module = re.sub(r"[-.]+", "_", name)
    metadata = core_metadata(name, version, requires=requires, requires_python=requires_python)
    root = f"{module}-{version}"
    project = f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = {list(requires)!r}\n'
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        f"{root}/PKG-INFO": metadata,
        f"{root}/pyproject.toml": (build + project).encode(),
        f"{root}/backend.py": _BACKEND.format(name=module, version=version, metadata=metadata).encode(),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(data), 1577836800, 0o644
            archive.addfile(entry, io.BytesIO(data))
    return Dist(
        filename=f"{root}.tar.gz",
        content=gzip.compress(buffer.getvalue(), mtime=0),
        metadata=metadata,
        requires_python=requires_python,
    )
