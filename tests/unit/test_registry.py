"""Asking a registry for a digest: a small registry on this machine answers as real ones do."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envforge.config import Config
from envforge.errors import NetworkError
from envforge.registry import INDEX_TYPES, challenge, credentials, resolve_digest

DIGEST = "sha256:" + "c" * 64


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        name = self.path.removeprefix("/v2/")
        token = self.headers.get("Authorization")
        if name.startswith("private/") and token != "Bearer good":
            self.send_response(401)
            place = f"http://127.0.0.1:{self.server.server_address[1]}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{place}",service="test",scope="pull"')
        elif name in ("x/manifests/1", "private/x/manifests/1"):
            self.send_response(200)
            self.send_header("Content-Type", INDEX_TYPES[0])
            self.send_header("Docker-Content-Digest", DIGEST)
        elif name == "single/manifests/1":
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.oci.image.manifest.v1+json; charset=utf-8")
            self.send_header("Docker-Content-Digest", DIGEST)
        elif name == "nodigest/manifests/1":
            self.send_response(200)
        else:
            self.send_response(500 if name.startswith("broken") else 404)
        self.end_headers()

    def do_GET(self) -> None:
        login = base64.b64encode(b"me:secret").decode()
        good = self.headers.get("Authorization") == f"Basic {login}"
        body = json.dumps({"token": "good" if good else "bad"}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return None


@pytest.fixture
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def test_the_digest_of_an_index(host: str) -> None:
    found = resolve_digest(f"{host}/x:1")
    assert (found.digest, found.is_index, found.reference) == (DIGEST, True, f"{host}/x:1")


def test_one_platforms_manifest_is_no_index(host: str) -> None:
    assert not resolve_digest(f"{host}/single:1").is_index


def test_a_mapped_registry_is_asked(host: str) -> None:
    assert resolve_digest(
        "docker.io/x/y:1".replace("x/y", "x"), Config(bases={"docker.io/x:1": f"{host}/x:1"})
    ).is_index


def test_a_token_is_fetched_with_the_users_login(host: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        resolve_digest(f"{host}/private/x:1")
    assert caught.value.reference == "registry-refused"
    packed = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": packed}}}), encoding="utf-8")
    assert credentials(host, {"DOCKER_CONFIG": str(tmp_path)}) == ("me", "secret")
    assert resolve_digest(f"{host}/private/x:1").digest == DIGEST


@pytest.mark.parametrize(
    ("name", "reference"),
    [("absent:1", "image-not-found"), ("broken:1", "registry-refused"), ("nodigest:1", "registry-refused")],
)
def test_refusals(host: str, name: str, reference: str) -> None:
    with pytest.raises(NetworkError) as caught:
        resolve_digest(f"{host}/{name}")
    assert (caught.value.reference, caught.value.exit_code) == (reference, 11)


def test_a_registry_that_does_not_answer() -> None:
    with pytest.raises(NetworkError) as caught:
        resolve_digest("127.0.0.1:9/x:1", timeout=2)
    assert caught.value.reference == "registry-unreachable" and "`registries`" in caught.value.hint


def test_challenges() -> None:
    assert challenge('Bearer realm="https://a/t",service="s"') == {"realm": "https://a/t", "service": "s"}
    assert challenge('Basic realm="x"') == {}
