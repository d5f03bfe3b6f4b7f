"""Compose files for an environment: Jupyter, TensorBoard, training, serving. Rendering is pure.

Needs Compose 1.28 or later for GPU reservations (any Compose v2); swarm mode does not support them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from envforge import passthrough
from envforge.engine import GpuRequest
from envforge.errors import UsageError

Service = Literal["jupyter", "tensorboard", "train", "serving"]
SERVICES: tuple[Service, ...] = ("jupyter", "tensorboard", "train", "serving")
Server = Literal["tensorflow", "triton", "onnxruntime"]

# (image, container port, health check). Tags move: a digest can be given with --server-image.
SERVERS: Mapping[str, tuple[str, int, tuple[str, ...]]] = {
    "tensorflow": (
        "tensorflow/serving:2.18.0",
        8501,
        (
            "CMD",
            "bash",
            "-c",
            "exec 3<>/dev/tcp/127.0.0.1/8501 && printf 'GET /v1/models/%s HTTP/1.0\\r\\n\\r\\n' \"$0\" >&3"
            " && grep -q AVAILABLE <&3",
        ),
    ),
    "triton": (
        "nvcr.io/nvidia/tritonserver:24.12-py3",
        8000,
        ("CMD", "curl", "--fail", "--silent", "http://127.0.0.1:8000/v2/health/ready"),
    ),
    "onnxruntime": (
        "mcr.microsoft.com/onnxruntime/server:latest",
        8001,
        ("CMD", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8001"),
    ),
}
_PYTHON_GET = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=4)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """A GPU reservation: ``count`` ("all" or a number) or ``device_ids``, never both."""

    driver: str
    count: int | Literal["all"] | None = None
    device_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.count is None) == (not self.device_ids):
            raise UsageError(
                "compose-count-and-ids",
                "a GPU reservation has either a count or device ids",
                hint="device_ids for certain GPUs, count for any",
            )


def reservation(request: GpuRequest, *, cdi: bool = False) -> Reservation | None:
    """The reservation for ``--gpus``; None for ``none``. ``auto`` reserves all: a Compose file cannot look first."""
    if request.kind == "none":
        return None
    if cdi:
        names = passthrough.device_requests(request, "cdi").device_requests[0]["device_ids"]
        return Reservation(driver="cdi", device_ids=tuple(names))
    if request.kind == "devices":
        return Reservation(driver="nvidia", device_ids=request.devices)
    return Reservation(driver="nvidia", count=request.count if request.kind == "count" else "all")


@dataclass(frozen=True, kw_only=True, slots=True)
class ComposeRequest:
    """What the file shall hold. ``image`` is the environment's; paths are as Compose shall read them."""

    name: str
    image: str
    services: tuple[Service, ...]
    gpus: GpuRequest = GpuRequest(kind="none")
    cdi: bool = False
    local_image: bool = True  # not in any registry: never pulled
    workdir: str = "/work"
    project: str = "."
    logs: str = "./logs"
    model: str = "./model"
    model_name: str = "model"
    server: Server = "triton"
    server_image: str | None = None
    command: tuple[str, ...] = ("python", "train.py")
    shm_size: str = "8gb"
    env: Mapping[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    ports: Mapping[str, int] = field(default_factory=dict)  # service -> outside port
    uid: int = 1000
    gid: int = 1000


def quoted(value: Any) -> str:
    """A value as JSON, which YAML reads as it is; ``$`` is doubled so that Compose takes it literally."""
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("$", "$$")


def render(request: ComposeRequest) -> str:
    """The file's text, the same for the same request. UsageError ``compose-no-service`` for an empty one."""
    import jinja2

    from envforge.resources import shipped

    if not request.services:
        raise UsageError("compose-no-service", "no service was asked for", hint=f"--service {' | '.join(SERVICES)}")
    loader = jinja2.FileSystemLoader(shipped("compose"))
    engine = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    engine.filters["q"] = quoted
    head = [
        f"# Made by: envforge compose {request.name}",
        "# Needs Compose v2 (GPU reservations: 1.28 or later). Swarm mode (docker stack) cannot reserve GPUs.",
        f"name: {quoted(_project_name(request.name))}",
        "services:",
    ]
    bodies = []
    for service in SERVICES:
        if service in request.services:
            template = f"serving-{request.server}" if service == "serving" else service
            text = engine.get_template(f"{template}.yaml.j2").render(**_values(request, service))
            bodies.append("\n".join(line for line in text.splitlines() if line.strip()))
    return "\n".join([*head, *bodies]) + "\n"


def _project_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in f"envforge-{name}".lower())


def _values(request: ComposeRequest, service: Service) -> dict[str, Any]:
    inside = {"jupyter": 8888, "tensorboard": 6006, "train": 0, "serving": SERVERS[request.server][1]}[service]
    outside = request.ports.get(service, inside)
    image, health = request.image, _health(request, service)
    if service == "serving":
        image = request.server_image or SERVERS[request.server][0]
    return {
        "image": image,
        "pull_policy": "never" if request.local_image else "missing",
        "gpu": reservation(request.gpus, cdi=request.cdi),
        "health": list(health),
        "ports": [f"{request.address}:{outside}:{inside}"],
        "env": dict(request.env) if service != "jupyter" else {"JUPYTER_PREFER_ENV_PATH": "1", **request.env},
        "workdir": request.workdir,
        "project": request.project,
        "logs": request.logs,
        "model": request.model,
        "model_name": request.model_name,
        "shm_size": request.shm_size,
        "command": list(request.command),
        "uid": request.uid,
        "gid": request.gid,
    }


def _health(request: ComposeRequest, service: Service) -> tuple[str, ...]:
    if service == "jupyter":
        return ("CMD", "python", "-c", _PYTHON_GET, "http://127.0.0.1:8888/api")
    if service == "tensorboard":
        return ("CMD", "python", "-c", _PYTHON_GET, "http://127.0.0.1:6006/")
    if service == "serving":
        test = SERVERS[request.server][2]
        return (*test, request.model_name) if request.server == "tensorflow" else test
    return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something in a Compose file that will not work (``error``) or is unwise (``warning``)."""

    reference: str
    severity: Literal["error", "warning", "info"]
    place: str
    message: str


def review(document: Mapping[str, Any]) -> tuple[Problem, ...]:
    """What is wrong with the GPU part and the safety of any Compose file, ours or a person's own."""
    found: list[Problem] = []
    for name, service in (document.get("services") or {}).items():
        place = f"services.{name}"
        reserved = ((service.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
        rows = reserved.get("devices") or []
        for index, row in enumerate(rows):
            found += _review_row(row, f"{place}.deploy.resources.reservations.devices.{index}")
        if rows and not service.get("shm_size") and service.get("ipc") != "host":
            found.append(
                Problem(
                    reference="compose-small-shm",
                    severity="warning",
                    place=place,
                    message="no shm_size: data-loader workers and NCCL get 64 MB",
                )
            )
        found += _review_safety(service, place)
    return tuple(found)


def _review_row(row: Mapping[str, Any], place: str) -> list[Problem]:
    found = []
    if "count" in row and row.get("device_ids"):
        found.append(
            Problem(
                reference="compose-count-and-ids",
                severity="error",
                place=place,
                message="count and device_ids stand together; only one may",
            )
        )
    if not row.get("capabilities"):
        found.append(
            Problem(
                reference="compose-no-capabilities",
                severity="error",
                place=place,
                message="a device reservation needs capabilities: [gpu]",
            )
        )
    elif "count" not in row and not row.get("device_ids"):
        found.append(
            Problem(
                reference="compose-implicit-gpus",
                severity="info",
                place=place,
                message="only capabilities: all GPUs of the default driver; write driver and count to say so",
            )
        )
    return found


def _review_safety(service: Mapping[str, Any], place: str) -> list[Problem]:
    found = []
    raw = service.get("environment") or {}
    pairs: Sequence[tuple[str, str]] = (
        [(str(key), str(value)) for key, value in raw.items()]
        if isinstance(raw, dict)
        else [(str(row).partition("=")[0], str(row).partition("=")[2]) for row in raw]
    )
    values = dict(pairs)
    token = values.get("JUPYTER_TOKEN")
    if token is not None and (token in ("", "None") or token in ("${JUPYTER_TOKEN}", "${JUPYTER_TOKEN:-}")):
        found.append(
            Problem(
                reference="compose-empty-token",
                severity="warning",
                place=place,
                message="the Jupyter token may be empty: everyone who reaches the port gets in",
            )
        )
    root = str(service.get("user", "")).partition(":")[0] in ("root", "0")
    if root and values.get("GRANT_SUDO", "").lower() in ("yes", "1", "true"):
        found.append(
            Problem(
                reference="compose-root-sudo",
                severity="warning",
                place=place,
                message="runs as root with sudo granted: files of mounted folders may become root's",
            )
        )
    return found
