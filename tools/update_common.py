"""What the updaters and the wheel probe share: the package index of this machine, and writing with a diff.

The default index is the one pip is configured for here (environment, then pip's own configuration, then
pip's built-in default), so no host name stands in this repository.
"""

from __future__ import annotations

import datetime
import difflib
import ensurepip
import io
import json
import os
import re
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from email.parser import Parser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "envforge" / "data"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
TIMEOUT = 60  # seconds for one answer
BLOCK = 1 << 22  # bytes of one range request
Fetch = Callable[[str, Mapping[str, str]], bytes]


class Distrusted(RuntimeError):
    """The source's answer is shorter or stranger than it can honestly be; nothing is written."""


def _bundled_pip() -> None:
    """Make the pip that comes with Python importable, whether or not it is installed."""
    wheels = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    if wheels and str(wheels[-1]) not in sys.path:
        sys.path.append(str(wheels[-1]))


def default_index() -> str:
    """URL of the default simple index, without a trailing slash."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name].rstrip("/")
    _bundled_pip()
    from pip._internal.configuration import Configuration  # type: ignore[import-not-found,unused-ignore]
    from pip._internal.models.index import PyPI  # type: ignore[import-not-found,unused-ignore]

    configuration = Configuration(isolated=False)
    configuration.load()
    for key, value in configuration.items():
        if key in ("global.index-url", "install.index-url"):
            return str(value).rstrip("/")
    return str(PyPI.simple_url).rstrip("/")


def _context() -> ssl.SSLContext:
    for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        bundle = os.environ.get(name)
        if bundle and Path(bundle).is_file():
            return ssl.create_default_context(cafile=bundle)
    return ssl.create_default_context()


def fetch(url: str, headers: Mapping[str, str] | None = None, *, tries: int = 4) -> bytes:
    """Body of a URL; tries again on a broken connection. Raises ``OSError`` (HTTPError is one)."""
    for attempt in range(tries):
        request = urllib.request.Request(url, headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT, context=_context()) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == tries - 1:
                raise
        except OSError:
            if attempt == tries - 1:
                raise
        time.sleep(2**attempt)
    raise AssertionError("unreachable")


def project(name: str, *, get: Fetch = fetch, index: str | None = None) -> dict[str, Any]:
    """The simple-API answer of one project: ``{"name", "versions", "files": [{"filename", "url", …}]}``.

    File URLs are absolute. Raises :class:`Distrusted` when the answer is not that document.
    """
    url = f"{index or default_index()}/{name}/"
    answer = json.loads(get(url, {"Accept": SIMPLE_JSON}))
    if not isinstance(answer, dict) or not isinstance(answer.get("files"), list):
        raise Distrusted(f"{name}: the index did not answer with a file list")
    for file in answer["files"]:
        file["url"] = urljoin(url, file["url"])
    return answer


class RangeFile(io.RawIOBase):
    """A remote file read by blocks. ``read_range(first, last)`` returns the bytes of that closed interval."""

    def __init__(self, size: int, read_range: Callable[[int, int], bytes], *, keep: int = 8) -> None:
        self._size, self._read_range, self._keep = size, read_range, keep
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self.fetched = 0  # bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            first = number * BLOCK
            last = min(first + BLOCK, self._size) - 1
            found = self._read_range(first, last)
            if len(found) != last - first + 1:
                raise Distrusted(f"asked for bytes {first}-{last}, got {len(found)}: no range requests there?")
            self.fetched += len(found)
            self._blocks[number] = found
            while len(self._blocks) > self._keep:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < end:
            number, inner = divmod(self._at, BLOCK)
            part = self._block(number)[inner : inner + end - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)


def open_wheel(file: Mapping[str, Any]) -> RangeFile:
    """A wheel of the index as a file that is fetched only where it is read."""

    def read_range(first: int, last: int) -> bytes:
        return fetch(file["url"], {"Range": f"bytes={first}-{last}"})

    return RangeFile(int(file["size"]), read_range)


def core_metadata(file: Mapping[str, Any], *, get: Fetch = fetch) -> str | None:
    """Text of a wheel's METADATA: served beside the wheel, else read out of it; None where neither can be."""
    if file.get("core-metadata") or file.get("data-dist-info-metadata"):
        return get(file["url"] + ".metadata", {}).decode("utf-8", "replace")
    if not file.get("size"):
        return None
    with zipfile.ZipFile(open_wheel(file)) as archive:
        name = next((n for n in archive.namelist() if n.endswith(".dist-info/METADATA")), None)
        return archive.read(name).decode("utf-8", "replace") if name else None


def report(path: Path, new: str, *, write: bool) -> bool:
    """Show the difference to ``path`` on stdout, write it when asked; True when there is one."""
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "now", "new", lineterm="", n=2))
    if not lines:
        print(f"{path.name}: nothing new")
        return False
    print("\n".join(lines))
    if write:
        from envforge.paths import write_atomic

        write_atomic(path, new.encode())
        print(f"{path.name}: written")
    else:
        print(f"{path.name}: not written (add --write)")
    return True


# --- rows --------------------------------------------------------------------------------------------------


def today() -> str:
    """The date of a new row's ``checked``."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def releases(answer: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Version -> wheels of final releases, oldest first; a release whose every file is withdrawn is left out."""
    from envforge.versions import is_prerelease, is_version, key

    found: dict[str, list[dict[str, Any]]] = {}
    for file in answer["files"]:
        match = re.fullmatch(r"[^-]+-([^-]+)(?:-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl", file["filename"])
        if match and is_version(match[1]) and not is_prerelease(match[1]) and not file.get("yanked"):
            found.setdefault(match[1], []).append(file)
    return dict(sorted(found.items(), key=lambda item: key(item[0])))


def withdrawn(answer: Mapping[str, Any]) -> dict[str, str]:
    """Version -> reason, for releases whose every file is withdrawn."""
    files: dict[str, list[Any]] = {}
    for file in answer["files"]:
        if match := re.match(r"[^-]+-(\d[^-]*?)(?:-|\.tar\.gz$|\.zip$)", file["filename"]):
            files.setdefault(match[1], []).append(file.get("yanked", False))
    return {
        version: next((str(text) for text in flags if isinstance(text, str) and text), "withdrawn by its publisher")
        for version, flags in files.items()
        if all(flags)
    }


def pythons(files: Iterable[Mapping[str, Any]]) -> list[str]:
    """CPythons with a Linux or pure wheel: ``["3.10", "3.11"]``; empty when the wheels serve any Python 3."""
    found: set[int] = set()
    for file in files:
        python, abi, platform = file["filename"].removesuffix(".whl").rsplit("-", 3)[1:]
        if not ("linux" in platform or platform == "any") or abi.endswith("t"):
            continue
        found |= {int(tag[3:]) for tag in python.split(".") if re.fullmatch(r"cp3\d+", tag)}
    return [f"3.{minor}" for minor in sorted(found)]


def glibc(files: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Lowest glibc the Linux wheels ask for: ``{"amd64": "2.28"}``."""
    from envforge.versions import key

    old = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
    out: dict[str, str] = {}
    for file in files:
        platform = file["filename"].removesuffix(".whl").rsplit("-", 1)[1]
        for tag in platform.split("."):
            match = re.fullmatch(r"(?:manylinux_(\d+)_(\d+)|(manylinux\d+))_(x86_64|aarch64)", tag)
            if match:
                version = f"{match[1]}.{match[2]}" if match[1] else old.get(match[3], "2.17")
                arch = {"x86_64": "amd64", "aarch64": "arm64"}[match[4]]
                out[arch] = min(version, out.get(arch, version), key=key)
    return out


def requirements(metadata: str) -> dict[str, list[str]]:
    """Name -> bounds of the unconditional needs in a METADATA text: ``{"numpy": [">=1.26"]}``."""
    out: dict[str, list[str]] = {}
    for line in Parser().parsestr(metadata).get_all("Requires-Dist") or []:
        body, _, marker = line.partition(";")
        if re.search(r"\bextra\b", marker):
            continue
        match = re.fullmatch(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*(?:\[[^]]*\])?)\s*\(?([^()]*)\)?\s*", body)
        if match:
            name = match[1].lower().replace("_", "-").replace(".", "-")
            out.setdefault(name, []).append(",".join(part.strip() for part in match[2].split(",") if part.strip()))
    return out


def newer(table: list[dict[str, Any]], found: Mapping[str, Any], *, allowed_gone: int = 3) -> list[str]:
    """Versions newer than every row. Raises Distrusted when the source no longer lists rows of the table."""
    from envforge.versions import key

    have = {key(row["version"]) for row in table}
    gone = have - {key(version) for version in found}
    if len(gone) > allowed_gone:
        raise Distrusted(f"{len(gone)} of {len(have)} known releases are not in the answer: has the source changed?")
    return [version for version in found if key(version) > max(have)]


def table_text(name: str, table: Mapping[str, Any]) -> str:
    """The YAML text of a table, as the converter writes it. Raises Distrusted when its rows contradict others."""
    from convert_facts import TITLES, write

    from envforge import tables

    everything = dict(tables.read_all())
    before = set(tables.problems(everything))
    everything[name] = table
    wrong = [text for text in tables.problems(everything) if text not in before]
    if wrong:
        raise Distrusted(f"{name}: the new rows break the table: " + "; ".join(wrong[:5]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.yaml"
        write(path, TITLES[name], table)
        return path.read_text(encoding="utf-8")


def update(name: str, table: Mapping[str, Any], *, write: bool) -> bool:
    """Show and perhaps write one table, together with the compact form read at run time."""
    from envforge import tables
    from envforge.paths import write_atomic

    changed = report(DATA / f"{name}.yaml", table_text(name, table), write=write)
    if changed and write:
        write_atomic(tables.compiled_path(name), tables.compile_text(table).encode())
    return changed
