"""What is in an environment: the probe is run inside it and its answer read into records.

Nothing of envforge is needed inside: the text of ``probe.py`` is handed to the interpreter on its command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envforge.engine import Engine, ImageInfo, RunRequest
from envforge.errors import EngineError


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One path. ``kind``: file, link, other; ``value``: sha256 hex, link target, or None (not hashed or unreadable)."""

    kind: str
    size: int
    value: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledPip:
    """An installed distribution. ``record``: path -> sha256 its RECORD claims (None: no claim); None: no RECORD."""

    name: str
    version: str
    meta: str
    installer: str
    license: str
    license_expression: str
    classifiers: tuple[str, ...]
    requires: tuple[str, ...]
    record: Mapping[str, str | None] | None
    direct_url: str = ""  # where it came from when not from an index


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledConda:
    """A package of conda-meta. ``record``: path -> (sha256 in the prefix or None, path type)."""

    name: str
    version: str
    build: str
    subdir: str
    channel: str
    filename: str
    sha256: str
    license: str
    meta: str
    record: Mapping[str, tuple[str | None, str]]
    broken: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaLibrary:
    """One file of a CUDA library. ``owner``: "pip:NAME", "conda:NAME", "apt:NAME" or "" (nobody's)."""

    library: str
    version: str
    path: str
    size: int
    sha256: str | None
    owner: str
    stub: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Everything found. ``private``: all files under ``prefix`` belong to one environment."""

    prefix: str
    private: bool
    python: str
    site: tuple[str, ...]
    files: Mapping[str, FileEntry]
    pip: tuple[InstalledPip, ...]
    conda: tuple[InstalledConda, ...]
    apt: tuple[tuple[str, str], ...]
    cuda: tuple[CudaLibrary, ...]
    bytecode: Mapping[str, str]  # path -> what is wrong with it ("" nothing)
    seconds: float = 0.0

    def owners(self) -> dict[str, str]:
        """path -> "pip:NAME" or "conda:NAME" for every path some package claims (the last claim wins)."""
        found: dict[str, str] = {}
        for conda in self.conda:
            found.update(dict.fromkeys(conda.record, f"conda:{conda.name}"))
            found[conda.meta] = f"conda:{conda.name}"
        for package in self.pip:
            found.update(dict.fromkeys(package.record or (), f"pip:{normalise(package.name)}"))
        return found


def normalise(name: str) -> str:
    """A distribution name as indexes compare it: lower case, runs of ``-_.`` are one dash."""
    import re

    return re.sub(r"[-_.]+", "-", name).lower()


def probe_source() -> str:
    """The text of the program that runs inside."""
    return (Path(__file__).parent / "probe.py").read_text(encoding="utf-8")


def decode(output: str) -> dict[str, Any]:
    """The probe's document out of everything the interpreter printed. Raises ``ValueError`` when there is none."""
    import base64
    import zlib

    from envforge.probe import MARK

    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(line[len(MARK) :])))
            return found
    raise ValueError("the probe printed no answer")


def read(document: Mapping[str, Any], seconds: float = 0.0) -> Inventory:
    """The probe's document as an :class:`Inventory`."""
    files = {path: FileEntry(kind=row[0], size=row[1], value=row[2]) for path, row in document["files"].items()}
    pip = tuple(
        InstalledPip(
            name=one["name"],
            version=one["version"],
            meta=one["meta"],
            installer=one["installer"],
            license=one["license"],
            license_expression=one["license_expression"],
            classifiers=tuple(one["classifiers"]),
            requires=tuple(one["requires"]),
            record=None if one["record"] is None else dict(one["record"]),
            direct_url=one.get("direct_url", ""),
        )
        for one in document["pip"]
    )
    conda = tuple(
        InstalledConda(
            name=one["name"],
            version=one["version"],
            build=one["build"],
            subdir=one.get("subdir", ""),
            channel=one.get("channel", ""),
            filename=one.get("filename", ""),
            sha256=one.get("sha256", ""),
            license=one.get("license", ""),
            meta=one["meta"],
            record={path: (value, kind) for path, value, kind in one["record"]},
            broken=bool(one.get("broken")),
        )
        for one in document["conda"]
    )
    found = Inventory(
        prefix=document["prefix"],
        private=bool(document["private"]),
        python=document["python"],
        site=tuple(document["site"]),
        files=files,
        pip=pip,
        conda=conda,
        apt=tuple((name, version) for name, version, _ in document["apt"]),
        cuda=(),
        bytecode={path: problem for path, _, problem in document["bytecode"]},
        seconds=seconds,
    )
    return _with_cuda(found, document["cuda"])


def _with_cuda(found: Inventory, rows: list[dict[str, Any]]) -> Inventory:
    from dataclasses import replace

    owners = found.owners()
    libraries = tuple(
        CudaLibrary(
            library=one["library"],
            version=one["version"],
            path=one["path"],
            size=one["size"],
            sha256=one["sha256"],
            owner=owners.get(one["path"], f"apt:{one['apt']}" if one["apt"] else ""),
            stub=one["stub"],
        )
        for one in rows
    )
    return replace(found, cuda=libraries)


def _options(hashing: bool, everywhere: bool, prefix: str | None) -> str:
    return json.dumps({"hashing": hashing, "everywhere": everywhere, **({"prefix": prefix} if prefix else {})})


def of_image(
    engine: Engine, image: str, *, hashing: bool = True, timeout: float = 900, info: ImageInfo | None = None
) -> Inventory:
    """The inventory of an image or prefix, gathered inside it by its own interpreter.

    ``hashing``: read every file. ``timeout`` in seconds. Raises EngineError when the engine is lost or the
    environment has no interpreter that runs.
    """
    # Only in an image is the whole file system the environment's own.
    options = _options(hashing, engine.name == "docker", None)
    interpreter = interpreter_of(info or engine.inspect(image)) if engine.name == "docker" else "python"
    request = RunRequest(argv=(interpreter, "-I", "-S", "-c", probe_source(), options), user="0", timeout=timeout)
    if engine.name != "docker":
        request = RunRequest(argv=request.argv, timeout=timeout)
    result = engine.run(image, request)
    if result.code != 0 and interpreter == "python" and engine.name == "docker":
        request = RunRequest(argv=("python3", *request.argv[1:]), user="0", timeout=timeout)
        result = engine.run(image, request)
    return _read_output(image, result.code, result.stdout, result.stderr, result.seconds, result.timed_out)


def interpreter_of(info: ImageInfo) -> str:
    """The interpreter of an image of ours (its prefix label or VIRTUAL_ENV), else ``python`` on its PATH."""
    prefix = info.labels.get("envforge.prefix") or info.env.get("VIRTUAL_ENV") or info.env.get("CONDA_PREFIX")
    return f"{prefix.rstrip('/')}/bin/python" if prefix else "python"


def of_interpreter(python: Path, *, hashing: bool = True, timeout: float = 900) -> Inventory:
    """The inventory of the environment an interpreter of this machine belongs to."""
    from envforge import process

    outcome = process.run((python, "-I", "-S", "-c", probe_source(), _options(hashing, False, None)), timeout=timeout)
    return _read_output(str(python), outcome.code, outcome.stdout, outcome.stderr, outcome.seconds, outcome.timed_out)


def _read_output(what: str, code: int, out: str, err: str, seconds: float, timed_out: bool) -> Inventory:
    try:
        return read(decode(out), seconds)
    except (ValueError, KeyError) as problem:
        tail = tuple((out[-2000:] + err[-2000:]).splitlines()[-15:])
        raise EngineError(
            "inventory-impossible",
            f"{what}: its interpreter gave no inventory"
            + (f" within {seconds:.0f} s" if timed_out else f" (exit code {code}, {problem})"),
            context=tail,
            hint="the image needs Python 3.8 or newer; `envforge run NAME -- python -V` shows whether it starts",
        ) from problem
