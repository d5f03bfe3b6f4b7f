"""The few calls that `run` needs, straight to the engine's socket.

Importing the Docker SDK costs more time than starting a container, and a run must start at once. Everything
else goes through docker_engine, which is also asked for GPUs and for engines that are not on a local socket.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from envforge import docker_errors
from envforge.engine import EngineInfo, EngineName, GpuRequest, ImageInfo
from envforge.errors import EngineError
from envforge.host_engine import UnixConnection, addresses

if TYPE_CHECKING:
    from envforge.passthrough import Passthrough
    from envforge.session import Session

_DIGEST_LABEL = "envforge.inputs-digest"  # as docker_engine gives it


class DirectEngine:
    """The engine on a local socket. Make it with :meth:`connect`."""

    name: EngineName = "docker"

    def __init__(self, path: str) -> None:
        self.path = path
        self._details: dict[str, dict[str, Any]] = {}

    @classmethod
    def connect(cls) -> DirectEngine | None:
        """The engine of the first local socket that answers; None where the engine is reached another way."""
        for address in addresses(os.environ):
            if not address.startswith("unix://"):
                return None
            engine = cls(address.removeprefix("unix://"))
            try:
                engine._ask("GET", "/_ping", timeout=5)
                return engine
            except EngineError:
                continue
        return None

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        timeout: float | None = 120,
        doing: str = "asking the engine",
    ) -> Any:
        """The answer's JSON (text when it is none). Errors become ours in docker_errors."""
        target = path + (f"?{urlencode(query)}" if query else "")
        data = json.dumps(body).encode() if body is not None else None
        connection = UnixConnection(self.path, timeout)
        try:
            connection.request(method, target, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise docker_errors.engine_failure(None, str(error), doing) from error
        finally:
            connection.close()
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if answer.status >= 400:
            message = value.get("message", text) if isinstance(value, dict) else text
            raise docker_errors.engine_failure(answer.status, str(message), doing)
        return value

    def info(self) -> EngineInfo:
        """Name, version and whether it is rootless; nothing that takes the engine long."""
        version = self._ask("GET", "/version")
        parts = [str(row.get("Name", "")).lower() for row in version.get("Components") or ()]
        podman = any("podman" in part for part in parts)
        rootless = any("rootless" in part for part in parts)
        if podman:
            rootless = "rootless" in " ".join(self._ask("GET", "/info").get("SecurityOptions") or ())
        return EngineInfo(
            name="docker",
            version=str(version.get("Version", "")),
            flavour=("podman" if podman else "docker") + (" (rootless)" if rootless else ""),
            buildkit=False,
            platform="",
        )

    def inspect(self, image: str) -> ImageInfo:
        """By id or tag. EngineError ``image-not-found`` when there is none."""
        row = self._detail(image)
        config = row.get("Config") or {}
        pairs = (entry.partition("=") for entry in config.get("Env") or ())
        return ImageInfo(
            image=str(row["Id"]) if str(row["Id"]).startswith("sha256:") else f"sha256:{row['Id']}",
            tags=tuple(row.get("RepoTags") or ()),
            labels=dict(config.get("Labels") or {}),
            env={name: value for name, _, value in pairs},
            user=str(config.get("User") or ""),
            size_bytes=int(row.get("Size") or 0),
            created=str(row.get("Created") or ""),
        )

    def _detail(self, image: str) -> dict[str, Any]:
        if image not in self._details:
            row = self._ask("GET", f"/images/{quote(image, safe=':@/')}/json", doing=f"looking at {image}")
            self._details[image] = self._details[str(row["Id"])] = row
        return self._details[image]

    def images(self) -> Sequence[ImageInfo]:
        """Environments built by envforge, as the engine lists them."""
        filters = json.dumps({"label": [_DIGEST_LABEL]})
        return tuple(
            ImageInfo(
                image=str(row["Id"]),
                tags=tuple(row.get("RepoTags") or ()),
                labels=dict(row.get("Labels") or {}),
                env={},
                user="",
                size_bytes=int(row.get("Size") or 0),
                created=f"{int(row.get('Created') or 0):012d}",
            )
            for row in self._ask("GET", "/images/json", query={"filters": filters})
        )

    def workdir(self, image: str) -> str:
        """The image's working folder, ``/work`` when it names none."""
        found = str((self._detail(image).get("Config") or {}).get("WorkingDir") or "")
        return found if found not in ("", "/") else "/work"

    def gpu_passthrough(self, request: GpuRequest) -> Passthrough | None:
        """See DockerEngine.gpu_passthrough; without any sign of a GPU ``auto`` is answered here."""
        from envforge.gpu_image import gpu_sign

        if request.kind == "none" or (request.kind == "auto" and not gpu_sign()):
            return None
        from envforge.docker_engine import DockerEngine

        engine = DockerEngine.connect()
        try:
            return engine.gpu_passthrough(request)
        finally:
            engine.close()

    def attach_run(self, image: str, session: Session, out: IO[bytes]) -> int:
        """Run on this terminal; stdin, signals and size are passed through. The command's exit code."""
        from envforge.session import attach

        return attach(self, image, session, out, discard=self._discard)

    def _discard(self, name: str) -> None:
        with suppress(EngineError):  # it was never made, or the engine is lost, which is the error under way
            self._ask("DELETE", f"/containers/{name}", query={"force": "1", "v": "1"})

    # -- what a session asks ------------------------------------------------------------------------

    def create(self, name: str, body: dict[str, Any]) -> str:
        made = self._ask("POST", "/containers/create", query={"name": name}, body=body, doing="creating a container")
        return str(made["Id"])

    def attach_socket(self, container: str) -> socket.socket:
        """The container's stream, both ways."""
        connection = UnixConnection(self.path, 30)
        query = urlencode({"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        headers = {"Connection": "Upgrade", "Upgrade": "tcp", "Content-Length": "0"}
        head = b""
        try:
            connection.request("POST", f"/containers/{container}/attach?{query}", headers=headers)
            stream: socket.socket = connection.sock
            while b"\r\n\r\n" not in head:  # byte by byte: what follows belongs to the container
                piece = stream.recv(1)
                if not piece:
                    raise OSError("the engine closed the stream")
                head += piece
            stream.settimeout(None)
        except OSError as error:
            raise docker_errors.engine_failure(None, str(error), "attaching") from error
        status = int(head.split(None, 2)[1])
        if status not in (101, 200):
            raise docker_errors.engine_failure(status, head.decode("latin-1").splitlines()[0], "attaching")
        return stream

    def start(self, container: str) -> None:
        self._ask("POST", f"/containers/{container}/start", doing="starting the container")

    def wait(self, container: str) -> int:
        return int(self._ask("POST", f"/containers/{container}/wait", timeout=None)["StatusCode"])

    def kill(self, container: str, signal: str) -> None:
        self._ask("POST", f"/containers/{container}/kill", query={"signal": signal}, timeout=10)

    def resize(self, container: str, height: int, width: int) -> None:
        self._ask("POST", f"/containers/{container}/resize", query={"h": height, "w": width}, timeout=10)
