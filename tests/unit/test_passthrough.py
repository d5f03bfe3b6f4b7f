"""--gpus, exact device requests, the choice by trial, and the one cause of an absent GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envforge import passthrough
from envforge.engine import GpuRequest
from envforge.errors import EXIT_ENGINE, UsageError
from envforge.hostfacts import (
    CdiFile,
    DaemonConfig,
    DriverFacts,
    EngineFacts,
    GpuFacts,
    HostFacts,
    NvmlFacts,
    PciGpu,
    ToolkitFacts,
)
from envforge.passthrough import Passthrough, ProbeOutcome

UUID = "GPU-12345678-1234-1234-1234-123456789abc"
MIG = "MIG-12345678-1234-1234-1234-123456789abc"

HEALTHY = HostFacts(
    driver=DriverFacts(
        module_version="550.120", nodes=("nvidia0", "nvidiactl"), pci=(PciGpu(address="1", bound="nvidia"),)
    ),
    nvml=NvmlFacts(status="ok", driver="550.120", cuda="12.4", gpus=(GpuFacts(index=0, uuid=UUID, name="A100"),)),
    toolkit=ToolkitFacts(programs=(("nvidia-ctk", "/usr/bin/nvidia-ctk"),)),
    engine=EngineFacts(reachable=True, version="26.1.5", runtimes=("nvidia", "runc")),
)
NO_DRIVER_PLUGIN = 'could not select device driver "" with capabilities: [[gpu]]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", GpuRequest(kind="none")),
        ("auto", GpuRequest(kind="auto")),
        (" ALL ", GpuRequest(kind="all")),
        ("2", GpuRequest(kind="count", count=2)),
        ("device=0,2", GpuRequest(kind="devices", devices=("0", "2"))),
        (f"device={UUID}", GpuRequest(kind="devices", devices=(UUID,))),
        (f"device={MIG},1:0", GpuRequest(kind="devices", devices=(MIG, "1:0"))),
        ('device="0,1"', GpuRequest(kind="devices", devices=("0", "1"))),
    ],
)
def test_parse(text: str, expected: GpuRequest) -> None:
    found = passthrough.parse_gpus(text)
    assert found == expected
    assert passthrough.parse_gpus(passthrough.gpus_text(found)) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("0", "zero"),
        ("-1", "'-1'"),
        ("some", "'some'"),
        ("device=", "empty"),
        ("device=0,,1", "empty"),
        ("device=0;rm", "'0;rm'"),
        ("device=GPU-123", "GPU-123"),
        ("device=0,1,0", "more than once"),
        ("1.5", "'1.5'"),
        ("device=0 --privileged", "--privileged"),
    ],
)
def test_malformed(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        passthrough.parse_gpus(text)
    assert caught.value.reference == "bad-gpus"
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("text", "promised"), [("none", False), ("auto", False), ("all", True), ("1", True), ("device=0", True)]
)
def test_promise(text: str, promised: bool) -> None:
    assert passthrough.parse_gpus(text).promised is promised


@pytest.mark.parametrize(
    ("text", "form", "requests", "devices"),
    [
        ("all", "nvidia", ({"driver": "nvidia", "capabilities": [["gpu"]], "count": -1},), ()),
        ("auto", "nvidia", ({"driver": "nvidia", "capabilities": [["gpu"]], "count": -1},), ()),
        ("2", "nvidia", ({"driver": "nvidia", "capabilities": [["gpu"]], "count": 2},), ()),
        ("device=0,2", "nvidia", ({"driver": "nvidia", "capabilities": [["gpu"]], "device_ids": ["0", "2"]},), ()),
        ("all", "cdi", ({"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"]},), ()),
        ("2", "cdi", ({"driver": "cdi", "device_ids": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]},), ()),
        (f"device={MIG}", "cdi", ({"driver": "cdi", "device_ids": [f"nvidia.com/gpu={MIG}"]},), ()),
        ("all", "cdi-device", (), ("nvidia.com/gpu=all",)),
        ("device=1", "cdi-device", (), ("nvidia.com/gpu=1",)),
    ],
)
def test_exact_requests(
    text: str, form: passthrough.Form, requests: tuple[dict[str, object], ...], devices: tuple[str, ...]
) -> None:
    found = passthrough.device_requests(passthrough.parse_gpus(text), form)
    assert found == Passthrough(form=form, device_requests=requests, devices=devices)


def test_the_sdk_takes_every_key() -> None:
    """docker-py ignores misspelt keys, so every key must arrive in the engine's own record."""
    from docker.types import DeviceRequest

    for text, form in (("2", "nvidia"), ("device=0", "nvidia"), ("all", "cdi")):
        (row,) = passthrough.device_requests(passthrough.parse_gpus(text), form).device_requests  # type: ignore[arg-type]
        sent = DeviceRequest(**dict(row))
        names = {"driver": "Driver", "count": "Count", "device_ids": "DeviceIDs", "capabilities": "Capabilities"}
        assert {key: sent[names[key]] for key in row} == dict(row)


def test_none_makes_no_request() -> None:
    with pytest.raises(ValueError, match="without a GPU"):
        passthrough.device_requests(GpuRequest(kind="none"), "cdi")


@pytest.mark.parametrize(
    ("flavour", "version", "forms"),
    [
        ("docker", "20.10.24+dfsg1", ("nvidia",)),
        ("docker", "24.0.9", ("nvidia",)),
        ("docker", "25.0.0", ("cdi", "nvidia")),
        ("docker (rootless)", "28.1.0", ("cdi", "nvidia")),
        ("podman", "4.3.1", ("cdi-device", "nvidia")),
        ("docker", "unknown", ("nvidia",)),
    ],
)
def test_forms(flavour: str, version: str, forms: tuple[str, ...]) -> None:
    assert passthrough.forms(flavour, version) == forms


def test_choice_needs_proof_and_never_a_silent_success() -> None:
    answers = {
        "cdi": ProbeOutcome(error="unresolvable CDI devices nvidia.com/gpu=all"),
        "nvidia": ProbeOutcome(seen=("env:NVIDIA_VISIBLE_DEVICES=all",)),
    }
    request = GpuRequest(kind="all")
    found = passthrough.choose(request, ("cdi", "nvidia"), lambda one: answers[one.form])
    assert found.passthrough is None, "a variable alone is no GPU"
    assert found.error.startswith("unresolvable")
    answers["nvidia"] = ProbeOutcome(seen=("dev:nvidia0",))
    found = passthrough.choose(request, ("cdi", "nvidia"), lambda one: answers[one.form])
    assert found.passthrough is not None
    assert found.passthrough.form == "nvidia"
    assert [form for form, _ in found.tried] == ["cdi", "nvidia"]


def test_choice_stops_at_the_first_that_works() -> None:
    asked = []

    def attempt(one: Passthrough) -> ProbeOutcome:
        asked.append(one.form)
        return ProbeOutcome(seen=("mount:/usr/lib/x86_64-linux-gnu/libcuda.so.1",))

    passthrough.choose(GpuRequest(kind="all"), ("cdi", "nvidia"), attempt)
    assert asked == ["cdi"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("nvml error: driver/library version mismatch", "gpu-driver-mismatch"),
        ("Failed to initialize NVML: Unknown Error", "gpu-lost-access"),
        ("bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted", "gpu-rootless"),
        ("requirement error: unsatisfied condition: cuda>=12.6", "gpu-driver-too-old"),
        ("CUDA driver version is insufficient for CUDA runtime version", "gpu-driver-too-old"),
        ("no kernel image is available for execution on the device", "gpu-no-kernels"),
        ("CUDA driver is a stub library", "gpu-stub-library"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "gpu-no-driver"),
        ("nvidia-container-cli: device error: 3: unknown device", "gpu-unknown-device"),
        ("No MIG devices found", "gpu-mig-no-instances"),
        ("libcudnn.so.9: cannot open shared object file", "gpu-library-missing"),
        ("Compiled with WITH_GPU, but no GPU found in runtime", "gpu-cpu-fallback"),
        ('error mounting "/usr/lib/libnvidia-ml.so.535.1" to rootfs', "gpu-cdi-stale"),
        ('CDI device injection failed: failed to stat CDI host device "/dev/nvidia9"', "gpu-cdi-stale"),
        ("unresolvable CDI devices nvidia.com/gpu=all", "gpu-cdi-missing"),
        (NO_DRIVER_PLUGIN, "gpu-no-toolkit"),
        ("nvidia-container-cli: something new", "gpu-hook-failed"),
        ("", "gpu-not-delivered"),
    ],
)
def test_cause_from_the_text_alone(error: str, expected: str) -> None:
    assert passthrough.name_cause(error, None) == expected


def _no_nvml(facts: HostFacts) -> HostFacts:
    return replace(facts, nvml=NvmlFacts(status="library-missing", code=12))


@pytest.mark.parametrize(
    ("facts", "error", "expected"),
    [
        (HostFacts(), NO_DRIVER_PLUGIN, "gpu-none"),
        (
            _no_nvml(replace(HEALTHY, driver=DriverFacts(pci=(PciGpu(address="1", bound=""),)))),
            NO_DRIVER_PLUGIN,
            "gpu-no-driver",
        ),
        (replace(HEALTHY, nvml=NvmlFacts(status="error", code=18)), NO_DRIVER_PLUGIN, "gpu-driver-mismatch"),
        (replace(HEALTHY, nvml=NvmlFacts(status="ok", driver="550.120")), NO_DRIVER_PLUGIN, "gpu-none"),
        (
            replace(_no_nvml(HEALTHY), ld_library_path=("/usr/local/cuda/lib64/stubs",)),
            NO_DRIVER_PLUGIN,
            "gpu-stub-library",
        ),
        (
            replace(HEALTHY, nvml=replace(HEALTHY.nvml, gpus=(GpuFacts(index=0, mig=True),))),
            NO_DRIVER_PLUGIN,
            "gpu-mig-no-instances",
        ),
        (
            replace(_no_nvml(HEALTHY), wsl=True, driver=DriverFacts(nodes=("dxg",))),
            NO_DRIVER_PLUGIN,
            "gpu-wsl-library-path",
        ),
        (replace(HEALTHY, toolkit=ToolkitFacts()), NO_DRIVER_PLUGIN, "gpu-no-toolkit"),
        (
            replace(HEALTHY, engine=replace(HEALTHY.engine, runtimes=("runc",))),
            NO_DRIVER_PLUGIN,
            "gpu-toolkit-unregistered",
        ),
        (
            replace(
                HEALTHY, engine=replace(HEALTHY.engine, runtimes=("runc",), daemon=DaemonConfig(runtimes=("nvidia",)))
            ),
            NO_DRIVER_PLUGIN,
            "gpu-engine-restart",
        ),
        (replace(HEALTHY, engine=replace(HEALTHY.engine, snap=True)), NO_DRIVER_PLUGIN, "gpu-engine-snap"),
        (replace(HEALTHY, engine=replace(HEALTHY.engine, rootless=True)), NO_DRIVER_PLUGIN, "gpu-rootless"),
        (HEALTHY, "unresolvable CDI devices nvidia.com/gpu=all", "gpu-cdi-missing"),
        (
            replace(HEALTHY, cdi=(CdiFile(path="/etc/cdi/n.yaml", kind="nvidia.com/gpu", devices=("0", "all")),)),
            "unresolvable CDI devices nvidia.com/gpu=7",
            "gpu-unknown-device",
        ),
        (
            replace(
                HEALTHY,
                cdi=(CdiFile(path="/etc/cdi/n.yaml", kind="nvidia.com/gpu", devices=("all",), missing=("/dev/x",)),),
            ),
            "CDI device injection failed",
            "gpu-cdi-stale",
        ),
        (HEALTHY, "", "gpu-not-delivered"),
        (HEALTHY, "nvidia-container-cli: ldcache error", "gpu-hook-failed"),
    ],
)
def test_cause_from_host_and_text(facts: HostFacts, error: str, expected: str) -> None:
    assert passthrough.name_cause(error, facts) == expected


def test_every_cause_has_words_and_becomes_an_engine_error() -> None:
    for reference in passthrough.CAUSES:
        error = passthrough.unavailable(reference, "the engine said no\n", asked="all")
        assert error.exit_code == EXIT_ENGINE
        assert error.reference == reference
        assert error.message.startswith("--gpus all was asked for, and ")
        assert error.hint
        assert error.context == ("the engine said no",)
        assert "privileged" not in error.hint


@pytest.mark.parametrize(
    ("text", "unmet"),
    [
        ("cuda>=12.4", ""),
        ("cuda>=12.6", "cuda>=12.6"),
        ("cuda>=11.8 brand=tesla,driver>=470,driver<471", ""),
        ("cuda>=12.6 brand=tesla,driver>=550,driver<551", ""),
        ("cuda>=12.6 brand=geforce,driver>=550,driver<551", "cuda>=12.6"),
        ("cuda>=12.6 brand=tesla,driver>=535,driver<536", "cuda>=12.6"),
        ("cuda>=12.4,driver>=560", "driver>=560"),
        ("driver=550", ""),
        ("driver!=550", "driver!=550"),
        ("", ""),
        ("cuda>>9 nonsense", ""),
    ],
)
def test_image_requirement(text: str, unmet: str) -> None:
    """BC-17: what the image demands is judged before the container starts."""
    assert passthrough.unmet_requirement(text, cuda="12.4", driver="550.120", brand="tesla") == unmet


@pytest.mark.parametrize(
    ("capability", "kernels", "expected"),
    [
        ("12.0", "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", False),  # BC-11: RTX 5090 with a cu124 build
        ("12.0", "sm_80 sm_90 sm_120", True),
        ("8.9", "sm_80 sm_86", True),
        ("7.0", "sm_75 sm_80 sm_90", False),
        ("6.1", "sm_75 sm_80", False),
        ("8.0", "sm_86", False),
        ("12.0", "sm_80 compute_90", True),
        ("8.0", "compute_90", False),
        ("9.0", "sm_90a", True),
        ("10.0", "sm_90a", False),
        ("10.3", "sm_100f", True),
        ("8.0", "", False),
    ],
)
def test_kernels(capability: str, kernels: str, expected: bool) -> None:
    assert passthrough.covers(capability, kernels.split()) is expected
