"""Asks the container engine what it is, over HTTP with the standard library alone, and reads its configuration.

`doctor` must work where envforge's own dependencies are broken or absent, so this is not the engine that
builds (docker_engine): it sends GET /version and GET /info, nothing else.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from envforge.hostfacts import DaemonConfig, EngineFacts

SECONDS = 5.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a local socket."""

    def __init__(self, path: str, timeout: float | None = SECONDS) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def addresses(env: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Where an engine may answer, in the order Docker's own client looks; the first that answers counts."""
    if env.get("DOCKER_HOST"):
        return (env["DOCKER_HOST"],)
    chosen = _context(env)
    if chosen:
        return (chosen,)
    runtime = env.get("XDG_RUNTIME_DIR", "")
    places = ["/var/run/docker.sock", f"{runtime}/docker.sock" if runtime else ""]
    places += [f"{runtime}/podman/podman.sock" if runtime else "", "/run/podman/podman.sock"]
    found = [place for place in places if place and (root / place.lstrip("/")).exists()]
    return tuple(f"unix://{place}" for place in found) or ("unix:///var/run/docker.sock",)


def _context(env: Mapping[str, str]) -> str:
    """The endpoint of the Docker context that is switched on, "" for the default one."""
    folder = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME", "/nonexistent")) / ".docker")
    try:
        name = env.get("DOCKER_CONTEXT") or json.loads((folder / "config.json").read_text()).get("currentContext", "")
        if not name or name == "default":
            return ""
        for meta in (folder / "contexts" / "meta").glob("*/meta.json"):
            row = json.loads(meta.read_text())
            if row["Name"] == name:
                return str(row["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return ""


def _get(address: str, path: str) -> dict[str, Any]:
    """One GET. OSError when nobody answers; ValueError when the answer is no JSON object or no success."""
    parsed = urlparse(address)
    connection: http.client.HTTPConnection
    if parsed.scheme == "unix":
        connection = UnixConnection(parsed.path)
    elif parsed.scheme in ("tcp", "http"):
        connection = http.client.HTTPConnection(parsed.hostname or "", parsed.port or 2375, timeout=SECONDS)
    else:
        raise ValueError(f"doctor does not look through {parsed.scheme}:// addresses")
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(8_000_000)
        if answer.status != 200:
            raise ValueError(f"{path} answered {answer.status}")
        value = json.loads(body)
    finally:
        connection.close()
    if not isinstance(value, dict):
        raise ValueError(f"{path} answered something that is no object")
    return value


def probe(env: Mapping[str, str], *, root: Path = Path("/"), ask: bool = True) -> EngineFacts:
    """The engine's own words, and daemon.json as written."""
    daemon = daemon_config(root, env)
    places = addresses(env, root)
    snap = (root / "snap/bin/docker").exists() or (root / "var/snap/docker").exists()
    if not ask:
        return EngineFacts(address=places[0], daemon=daemon, snap=snap, error="not asked")
    error = ""
    for place in places:
        try:
            return _facts(place, _get(place, "/version"), _get(place, "/info"), daemon)
        except PermissionError as problem:
            error = error or f"{place}: permission denied ({problem.strerror})"
        except (OSError, ValueError, http.client.HTTPException) as problem:
            error = error or f"{place}: {getattr(problem, 'strerror', None) or problem}"
    return EngineFacts(address=places[0], error=error, daemon=daemon, snap=snap)


def _facts(address: str, version: Mapping[str, Any], info: Mapping[str, Any], daemon: DaemonConfig) -> EngineFacts:
    components = [str(row.get("Name", "")) for row in version.get("Components") or ()]
    security = [str(row) for row in info.get("SecurityOptions") or ()]
    root_dir = str(info.get("DockerRootDir") or "")
    system = str(info.get("OperatingSystem") or "")
    return EngineFacts(
        address=address,
        reachable=True,
        version=str(version.get("Version", "")),
        api=str(version.get("ApiVersion", "")),
        flavour="podman" if any("podman" in name.lower() for name in components) else "docker",
        system=system,
        rootless=any("rootless" in row for row in security),
        snap="/snap/" in root_dir,
        desktop="Docker Desktop" in system,
        cgroup_driver=str(info.get("CgroupDriver") or ""),
        cgroup_version=str(info.get("CgroupVersion") or ""),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        cdi_spec_dirs=tuple(info.get("CDISpecDirs") or ()),
        storage_driver=str(info.get("Driver") or ""),
        root_dir=root_dir,
        warnings=tuple(str(row) for row in info.get("Warnings") or ()),
        daemon=daemon,
    )


def daemon_config(root: Path, env: Mapping[str, str]) -> DaemonConfig:
    """daemon.json: the snap's, the rootless user's, or the system's; the first that exists."""
    home = env.get("XDG_CONFIG_HOME") or f"{env.get('HOME', '/nonexistent')}/.config"
    places = ["var/snap/docker/current/config/daemon.json", f"{home.lstrip('/')}/docker/daemon.json"]
    places.append("etc/docker/daemon.json")
    for place in places:
        path = root / place
        if path.is_file():
            break
    else:
        return DaemonConfig()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it holds no object")
        options = [str(row) for row in value.get("exec-opts") or ()]
        driver = [row.partition("=")[2] for row in options if re.match(r"native\.cgroupdriver=", row)]
        features = value.get("features") or {}
        return DaemonConfig(
            path=f"/{place}",
            runtimes=tuple(sorted(value.get("runtimes") or {})),
            default_runtime=str(value.get("default-runtime") or ""),
            cdi=features.get("cdi"),
            cdi_spec_dirs=tuple(value.get("cdi-spec-dirs") or ()),
            cgroup_driver=driver[-1] if driver else "",
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return DaemonConfig(path=f"/{place}", error=str(error))
