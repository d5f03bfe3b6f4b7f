"""The Docker engine by itself: finding it, what it says of itself, pulls, GPU requests to the letter."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envforge import base
from envforge.config import Config
from envforge.docker_engine import DockerEngine, gpu_host_config
from envforge.engine import GpuRequest
from envforge.errors import EngineError, NetworkError
from envforge.passthrough import device_requests
from tests import records

pytestmark = pytest.mark.docker

SOCKET = "unix:///var/run/docker.sock"


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    found = DockerEngine.connect(config=Config())
    yield found
    found.close()


def test_what_the_engine_says_of_itself(engine: DockerEngine) -> None:
    info = engine.info()
    assert info.flavour.startswith("docker") and info.buildkit and info.platform.startswith("linux/")
    assert not info.remote and info.free_bytes is not None and info.free_bytes > 0


def test_docker_host_is_obeyed_and_a_dead_one_fails_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    started = time.monotonic()
    with pytest.raises(EngineError) as caught:
        DockerEngine.connect()
    assert caught.value.reference == "no-engine" and "/nonexistent/docker.sock" in caught.value.message
    assert time.monotonic() - started < 3


def test_an_engine_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(EngineError) as caught:
            DockerEngine.connect(timeout=1)
        assert caught.value.reference == "no-engine"
        assert time.monotonic() - started < 10


def test_a_docker_context_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    name = hashlib.sha256(b"lab").hexdigest()
    meta = tmp_path / "contexts" / "meta" / name / "meta.json"
    meta.parent.mkdir(parents=True)
    content = {"Name": "lab", "Metadata": {}, "Endpoints": {"docker": {"Host": SOCKET, "SkipTLSVerify": False}}}
    meta.write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "lab"}), encoding="utf-8")
    assert DockerEngine.connect().info().version
    content["Endpoints"] = {"docker": {"Host": "unix:///nonexistent/lab.sock", "SkipTLSVerify": False}}
    meta.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(EngineError) as caught:
        DockerEngine.connect()
    assert "/nonexistent/lab.sock" in caught.value.message
    monkeypatch.setenv("DOCKER_CONTEXT", "absent")
    with pytest.raises(EngineError) as caught:
        DockerEngine.connect()
    assert "'absent'" in caught.value.message


def test_a_pull_from_nowhere(engine: DockerEngine) -> None:
    with pytest.raises(NetworkError) as caught:
        engine.pull("127.0.0.1:9/nothing:1")
    assert caught.value.reference == "registry-unreachable" and "base bootstrap" in caught.value.hint


def _row(driver: str, count: int, devices: list[str], capabilities: list[list[str]]) -> dict[str, Any]:
    """A device request as the Engine API wants it."""
    return {"Driver": driver, "Count": count, "DeviceIDs": devices, "Capabilities": capabilities, "Options": {}}


@pytest.mark.parametrize(
    ("asked", "form", "expected"),
    [
        (GpuRequest(kind="all"), "nvidia", _row("nvidia", -1, [], [["gpu"]])),
        (GpuRequest(kind="count", count=2), "nvidia", _row("nvidia", 2, [], [["gpu"]])),
        (GpuRequest(kind="devices", devices=("0", "2")), "nvidia", _row("nvidia", 0, ["0", "2"], [["gpu"]])),
        (GpuRequest(kind="all"), "cdi", _row("cdi", 0, ["nvidia.com/gpu=all"], [])),
    ],
)
def test_gpu_requests_to_the_letter(asked: GpuRequest, form: Any, expected: dict[str, Any]) -> None:
    (row,) = gpu_host_config(device_requests(asked, form))["device_requests"]
    assert dict(row) == expected


def test_podman_gets_a_cdi_name_among_the_devices() -> None:
    wanted = device_requests(GpuRequest(kind="all"), "cdi-device")
    assert gpu_host_config(wanted) == {"devices": ["nvidia.com/gpu=all"]}


def test_an_image_built_on_a_base_is_no_base(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It inherits the label, and must not be taken for a base or stand in for one."""
    from envforge.engine import BuildOptions

    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path))
    base.bootstrap(engine, "3.11", note=lambda text: None)
    digest = "sha256:" + "d" * 64
    quiet = BuildOptions(progress=lambda line: None)
    built = engine.build(records.rendered(digest), records.resolution(), records.lock(digest), quiet)
    try:
        assert base.LABEL in engine.inspect(built.image).labels
        assert built.image not in [info.image for info in engine.bases()]
        assert [info.tags[0] for info in engine.bases()].count(records.BASE) == 1
    finally:
        engine.remove(built.image)


def test_bases_are_found_by_many_threads_at_once(engine: DockerEngine) -> None:
    """One connection serves parallel questions (smoke checks ask while the build's progress is read)."""
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(len(engine.bases()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(seen) == 8 and len(set(seen)) == 1
