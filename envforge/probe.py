"""Looks at the environment it runs in and prints what is there. Standard library only, Python 3.8 or newer.

This file's text is handed to the interpreter of an image or prefix (``python -I -S -c``), so that nothing of
envforge is needed inside and nothing inside (``sitecustomize``, ``.pth`` files) runs before it. It imports
nothing from envforge. Output: one line, ``envforge-probe:`` and base64 of the zlib-compressed JSON.
"""

# os.path and %-formatting: faster to start, and right for old interpreters.
# ruff: noqa: B905, PTH100, PTH112, PTH113, PTH115, PTH118, PTH119, PTH120, PTH123, PTH202, PTH208, UP031
from __future__ import annotations

import base64
import concurrent.futures
import csv
import hashlib
import json
import os
import re
import stat
import sys
import sysconfig
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = "envforge-probe:"
CUDA_LIBRARY = re.compile(
    r"^lib(cudart|cublas|cublasLt|cudnn[a-z_]*|nccl|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cusparseLt"
    r"|nvrtc|nvJitLink|cupti|nvToolsExt|cufile|cuda|nvidia-ml)"
    r"(?:-[0-9a-f]{8})?\.so((?:\.\d+)*)$"
)
SKIPPED_TREES = ("/proc", "/sys", "/dev", "/run", "/envforge", "/tmp")
CHUNK = 1 << 20


def prefix_of(executable: str) -> str:
    """The environment an interpreter belongs to, without ``site`` and without following the link of a venv."""
    return os.path.dirname(os.path.dirname(os.path.abspath(executable)))


def site_folders(prefix: str) -> list[str]:
    """Where packages are installed: inside a venv or conda prefix, else the interpreter's own folders."""
    version = "python%d.%d" % sys.version_info[:2]
    if is_private(prefix):
        inside = [os.path.join(prefix, lib, version, "site-packages") for lib in ("lib", "lib64")]
    else:
        names = sysconfig.get_paths()
        inside = [names["purelib"], names["platlib"]]
        for root in ("/usr/local/lib", "/usr/lib"):
            inside += [os.path.join(root, version, leaf) for leaf in ("dist-packages", "site-packages")]
        inside.append("/usr/lib/python3/dist-packages")
    found: list[str] = []
    for folder in inside:
        if os.path.isdir(folder) and os.path.realpath(folder) not in [os.path.realpath(one) for one in found]:
            found.append(folder)
    return found


def is_private(prefix: str) -> bool:
    """Whether everything under ``prefix`` belongs to one environment (a venv or a conda prefix)."""
    return os.path.isfile(os.path.join(prefix, "pyvenv.cfg")) or os.path.isdir(os.path.join(prefix, "conda-meta"))


def walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every file and link below ``top``; links are not followed."""
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path not in SKIPPED_TREES or top in SKIPPED_TREES:
                    pending.append(entry.path)
            else:
                try:
                    yield entry.path, entry.stat(follow_symlinks=False)
                except OSError:
                    continue


def digest(path: str) -> str | None:
    """sha256 of a file in hex, ``None`` when it cannot be read. The interpreter lock is free while hashing."""
    found = hashlib.sha256()
    view = memoryview(bytearray(CHUNK))
    try:
        with open(path, "rb", buffering=0) as stream:
            while True:
                count = stream.readinto(view)
                if not count:
                    return found.hexdigest()
                found.update(view[:count])
    except OSError:
        return None


def files_of(folders: list[str], hashing: bool) -> dict[str, list[Any]]:
    """path -> [kind, size, sha256 or link target]; kind: file, link, other. Largest files are hashed first."""
    found: dict[str, list[Any]] = {}
    queue: list[tuple[int, str]] = []
    for folder in folders:
        for path, state in walk(folder):
            if path in found:
                continue
            if stat.S_ISLNK(state.st_mode):
                found[path] = ["link", 0, os.readlink(path)]
            elif stat.S_ISREG(state.st_mode):
                found[path] = ["file", state.st_size, None]
                queue.append((-state.st_size, path))
            else:
                found[path] = ["other", 0, None]
    if hashing:
        queue.sort()
        names = [path for _, path in queue]
        with concurrent.futures.ThreadPoolExecutor(max(2, min(8, os.cpu_count() or 2))) as pool:
            for path, value in zip(names, pool.map(digest, names)):
                found[path][2] = value
    return found


def hexadecimal(value: str) -> str | None:
    """``sha256=<urlsafe base64>`` of a RECORD as hex; another or no algorithm: None."""
    name, _, text = value.partition("=")
    if name != "sha256":
        return None
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
    except ValueError:
        return "unreadable"


def headers(path: str, *wanted: str) -> dict[str, list[str]]:
    """The named header fields of a METADATA file (the description is not read)."""
    found: dict[str, list[str]] = {name: [] for name in wanted}
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if not line.strip():
                    break
                name, colon, value = line.partition(":")
                if colon and name in found:
                    found[name].append(value.strip())
    except OSError:
        pass
    return found


def pip_packages(folders: list[str]) -> list[dict[str, Any]]:
    """Installed distributions with what their RECORD claims: rows of [absolute path, sha256 or None]."""
    found = []
    for folder in folders:
        for name in sorted(os.listdir(folder)):
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            meta = os.path.join(folder, name)
            source = meta if os.path.isfile(meta) else os.path.join(meta, "METADATA")
            if not os.path.isfile(source):
                source = os.path.join(meta, "PKG-INFO")
            fields = headers(source, "Name", "Version", "License", "License-Expression", "Classifier", "Requires-Dist")
            record = os.path.join(meta, "RECORD")
            rows: list[list[Any]] | None = None
            if os.path.isfile(record):
                rows = []
                with open(record, encoding="utf-8", errors="replace", newline="") as stream:
                    for row in csv.reader(stream):
                        if row:
                            path = os.path.normpath(os.path.join(folder, row[0]))
                            rows.append([path, hexadecimal(row[1]) if len(row) > 1 else None])
            installer = ""
            try:
                with open(os.path.join(meta, "INSTALLER"), encoding="utf-8") as stream:
                    installer = stream.read(100).strip()
            except OSError:
                pass
            direct = ""
            try:
                with open(os.path.join(meta, "direct_url.json"), encoding="utf-8") as stream:
                    direct = str(json.load(stream).get("url", ""))
            except (OSError, ValueError, AttributeError):
                pass
            found.append(
                {
                    "direct_url": direct,
                    "name": (fields["Name"] or [name.split("-")[0]])[0],
                    "version": (fields["Version"] or [""])[0],
                    "meta": meta,
                    "installer": installer,
                    "license": (fields["License"] or [""])[0][:200],
                    "license_expression": (fields["License-Expression"] or [""])[0],
                    "classifiers": [one for one in fields["Classifier"] if one.startswith("License ::")],
                    "requires": fields["Requires-Dist"],
                    "record": rows,
                }
            )
    return found


def conda_packages(prefix: str) -> list[dict[str, Any]]:
    """Packages of conda-meta; rows of [absolute path, sha256 in the prefix or None, path type]."""
    folder = os.path.join(prefix, "conda-meta")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if not name.endswith(".json"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as stream:
            try:
                data = json.load(stream)
            except ValueError:
                found.append(
                    {"name": name[:-5], "version": "", "build": "", "meta": name, "broken": True, "record": []}
                )
                continue
        rows = []
        listed = (data.get("paths_data") or {}).get("paths") or []
        for one in listed:
            # What stands in the prefix has its prefix text replaced: its own digest when that was recorded.
            value = one.get("sha256_in_prefix")
            if not value and not one.get("prefix_placeholder"):
                value = one.get("sha256")
            rows.append([os.path.normpath(os.path.join(prefix, one["_path"])), value, one.get("path_type", "hardlink")])
        if not listed:
            rows = [[os.path.normpath(os.path.join(prefix, one)), None, "hardlink"] for one in data.get("files", [])]
        found.append(
            {
                "name": data.get("name", ""),
                "version": data.get("version", ""),
                "build": data.get("build", ""),
                "subdir": data.get("subdir", ""),
                "channel": data.get("channel", ""),
                "filename": data.get("fn", ""),
                "sha256": data.get("sha256") or "",
                "license": data.get("license") or "",
                "depends": data.get("depends") or [],
                "meta": os.path.join(folder, name),
                "record": rows,
            }
        )
    return found


def apt_packages(root: str = "/var/lib/dpkg") -> list[list[str]]:
    """[name, version, architecture] of every installed Debian package, read from dpkg's own file."""
    found: list[list[str]] = []
    try:
        with open(os.path.join(root, "status"), encoding="utf-8", errors="replace") as stream:
            stanzas = stream.read().split("\n\n")
    except OSError:
        return found
    for stanza in stanzas:
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.*)$", stanza, re.MULTILINE))
        if "Package" in fields and fields.get("Status", "").endswith(" installed"):
            found.append([fields["Package"], fields.get("Version", ""), fields.get("Architecture", "")])
    return sorted(found)


def apt_owner(paths: list[str], root: str = "/var/lib/dpkg/info") -> dict[str, str]:
    """Which Debian package each of ``paths`` belongs to (those that belong to one)."""
    wanted = set(paths)
    found: dict[str, str] = {}
    if not wanted or not os.path.isdir(root):
        return found
    for name in os.listdir(root):
        if name.endswith(".list"):
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as stream:
                for line in stream:
                    if line.rstrip("\n") in wanted:
                        found[line.rstrip("\n")] = name[:-5].split(":")[0]
    return found


def cuda_libraries(prefix: str, files: dict[str, list[Any]], everywhere: bool) -> list[dict[str, Any]]:
    """Every CUDA library file of the machine image (``everywhere``) or of the prefix; links are left out."""
    candidates = {
        path for path, value in files.items() if value[0] == "file" and CUDA_LIBRARY.match(os.path.basename(path))
    }
    if everywhere:
        for path, state in walk("/"):
            if stat.S_ISREG(state.st_mode) and CUDA_LIBRARY.match(os.path.basename(path)):
                candidates.add(path)
    owners = apt_owner([path for path in candidates if path not in files])
    found = []
    for path in sorted(candidates):
        known = files.get(path)
        match = CUDA_LIBRARY.match(os.path.basename(path))
        assert match is not None
        found.append(
            {
                "library": "lib" + match.group(1),
                "version": match.group(2).lstrip("."),
                "path": path,
                "size": known[1] if known else os.path.getsize(path),
                "sha256": known[2] if known else digest(path),
                "apt": owners.get(path, ""),
                "stub": os.path.basename(os.path.dirname(path)) == "stubs",
            }
        )
    return found


def shared_objects(files: dict[str, list[Any]]) -> list[str]:
    """Files that begin like ELF."""
    found = []
    for path, value in files.items():
        if value[0] == "file" and value[1] >= 64:
            try:
                with open(path, "rb", buffering=0) as stream:
                    if stream.read(4) == b"\x7fELF":
                        found.append(path)
            except OSError:
                continue
    return sorted(found)


def bytecode(files: dict[str, list[Any]]) -> list[list[Any]]:
    """[path, source path, why it is not a plain compilation of that source ("" when it is one)] per .pyc file."""
    found = []
    for path, value in files.items():
        if not path.endswith(".pyc") or value[0] != "file":
            continue
        folder, name = os.path.split(path)
        source = ""
        if os.path.basename(folder) == "__pycache__":
            source = os.path.join(os.path.dirname(folder), name.split(".")[0] + ".py")
        problem = "" if source and os.path.isfile(source) else "no source beside it"
        found.append([path, source, problem])
    return found


def gather(options: dict[str, Any]) -> dict[str, Any]:
    """All of it. Options: prefix, hashing, everywhere (look for CUDA libraries in the whole file system)."""
    prefix = options.get("prefix") or prefix_of(sys.executable)
    folders = site_folders(prefix)
    files = files_of([prefix] if is_private(prefix) else folders, bool(options.get("hashing", True)))
    return {
        "schema": 1,
        "prefix": prefix,
        "private": is_private(prefix),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "site": folders,
        "files": files,
        "pip": pip_packages(folders),
        "conda": conda_packages(prefix),
        "apt": apt_packages(),
        "cuda": cuda_libraries(prefix, files, bool(options.get("everywhere", True))),
        "bytecode": bytecode(files),
        "library_path": os.environ.get("LD_LIBRARY_PATH", ""),
    }


def emit(value: dict[str, Any]) -> None:
    """One line on stdout that survives whatever else the image prints."""
    text = zlib.compress(json.dumps(value, separators=(",", ":")).encode("utf-8"), 1)
    sys.stdout.write("\n" + MARK + base64.b64encode(text).decode("ascii") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    emit(gather(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}))
