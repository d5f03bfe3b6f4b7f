"""Engine answers as recorded from Docker 20.10/26.1 and Podman 4.3, and what a person is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker import errors

from envforge import docker_errors
from envforge.docker_engine import _translate
from envforge.errors import EngineError, EnvforgeError, GpuUnavailable, NetworkError


def api_error(status: int, text: str) -> errors.APIError:
    response: Any = SimpleNamespace(status_code=status, reason="", url="u")
    return errors.APIError("failed", response=response, explanation=text)


@pytest.mark.parametrize(
    ("status", "text", "reference", "kind"),
    [
        (404, "No such image: envforge/x:1", "image-not-found", EngineError),
        (404, "failed to find image x: docker.io/library/x: No such image", "image-not-found", EngineError),
        (409, "conflict: unable to delete 1a2b - image is in use by stopped container", "engine-conflict", EngineError),
        (500, 'could not select device driver "nvidia" with capabilities: [[gpu]]', "gpu-no-toolkit", GpuUnavailable),
        (500, "container create: stat nvidia.com/gpu=all: no such file or directory", None, GpuUnavailable),
        (500, "write /var/lib/docker/tmp/x: no space left on device", "disk-full", EngineError),
        (400, 'runc: exec: "nothere": executable file not found in $PATH: unknown', "command-not-found", EngineError),
        (409, "preparing container: error setting rlimit type 7: operation not permitted", "engine-error", EngineError),
        (500, "something new", "engine-error", EngineError),
    ],
)  # fmt: skip
def test_answers(status: int, text: str, reference: str | None, kind: type[EnvforgeError]) -> None:
    found = _translate(api_error(status, text), "testing")
    assert type(found) is kind
    assert reference is None or found.reference == reference
    assert found.exit_code == 6 and found.message


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectionError("('Connection aborted.', RemoteDisconnected('Remote end closed connection'))"),
        requests.exceptions.ChunkedEncodingError("Connection broken: InvalidChunkLength"),
        ConnectionResetError(104, "Connection reset by peer"),
        errors.DockerException("Error while fetching server API version: Connection refused"),
    ],
)
def test_a_lost_engine(error: Exception) -> None:
    found = _translate(error, "building")
    assert (found.reference, found.exit_code) == ("engine-lost", 6)
    assert "building" in found.message


def test_our_own_errors_pass_unchanged() -> None:
    mine = NetworkError("image-not-found", "x")
    assert _translate(mine, "pulling") is mine


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ('Get "https://registry-1.docker.io/v2/": dial tcp: lookup x: no such host', "registry-unreachable"),
        ("initializing source docker://python:3.11: pinging container registry: i/o timeout", "registry-unreachable"),
        ("pull access denied for nosuch, repository does not exist or may need a login: denied", "registry-refused"),
        ("toomanyrequests: You have reached your pull rate limit.", "registry-refused"),
        ("manifest for python:9.9 not found: manifest unknown: manifest unknown", "image-not-found"),
        ("something new", "registry-refused"),
    ],
)  # fmt: skip
def test_pull_failures(text: str, reference: str) -> None:
    found = docker_errors.pull_failure("python:3.11", text)
    assert isinstance(found, NetworkError)
    assert (found.reference, found.exit_code) == (reference, 11)
    assert "python:3.11" in found.message
    assert "envforge base bootstrap" in found.hint and "`registries`" in found.hint


def test_a_full_disk_while_pulling_is_the_engines() -> None:
    assert docker_errors.pull_failure("x", "no space left on device").exit_code == 6


def test_no_engine_says_why() -> None:
    refused = docker_errors.no_engine("unix:///var/run/docker.sock", "PermissionError(13, 'Permission denied')")
    absent = docker_errors.no_engine("unix:///var/run/docker.sock", "FileNotFoundError")
    assert refused.reference == absent.reference == "no-engine"
    assert "group" in refused.hint and "start Docker" in absent.hint
