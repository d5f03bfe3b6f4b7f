"""A local package index (PEP 503 HTML, PEP 691 JSON, PEP 658 metadata) that can also misbehave.

Used as a context manager::

    with Index([wheel("torch", "2.7.1+cu118")]) as index:
        ... index.url ...        # http://127.0.0.1:PORT/simple
"""

from __future__ import annotations

import base64
import gzip
import html
import http.server
import io
import json
import threading
import urllib.parse
import zipfile
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from tests.wheels import Dist, normalise


def _tampered(name: str, content: bytes) -> bytes:
    """Another file that is as readable as the first one: only its hash tells."""
    if not name.endswith(".whl"):
        return content + gzip.compress(b"", mtime=0)
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(zipfile.ZipInfo("tampered.py", (2020, 1, 1, 0, 0, 0)), b"print('not what was locked')\n")
    return buffer.getvalue()


class Index:
    """Serves distributions. Faults are plain attributes that may be set at any time:

    ``status``: answer every request with this code; ``tampered``: file names served with other content (still a
    readable archive);
    ``truncated``: file names whose transfer stops half-way; ``stall``: seconds to wait before any answer;
    ``yanked``: file name -> reason; ``uploaded``: file name -> upload time (ISO 8601, in the JSON form);
    ``credentials``: (user, password) demanded by basic authentication; ``unhashed``: serve links without hashes;
    ``html_only``: refuse the JSON form, as older indexes do.
    ``requests`` lists the paths asked for.
    """

    def __init__(
        self, dists: Iterable[Dist] = (), *, credentials: tuple[str, str] | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.host = host  # the address of a Docker bridge lets containers reach it
        self.dists: dict[str, Dist] = {dist.filename: dist for dist in dists}
        self.credentials = credentials
        self.status: int | None = None
        self.tampered: set[str] = set()
        self.truncated: set[str] = set()
        self.stall = 0.0
        self.yanked: dict[str, str] = {}
        self.uploaded: dict[str, str] = {}
        self.unhashed = False
        self.html_only = False
        self.requests: list[str] = []
        self._stopping = threading.Event()
        self._server: http.server.ThreadingHTTPServer | None = None

    def add(self, *dists: Dist) -> None:
        self.dists.update({dist.filename: dist for dist in dists})

    def __enter__(self) -> Index:
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._stopping.clear()
        self._server = http.server.ThreadingHTTPServer((self.host, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.server_address[1])

    @property
    def root(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The index itself."""
        return f"{self.root}/simple"

    @property
    def flat_url(self) -> str:
        """The same files as one flat page, for find-links."""
        return f"{self.root}/flat"

    # -- answering --------------------------------------------------------------------------------

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        self.requests.append(path)
        if self.stall and self._stopping.wait(self.stall):
            return
        if self.status is not None:
            return self._send(request, self.status, b"the index is broken on purpose\n")
        if self.credentials:
            word = base64.b64encode(":".join(self.credentials).encode()).decode()
            if request.headers.get("Authorization") != f"Basic {word}":
                return self._send(
                    request, 401, b"credentials, please\n", headers={"WWW-Authenticate": 'Basic realm="test"'}
                )
        parts = [part for part in path.split("/") if part]
        if parts[:1] == ["files"] and len(parts) == 2:
            return self._file(request, parts[1])
        if parts == ["flat"]:
            return self._html(request, self._links(list(self.dists.values())))
        if parts == ["simple"]:
            return self._projects(request)
        if parts[:1] == ["simple"] and len(parts) == 2:
            chosen = [dist for dist in self.dists.values() if dist.project == normalise(parts[1])]
            return self._project(request, normalise(parts[1]), chosen)
        self._send(request, 404, b"not here\n")

    def _projects(self, request: http.server.BaseHTTPRequestHandler) -> None:
        names = sorted({dist.project for dist in self.dists.values()})
        if self._wants_json(request):
            return self._json(request, {"meta": {"api-version": "1.1"}, "projects": [{"name": name} for name in names]})
        self._html(request, "".join(f'<a href="/simple/{name}/">{name}</a><br>\n' for name in names))

    def _project(self, request: http.server.BaseHTTPRequestHandler, name: str, dists: list[Dist]) -> None:
        if not dists:
            return self._send(request, 404, b"no such project\n")
        if not self._wants_json(request):
            return self._html(request, self._links(dists))
        files = []
        for dist in dists:
            entry: dict[str, Any] = {
                "filename": dist.filename,
                "url": f"{self.root}/files/{urllib.parse.quote(dist.filename)}",
                "hashes": {} if self.unhashed else {"sha256": dist.sha256},
                "size": len(dist.content),
                "yanked": self.yanked.get(dist.filename, False),
            }
            if dist.requires_python:
                entry["requires-python"] = dist.requires_python
            if dist.filename.endswith(".whl"):
                entry["core-metadata"] = True
            if dist.filename in self.uploaded:
                entry["upload-time"] = self.uploaded[dist.filename]
            files.append(entry)
        self._json(request, {"meta": {"api-version": "1.1"}, "name": name, "files": files})

    def _links(self, dists: list[Dist]) -> str:
        lines = []
        for dist in dists:
            fragment = "" if self.unhashed else f"#sha256={dist.sha256}"
            needs = f' data-requires-python="{html.escape(dist.requires_python)}"' if dist.requires_python else ""
            yank = f' data-yanked="{html.escape(self.yanked[dist.filename])}"' if dist.filename in self.yanked else ""
            href = f"/files/{urllib.parse.quote(dist.filename)}{fragment}"
            lines.append(f'<a href="{href}"{needs}{yank}>{dist.filename}</a><br>\n')
        return "".join(lines)

    def _file(self, request: http.server.BaseHTTPRequestHandler, name: str) -> None:
        if name.endswith(".metadata") and name.removesuffix(".metadata") in self.dists:
            return self._send(request, 200, self.dists[name.removesuffix(".metadata")].metadata)
        dist = self.dists.get(name)
        if dist is None:
            return self._send(request, 404, b"withdrawn\n")
        content = dist.content
        if name in self.tampered:
            content = _tampered(name, content)
        if name in self.truncated:
            return self._send(request, 200, content[: len(content) // 2], length=len(content))
        self._send(request, 200, content, kind="application/octet-stream")

    def _wants_json(self, request: http.server.BaseHTTPRequestHandler) -> bool:
        return not self.html_only and "application/vnd.pypi.simple.v1+json" in request.headers.get("Accept", "")

    def _json(self, request: http.server.BaseHTTPRequestHandler, value: dict[str, Any]) -> None:
        self._send(request, 200, json.dumps(value).encode(), kind="application/vnd.pypi.simple.v1+json")

    def _html(self, request: http.server.BaseHTTPRequestHandler, body: str) -> None:
        page = f"<!DOCTYPE html><html><body>\n{body}</body></html>\n"
        self._send(request, 200, page.encode(), kind="text/html; charset=utf-8")

    def _send(
        self,
        request: http.server.BaseHTTPRequestHandler,
        code: int,
        body: bytes,
        *,
        kind: str = "text/plain",
        length: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        try:
            request.send_response(code)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(body) if length is None else length))
            for key, value in (headers or {}).items():
                request.send_header(key, value)
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            return  # the client went away first
