"""A package index that fails inside a real build: tampered, broken, cut short, gone. The message tells them apart."""

from __future__ import annotations

import hashlib
import io
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envforge import base
from envforge.config import Config
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions
from envforge.errors import BuildError
from envforge.local_engine import uv_binary
from tests import records

pytestmark = pytest.mark.docker


def _wheel(code: str = "X = 1") -> bytes:
    """A wheel large enough to be cut, the same bytes each time."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, text in {
            "tiny.py": code + "\n" + "#" * 200_000,
            "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
            "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "tiny-1.0.dist-info/RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), text)
    return target.getvalue()


WHEEL = _wheel()
NAME = "tiny-1.0-py3-none-any.whl"


class _Index(ThreadingHTTPServer):
    mode = "good"


class _Handler(BaseHTTPRequestHandler):
    server: _Index

    def do_GET(self) -> None:
        mode = self.server.mode
        if mode == "broken":
            self.send_error(503)
        elif self.path.endswith(NAME):
            body = {"tampered": _wheel("X = 2"), "damaged": WHEEL.replace(b"####", b"@@@@", 1)}.get(mode, WHEEL)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if mode == "short" else body)
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a href="/files/{NAME}">{NAME}</a>'.encode())

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(WHEEL)))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        return None


@pytest.fixture
def index() -> Iterator[_Index]:
    server = _Index(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def build(index: _Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """Installs the wheel, hash-checked, with uv, as the templates do, from the index the host names."""
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path))
    engine = DockerEngine.connect(config=Config())
    base.bootstrap(engine, "3.11", note=lambda text: None)
    digest = "sha256:" + uuid.uuid4().hex * 2
    wanted = hashlib.sha256(WHEEL).hexdigest()
    lines = (
        f"RUN echo tiny==1.0 --hash=sha256:{wanted} > /tmp/lock.txt\n"
        "RUN --mount=type=bind,source=build,target=/run/envforge/host --mount=type=bind,source=uv,target=/run/uv "
        f": {digest} && cp /run/uv /tmp/uv && chmod +x /tmp/uv && "
        "UV_DEFAULT_INDEX=$(cat /run/envforge/host/index-url) UV_HTTP_RETRIES=0 "
        "/tmp/uv pip install --no-deps --no-cache --require-hashes "
        "-r /tmp/lock.txt --python python3 --target /opt/tiny && rm /tmp/uv\n"
    )
    rendered = replace(records.rendered(digest, lines=lines), files={"uv": uv_binary().read_bytes()})
    options = BuildOptions(
        progress=lambda line: None,
        index_url=f"http://127.0.0.1:{index.server_address[1]}/simple",
        environment={"NO_PROXY": "*"},
    )

    def run() -> object:
        return engine.build(rendered, records.resolution(), records.lock(digest), options)

    yield run
    assert [info for info in engine.images() if info.labels["envforge.inputs-digest"] == digest and info.tags] == []
    for info in engine.images():
        if info.labels["envforge.inputs-digest"] == digest:
            engine.remove(info.image)
    engine.close()


def test_a_good_index_installs(build: Callable[[], object]) -> None:
    """Control: the same build passes when nothing is wrong."""
    assert build() is not None


@pytest.mark.parametrize(
    ("mode", "reference", "word"),
    [
        ("tampered", "hash-mismatch", "another hash than the lock"),
        ("damaged", "damaged-download", "cannot be unpacked"),
        ("broken", "index-error", "server error"),
        ("short", "incomplete-download", "ended early"),
    ],
)
def test_what_is_wrong_is_named(
    build: Callable[[], object], index: _Index, mode: str, reference: str, word: str
) -> None:
    index.mode = mode
    with pytest.raises(BuildError) as caught:
        build()
    assert (caught.value.reference, caught.value.exit_code) == (reference, 7), caught.value.context
    assert word in caught.value.message


def test_an_index_that_is_gone(build: Callable[[], object], index: _Index) -> None:
    index.server_close()
    index.shutdown()
    with pytest.raises(BuildError) as caught:
        build()
    assert caught.value.reference == "index-unreachable", caught.value.context
