"""What the updaters and the wheel probe share: the package index of this machine, and writing with a diff.

The default index is the one pip is configured for here (environment, then pip's own configuration, then
pip's built-in default), so no host name stands in this repository.
"""

from __future__ import annotations

import difflib
import ensurepip
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "envforge" / "data"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
TIMEOUT = 60  # seconds for one answer
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


def core_metadata(file: Mapping[str, Any], *, get: Fetch = fetch) -> str | None:
    """Text of the METADATA file the index serves beside a wheel, or None where it serves none."""
    if not (file.get("core-metadata") or file.get("data-dist-info-metadata")):
        return None
    return get(file["url"] + ".metadata", {}).decode("utf-8", "replace")


def floor(what: str, found: int, before: int, *, lost: int = 0) -> None:
    """Raise :class:`Distrusted` when ``found`` rows are fewer than ``before`` less the ``lost`` allowed ones."""
    if found < before - lost:
        raise Distrusted(f"{what}: {found} rows where the table has {before}: has the source changed?")


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
