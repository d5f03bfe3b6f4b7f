"""A real registry (Debian's docker-registry) on loopback, with and without login; a proxy that breaks connections."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

USER, PASSWORD = "lab", "opensesame"
# bcrypt of PASSWORD, the only form docker-registry reads
_HTPASSWD = f"{USER}:$2b$05$.LB47dQkBQ4yO2FSz3aSUuShw.Ozi0lJ0FpNfv8ve0wibxCwhZ36W\n"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """``host`` is 127.0.0.1:PORT, which every engine on this machine accepts without TLS."""

    host: str
    folder: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def registry(folder: Path, *, login: bool = False) -> Iterator[Registry]:
    """Runs until the block ends; ended by its own process id."""
    if shutil.which("docker-registry") is None:
        reason = "the program docker-registry is not installed (Debian: docker-registry)"
        if "docker" in os.environ.get("ENVFORGE_TEST_REQUIRE", "").split():
            pytest.fail(reason)
        pytest.skip(reason)
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if login:
        (folder / "htpasswd").write_text(_HTPASSWD, encoding="utf-8")
        settings["auth"] = {"htpasswd": {"realm": "lab", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    log = folder / "log"
    with log.open("wb") as stream:
        child = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=stream, stderr=stream)
    try:
        _wait(port, child, log)
        yield Registry(host=f"127.0.0.1:{port}", folder=folder)
    finally:
        child.terminate()
        child.wait(timeout=20)


def _wait(port: int, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and child.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2).close()
            return
        except urllib.error.HTTPError:
            return  # it wants a login
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the registry does not answer:\n" + log.read_text(errors="replace")[-2000:])


@dataclass(kw_only=True)
class Dropper:
    """A TCP proxy. A request whose first bytes match an entry of ``drop`` loses its connection, once per entry."""

    host: str
    upstream: str
    drop: list[bytes] = field(default_factory=list)
    dropped: int = 0

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        host, _, port = self.upstream.rpartition(":")
        server = socket.create_connection((host, int(port)))
        threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()
        self._pump(client, server, True)

    def _pump(self, source: socket.socket, sink: socket.socket, watch: bool) -> None:
        try:
            while data := source.recv(65536):
                hit = next((one for one in self.drop if watch and one in data), None)
                if hit is not None:
                    self.drop.remove(hit)
                    self.dropped += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@contextmanager
def dropper(upstream: str) -> Iterator[Dropper]:
    listener = socket.create_server(("127.0.0.1", 0))
    found = Dropper(host=f"127.0.0.1:{listener.getsockname()[1]}", upstream=upstream)
    threading.Thread(target=found.serve, args=(listener,), daemon=True).start()
    try:
        yield found
    finally:
        listener.close()


def publish_index(host: str, repository: str, tag: str, manifest: str, *, platform: str = "amd64") -> str:
    """Put an image index over one manifest under a tag, as publishers do for several platforms; its digest."""
    accept = "application/vnd.docker.distribution.manifest.v2+json"
    url = f"http://{host}/v2/{repository}/manifests"
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{manifest}", headers={"Accept": accept})) as answer:
        size = len(answer.read())
    row = {"mediaType": accept, "size": size, "digest": manifest}
    kind = "application/vnd.docker.distribution.manifest.list.v2+json"
    index = {
        "schemaVersion": 2,
        "mediaType": kind,
        "manifests": [row | {"platform": {"architecture": platform, "os": "linux"}}],
    }
    request = urllib.request.Request(
        f"{url}/{tag}", data=json.dumps(index).encode(), headers={"Content-Type": kind}, method="PUT"
    )
    with urllib.request.urlopen(request) as answer:
        return str(answer.headers["Docker-Content-Digest"])
