"""GPU passthrough: reading ``--gpus``, exact device requests, choosing a form by proof, naming why a GPU is absent.

Everything here is pure. The Docker engine hands in what a tiny container answered (:class:`ProbeOutcome`);
this module never asks an engine itself and never drops a GPU that was promised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from envforge.engine import GpuRequest
from envforge.errors import GpuUnavailable, UsageError

if TYPE_CHECKING:
    from envforge.hostfacts import HostFacts

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


# -- choosing a form by proof ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeOutcome:
    """A tiny container's answer: the engine's error ("" when it started) and what was seen inside.

    ``seen`` holds ``dev:nvidia0``, ``mount:/usr/lib/…/libnvidia-ml.so.1`` and ``env:NVIDIA_VISIBLE_DEVICES=all``.
    """

    error: str = ""
    seen: tuple[str, ...] = ()

    @property
    def delivered(self) -> bool:
        """A device node or a driver library is inside; a variable alone proves nothing."""
        return not self.error and any(row.startswith(("dev:", "mount:")) for row in self.seen)


def forms(flavour: str, version: str) -> tuple[Form, ...]:
    """Forms worth trying on an engine, best first: CDI survives a daemon reload, the legacy hook may not."""
    if flavour.startswith("podman"):
        return ("cdi-device", "nvidia")
    major = re.match(r"\d+", version)
    return ("cdi", "nvidia") if major and int(major[0]) >= 25 else ("nvidia",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The form that works, or None; ``tried`` holds every form with its answer."""

    passthrough: Passthrough | None
    tried: tuple[tuple[Form, ProbeOutcome], ...]

    @property
    def error(self) -> str:
        """The engine's most telling message: of the first form that said anything."""
        for _, outcome in self.tried:
            if outcome.error and not re.search(r'could not select device driver "?cdi', outcome.error):
                return outcome.error
        return next((outcome.error for _, outcome in self.tried if outcome.error), "")


def choose(request: GpuRequest, wanted: Sequence[Form], attempt: Callable[[Passthrough], ProbeOutcome]) -> Choice:
    """Try the forms in order; the first that really delivers something is taken."""
    tried: list[tuple[Form, ProbeOutcome]] = []
    for form in wanted:
        asked = device_requests(request, form)
        outcome = attempt(asked)
        tried.append((form, outcome))
        if outcome.delivered:
            return Choice(passthrough=asked, tried=tuple(tried))
    return Choice(passthrough=None, tried=tuple(tried))


# -- naming the cause ------------------------------------------------------------------------------

# reference -> (what is wrong, what to do). The references are stable: records and tests use them.
CAUSES: Mapping[str, tuple[str, str]] = {
    "gpu-none": (
        "there is no NVIDIA GPU on this host",
        "run on a host with a GPU, or use --gpus none",
    ),
    "gpu-no-driver": (
        "an NVIDIA GPU is there, but its driver is not installed or not loaded",
        "install the driver on the host, not in the image, and check nvidia-smi; Secure Boot needs a signed module",
    ),
    "gpu-driver-too-old": (
        "the host's driver is older than this environment's CUDA needs",
        "update the driver, or build for an older CUDA: envforge check NAME --host names both numbers",
    ),
    "gpu-driver-mismatch": (
        "the driver's libraries were upgraded while the old kernel module is still loaded",
        "reboot, or reload the nvidia modules with nothing using the GPU",
    ),
    "gpu-no-toolkit": (
        "the NVIDIA Container Toolkit is not installed, so the engine cannot hand out the GPU",
        "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && "
        "sudo systemctl restart docker",
    ),
    "gpu-toolkit-unregistered": (
        "the NVIDIA Container Toolkit is installed, but the engine does not know it",
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
    ),
    "gpu-engine-restart": (
        "the NVIDIA runtime stands in daemon.json, but the engine was not restarted since",
        "sudo systemctl restart docker",
    ),
    "gpu-engine-snap": (
        "Docker is installed as a snap, which cannot see the host's NVIDIA toolkit",
        "replace it: sudo snap remove docker, then install Docker from Docker's or the distribution's packages",
    ),
    "gpu-cdi-missing": (
        "the engine finds no CDI description of the GPU",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    "gpu-cdi-stale": (
        "the CDI description of the GPU is out of date: it names files that are not there any more",
        "write it anew: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    "gpu-lost-access": (
        "the container lost its permission to use the GPU: a daemon reload on the host rebuilt its cgroup rules",
        "start a new container; lasting: nvidia-ctk system create-dev-char-symlinks --create-all, or CDI",
    ),
    "gpu-rootless": (
        "the engine runs rootless and may not set device rules",
        "use CDI devices; or set no-cgroups = true in /etc/nvidia-container-runtime/config.toml, which takes the "
        "device rules away from a root engine's containers on this host too",
    ),
    "gpu-mig-no-instances": (
        "MIG mode is on and no MIG instance exists",
        "create instances (sudo nvidia-smi mig -cgi PROFILE -C) and ask for one, or switch MIG off",
    ),
    "gpu-wsl-library-path": (
        "WSL2: the loader does not know /usr/lib/wsl/lib, where the Windows driver puts its libraries",
        "echo /usr/lib/wsl/lib | sudo tee /etc/ld.so.conf.d/ld.wsl.conf && sudo ldconfig; "
        "never install a Linux driver in WSL",
    ),
    "gpu-unknown-device": (
        "the GPU that was asked for does not exist here",
        "list them with nvidia-smi -L and ask for one of those",
    ),
    "gpu-no-kernels": (
        "the framework holds no code for this GPU's compute capability",
        "use a build that covers it: envforge check NAME --gpu MODEL proposes one",
    ),
    "gpu-library-missing": (
        "a CUDA or driver library is missing inside the container",
        "see: envforge diagnose LOG; on the host: envforge doctor",
    ),
    "gpu-stub-library": (
        "a stub library of the CUDA toolkit hides the driver's own",
        "take .../lib64/stubs off LD_LIBRARY_PATH and the loader configuration at run time",
    ),
    "gpu-cpu-fallback": (
        "the framework does not use the GPU that is there and fell back to the CPU",
        "see what it said: envforge diagnose LOG; a CPU build is the usual reason",
    ),
    "gpu-not-delivered": (
        "the engine started the container without complaint and without the GPU",
        "see: envforge doctor --gpu-test",
    ),
    "gpu-hook-failed": (
        "the NVIDIA hook could not prepare the container",
        "see: envforge doctor",
    ),
}

# What an error text proves by itself, first match counts.
_TEXT_CAUSES: tuple[tuple[str, str], ...] = (
    (r"driver/library version mismatch", "gpu-driver-mismatch"),
    (r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed", "gpu-rootless"),
    (r"unsatisfied condition: cuda|driver version is insufficient", "gpu-driver-too-old"),
    (r"NVIDIA driver on your system is too old", "gpu-driver-too-old"),
    (r"NVML: Unknown Error", "gpu-lost-access"),
    (r"no kernel image is available|is not compatible with the current PyTorch", "gpu-no-kernels"),
    (r"stub library|stubs/libcuda|stubs/libnvidia-ml", "gpu-stub-library"),
    (r"driver not loaded|nvidia-container-cli: initialization error: driver", "gpu-no-driver"),
    (r"unknown device|nvidia-container-cli: device error", "gpu-unknown-device"),
    (r"No MIG devices found", "gpu-mig-no-instances"),
    (r"lib(nvidia-ml|cuda|cudnn|cudart|cublas|nccl)\w*\.so[.\d]*: cannot open", "gpu-library-missing"),
    (r"not compiled with CUDA enabled|no GPU found in runtime|falling back to (the )?CPU", "gpu-cpu-fallback"),
    (r"GPU will not be used", "gpu-cpu-fallback"),
)


def name_cause(error: str, facts: HostFacts | None, *, cdi: bool = False) -> str:
    """The one reason (a key of :data:`CAUSES`) why a promised GPU is absent.

    ``error`` is what engine or framework said ("" when nothing), ``facts`` the host when it is the engine's
    own machine. What the text proves counts first; then the host is gone through from the hardware up, and
    the first thing missing is named. ``cdi``: the request was in CDI form.
    """
    for pattern, reference in _TEXT_CAUSES:
        if re.search(pattern, error, re.IGNORECASE):
            if reference == "gpu-library-missing" and facts is not None and _wsl_path_missing(facts):
                return "gpu-wsl-library-path"
            return reference
    stale = bool(re.search(r"failed to stat CDI host device|error mounting \"[^\"]*(nvidia|cuda)", error))
    if facts is None:
        return _without_facts(error, stale)
    below = _below_the_engine(facts)
    if below:
        return below
    if stale or any(row.missing for row in facts.cdi if row.kind == CDI_KIND and (cdi or "CDI" in error)):
        return "gpu-cdi-stale"
    if "unresolvable CDI device" in error or (cdi and not facts.cdi):
        named = {f"{row.kind}={name}" for row in facts.cdi if row.kind == CDI_KIND for name in row.devices}
        asked = re.findall(r"nvidia\.com/gpu=[\w:-]+", error)
        return "gpu-unknown-device" if named and not set(asked) <= named else "gpu-cdi-missing"
    engine = facts.engine
    if engine.snap:
        return "gpu-engine-snap"
    if engine.rootless and facts.toolkit.no_cgroups is not True and facts.toolkit.installed and not facts.cdi:
        return "gpu-rootless"
    if "could not select device driver" in error or not error:
        if not facts.toolkit.installed:
            return "gpu-no-toolkit"
        if "nvidia" in engine.daemon.runtimes and "nvidia" not in engine.runtimes:
            return "gpu-engine-restart"
        if "nvidia" not in engine.runtimes:
            return "gpu-toolkit-unregistered"
    return "gpu-hook-failed" if error else "gpu-not-delivered"


def _without_facts(error: str, stale: bool) -> str:
    """The cause from the text alone: the engine stands on another machine."""
    if stale:
        return "gpu-cdi-stale"
    if "unresolvable CDI device" in error:
        return "gpu-cdi-missing"
    if "could not select device driver" in error:
        return "gpu-no-toolkit"
    return "gpu-hook-failed" if error else "gpu-not-delivered"


def _wsl_path_missing(facts: HostFacts) -> bool:
    return facts.wsl and not facts.wsl_library_path


def _below_the_engine(facts: HostFacts) -> str:
    """The first thing missing in hardware and driver, "" when both are fine."""
    nvml = facts.nvml
    if not facts.gpu_hardware and facts.driver.module_version is None and nvml.status != "ok":
        return "gpu-none"
    if nvml.status == "error" and nvml.code == 18:
        return "gpu-driver-mismatch"
    if any("stubs" in folder.split("/") for folder in facts.ld_library_path) and nvml.status != "ok":
        return "gpu-stub-library"
    if _wsl_path_missing(facts) and nvml.status != "ok":
        return "gpu-wsl-library-path"
    if facts.driver.module_version is None and nvml.status != "ok" and not facts.wsl:
        return "gpu-no-driver"
    if nvml.status == "ok" and not nvml.gpus:
        return "gpu-none"
    usable = [gpu for gpu in nvml.gpus if gpu.mig is not True or gpu.mig_instances]
    if nvml.status == "ok" and not usable:
        return "gpu-mig-no-instances"
    return ""


def unavailable(reference: str, error: str = "", *, asked: str = "") -> GpuUnavailable:
    """The error of a promise that cannot be kept; ``error`` is shown, ``asked`` is the --gpus value."""
    message, hint = CAUSES[reference]
    lines = tuple(line.strip()[:400] for line in error.splitlines() if line.strip())[:6]
    promised = f"--gpus {asked} was asked for, and " if asked else ""
    return GpuUnavailable(reference, promised + message, context=lines, hint=hint)


def covers(capability: str, kernels: Sequence[str]) -> bool:
    """Whether a build with these kernels ("sm_86", "compute_90") runs on a GPU of that capability ("8.9").

    Machine code runs on the same major with an equal or higher minor (not for architecture-specific "a"
    builds); PTX ("compute_") runs on everything from its own version on.
    """
    major, _, minor = capability.partition(".")
    want = (int(major), int(minor or 0))
    for kernel in kernels:
        found = re.fullmatch(r"(sm|compute)_?(\d+)(\d)([af]?)", kernel)
        if not found:
            continue
        have = (int(found[2]), int(found[3]))
        if found[4]:
            fits = have == want if found[4] == "a" else have[0] == want[0] and have[1] <= want[1]
        elif found[1] == "sm":
            fits = have[0] == want[0] and have[1] <= want[1]
        else:
            fits = have <= want
        if fits:
            return True
    return False


# -- what an image demands of the driver -----------------------------------------------------------

_CONDITION = re.compile(r"(cuda|driver|arch|brand)\s*(>=|<=|!=|=|<|>)\s*([\w.-]+)")


def unmet_requirement(text: str, *, cuda: str, driver: str, arch: str = "", brand: str = "") -> str:
    """The part of an image's NVIDIA_REQUIRE_CUDA that this driver does not meet, "" when it is met.

    Alternatives stand between spaces, conditions that must hold together between commas:
    ``cuda>=12.6 brand=tesla,driver>=535,driver<536``. A value that is not known ("") fulfils nothing. What
    cannot be read is left to the engine's own check.
    """
    values = {"cuda": cuda, "driver": driver, "arch": arch, "brand": brand}
    alternatives = [part.split(",") for part in text.split()]
    if not alternatives or any(not _CONDITION.fullmatch(one) for part in alternatives for one in part):
        return ""
    if any(all(_holds(one, values) for one in part) for part in alternatives):
        return ""
    return next(one for one in alternatives[0] if not _holds(one, values))


def _holds(condition: str, values: Mapping[str, str]) -> bool:
    found = _CONDITION.fullmatch(condition)
    assert found is not None  # unmet_requirement has looked
    name, operator, wanted = found.groups()
    have = values[name]
    if not have:
        return False
    if name == "brand":
        return (have.lower() == wanted.lower()) is (operator == "=")
    left, right = _numbers(have), _numbers(wanted)
    # A short version stands for its whole series: driver<536 holds for 535.104.05.
    short = left[: len(right)]
    return {
        ">=": left >= right,
        "<=": short <= right,
        ">": short > right,
        "<": left < right,
        "=": short == right,
        "!=": short != right,
    }[operator]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
