"""GPU passthrough: reading ``--gpus``, exact device requests, choosing a form by proof, naming why a GPU is absent.

Everything here is pure. The Docker engine hands in what a tiny container answered (:class:`ProbeOutcome`);
this module never asks an engine itself and never drops a GPU that was promised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from envforge.engine import GpuRequest
from envforge.errors import UsageError

# How a GPU gets into a container: the engine's "nvidia" device driver (legacy hook), a CDI device request
# (Docker 25+), or a CDI name among the plain devices (Podman).
Form = Literal["cdi", "nvidia", "cdi-device"]

CDI_KIND = "nvidia.com/gpu"
_HINT = "write none, auto, all, a COUNT, or device=0,2 | device=GPU-<uuid> | device=MIG-<uuid>"
_INDEX = r"\d{1,3}(?::\d{1,2})?"  # GPU index, or GPU:MIG as CDI and NVML write it
_UUID = r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_MIG = r"MIG-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|MIG-GPU-[0-9a-fA-F-]{36}/\d{1,2}/\d{1,2}"
_DEVICE = re.compile(rf"(?:{_INDEX}|{_UUID}|{_MIG})")


def parse_gpus(text: str) -> GpuRequest:
    """The value of ``--gpus`` as a request; raises UsageError ``bad-gpus`` naming the part that is wrong.

    ``none`` and ``auto`` promise nothing; everything else is a promise that must be kept or fail.
    """
    value = text.strip()
    lowered = value.lower()
    if lowered == "none":
        return GpuRequest(kind="none")
    if lowered == "auto":
        return GpuRequest(kind="auto")
    if lowered == "all":
        return GpuRequest(kind="all")
    if re.fullmatch(r"\d{1,3}", value):
        if int(value) == 0:
            raise UsageError("bad-gpus", "--gpus 0 asks for zero GPUs", hint="write --gpus none, or device=0 for GPU 0")
        return GpuRequest(kind="count", count=int(value))
    if not lowered.startswith("device="):
        raise UsageError("bad-gpus", f"--gpus {text!r} is not understood", hint=_HINT)
    devices = tuple(part.strip() for part in value[len("device=") :].strip("\"'").split(","))
    for device in devices:
        if not _DEVICE.fullmatch(device):
            what = "an empty device" if not device else f"{device!r}, which is no index, GPU or MIG id"
            raise UsageError("bad-gpus", f"--gpus {text!r} holds {what}", hint=_HINT)
    doubled = sorted({device for device in devices if devices.count(device) > 1})
    if doubled:
        raise UsageError("bad-gpus", f"--gpus {text!r} names {', '.join(doubled)} more than once", hint=_HINT)
    return GpuRequest(kind="devices", devices=devices)


def gpus_text(request: GpuRequest) -> str:
    """The ``--gpus`` value that gives this request (for messages and records)."""
    if request.kind == "count":
        return str(request.count)
    if request.kind == "devices":
        return "device=" + ",".join(request.devices)
    return request.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Passthrough:
    """What to hand to the engine: device requests (keyword arguments of the SDK's record) and plain devices."""

    form: Form
    device_requests: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[str, ...] = ()


def device_requests(request: GpuRequest, form: Form) -> Passthrough:
    """The exact request for a form. ``auto`` asks like ``all``; ``none`` must not come here (ValueError).

    CDI knows names only, so a count becomes the first that many indexes.
    """
    if request.kind == "none":
        raise ValueError("no device request without a GPU")
    if form == "nvidia":
        row: dict[str, Any] = {"driver": "nvidia", "capabilities": [["gpu"]]}
        if request.kind == "devices":
            row["device_ids"] = list(request.devices)
        else:
            row["count"] = request.count if request.kind == "count" else -1
        return Passthrough(form=form, device_requests=(row,))
    if request.kind == "devices":
        names = [f"{CDI_KIND}={device}" for device in request.devices]
    elif request.kind == "count":
        names = [f"{CDI_KIND}={index}" for index in range(request.count)]
    else:
        names = [f"{CDI_KIND}=all"]
    if form == "cdi-device":
        return Passthrough(form=form, devices=tuple(names))
    return Passthrough(form=form, device_requests=({"driver": "cdi", "device_ids": names},))
