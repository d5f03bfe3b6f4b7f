"""Shared test rules: no network and no engine outside marked tests; what is required must not be skipped."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        choices=["docker", "network", "gpu", "podman"],
        help="fail instead of skip when this is not available",
    )
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is rendered now")


def _docker_answers() -> bool:
    try:
        import docker

        client = docker.from_env(timeout=10)
        client.ping()
        client.close()
        return True
    except Exception:
        return False


@pytest.fixture(scope="session")
def docker_available() -> bool:
    return _docker_answers()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Docker tests need an engine: absent and not required means skipped with the reason, required means failed."""
    required = set(config.getoption("--require")) | set(os.environ.get("ENVFORGE_TEST_REQUIRE", "").split())
    wanted = any(item.get_closest_marker("docker") for item in items)
    have = {"docker": _docker_answers() if wanted else False, "network": True, "gpu": Path("/dev/nvidia0").exists()}
    for item in items:
        for need in ("docker", "gpu"):
            if item.get_closest_marker(need) and not have[need]:
                if need in required:
                    item.add_marker(pytest.mark.usefixtures(f"_fail_without_{need}"))
                else:
                    item.add_marker(pytest.mark.skip(reason=f"no {need} here (run with --require {need} to insist)"))


@pytest.fixture
def _fail_without_docker() -> None:
    pytest.fail("a Docker engine is required for this run and none answers")


@pytest.fixture
def _fail_without_gpu() -> None:
    pytest.fail("an NVIDIA GPU is required for this run and there is none")


@pytest.fixture(autouse=True)
def _isolated(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A private ENVFORGE_HOME and no sockets to other machines, unless the test is marked for them."""
    real = any(request.node.get_closest_marker(name) for name in ("docker", "network", "heavy", "gpu"))
    monkeypatch.delenv("ENVFORGE_CONFIG", raising=False)
    if not real:
        monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path_factory.mktemp("envforge-home")))
        real_connect = socket.socket.connect

        def guarded(self: socket.socket, address: object) -> None:
            if self.family == socket.AF_UNIX or (
                isinstance(address, tuple) and address[0] in ("127.0.0.1", "::1", "localhost")
            ):
                if self.family == socket.AF_UNIX and "docker" in str(address):
                    raise RuntimeError(f"unmarked test reached for an engine: {address}")
                real_connect(self, address)  # type: ignore[arg-type]
                return
            raise RuntimeError(f"unmarked test reached for the network: {address}")

        monkeypatch.setattr(socket.socket, "connect", guarded)
    yield
