"""doctor's judgement: every branch, from facts alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from envforge import compat, doctor
from envforge.compat import Floors
from envforge.hostfacts import (
    CdiFile,
    DaemonConfig,
    DriverFacts,
    EngineFacts,
    FrameworkFacts,
    GpuFacts,
    GpuTest,
    HostFacts,
    InterpreterFacts,
    LibraryFile,
    NvmlFacts,
    PciGpu,
    Space,
    ToolkitFacts,
)
from envforge.versions import key

TABLES = compat.load()
FLOORS = [row for series in TABLES.cuda_series() if (row := TABLES.driver_floors(series))]
GIB = 1 << 30
A100 = GpuFacts(index=0, uuid="GPU-0", name="NVIDIA A100", capability="8.0", memory_bytes=40 * GIB)
SPEC = CdiFile(path="/etc/cdi/nvidia.yaml", kind="nvidia.com/gpu", devices=("0", "all"))

GOOD = HostFacts(
    python="3.11.7",
    driver=DriverFacts(
        module_version="550.120",
        modules=("nvidia", "nvidia_uvm"),
        nodes=("nvidia-uvm", "nvidia0", "nvidiactl"),
        pci=(PciGpu(address="0000:01:00.0", bound="nvidia"),),
        libraries=(LibraryFile(path="/usr/lib/x86_64-linux-gnu/libcuda.so.1", version="550.120", size=1),),
    ),
    nvml=NvmlFacts(status="ok", driver="550.120", cuda="12.4", gpus=(A100,)),
    toolkit=ToolkitFacts(programs=(("nvidia-ctk", "/usr/bin/nvidia-ctk"),), version="1.17.8"),
    engine=EngineFacts(
        address="unix:///var/run/docker.sock",
        reachable=True,
        version="26.1.5",
        runtimes=("nvidia", "runc"),
        cgroup_driver="systemd",
        storage_driver="overlay2",
        cdi_spec_dirs=("/etc/cdi",),
    ),
    cdi=(SPEC,),
    storage=(Space(what="engine", path="/var/lib/docker", free=200 * GIB, total=400 * GIB, inodes_free_percent=90),),
)
BARE = HostFacts(python="3.11.7")


def judged(facts: HostFacts, floors: list[Floors] = FLOORS) -> dict[str, doctor.Finding]:
    return {finding.reference: finding for finding in doctor.judge(facts, floors)}


def driver(**changes: Any) -> HostFacts:
    return replace(GOOD, driver=replace(GOOD.driver, **changes))


def nvml(**changes: Any) -> HostFacts:
    return replace(GOOD, nvml=replace(GOOD.nvml, **changes))


def engine(**changes: Any) -> HostFacts:
    return replace(GOOD, engine=replace(GOOD.engine, **changes))


def failed(code: int, **changes: Any) -> HostFacts:
    return nvml(status="error", code=code, driver=None, cuda=None, gpus=(), text="words", **changes)


def no_module(**changes: Any) -> HostFacts:
    facts = driver(module_version=None, **changes)
    return replace(facts, nvml=NvmlFacts(status="library-missing", code=12))


def test_a_good_host_has_nothing_to_repair_and_the_order_is_that_of_the_chain() -> None:
    found = doctor.judge(GOOD, FLOORS)
    assert {finding.severity for finding in found} <= {"ok", "info"}
    places = [doctor.AREAS.index(finding.area) for finding in found]
    assert places == sorted(places)
    assert {"driver-ok", "cuda-supported", "toolkit-ok", "engine-ok", "cdi-ok", "space-ok", "python-ok"} <= set(
        judged(GOOD)
    )


def test_a_host_without_a_gpu_is_no_fault() -> None:
    found = judged(BARE)
    assert found["no-gpu"].severity == "info"
    assert not [finding for finding in found.values() if finding.severity == "error"]
    assert "toolkit-missing" not in judged(replace(BARE, engine=GOOD.engine))


# (facts, reference, severity)
CASES: list[tuple[HostFacts, str, str]] = [
    (replace(BARE, wsl=True), "wsl-no-gpu", "warning"),
    (no_module(libraries=()), "driver-missing", "error"),
    (no_module(), "driver-not-loaded", "error"),
    (no_module(pci=(PciGpu(address="1", bound="nouveau"),)), "driver-nouveau", "error"),
    (no_module(pci=(PciGpu(address="1", bound="vfio-pci"),)), "driver-vfio", "error"),
    (nvml(status="timeout", gpus=(), text="no answer within 20 s"), "nvml-hangs", "error"),
    (nvml(status="crashed", gpus=(), code=-6), "nvml-crashed", "error"),
    (replace(GOOD, nvml=NvmlFacts(status="library-missing", code=12)), "driver-library-missing", "error"),
    (failed(18), "driver-library-mismatch", "error"),
    (replace(failed(999), in_container=True), "gpu-lost-access", "error"),
    (failed(999), "nvml-error", "error"),
    (failed(9), "driver-not-loaded", "error"),
    (failed(4), "nvml-no-permission", "error"),
    (failed(255), "nvml-error", "error"),
    (nvml(gpus=()), "no-devices", "error"),
    (replace(BARE, nvml=NvmlFacts(status="ok", driver="550.120")), "no-devices", "info"),
    (nvml(gpus=(A100, GpuFacts(index=1, error=15))), "gpu-lost", "error"),
    (nvml(gpus=(A100, GpuFacts(index=1, error=999))), "gpu-error", "error"),
    (nvml(gpus=(replace(A100, mig=True),)), "mig-no-instances", "error"),
    (nvml(gpus=(replace(A100, mig=True, mig_instances=("MIG-1",)),)), "mig-on", "info"),
    (driver(nodes=("nvidia0", "nvidiactl")), "uvm-missing", "warning"),
    (replace(GOOD, ld_library_path=("/usr/local/cuda/lib64/stubs",)), "stub-library", "error"),
    (nvml(library="/usr/local/cuda/lib64/stubs/libnvidia-ml.so"), "stub-library", "error"),
    (driver(libraries=(LibraryFile(path="/usr/lib/libcuda.so.1", version="", size=0),)), "empty-library", "warning"),
    (replace(GOOD, ld_library_path=("/usr/local/cuda-12.4/compat",)), "compat-library", "warning"),
    (
        driver(libraries=(LibraryFile(path="/usr/lib/libcuda.so.535.1", version="535.1", size=1),)),
        "several-driver-versions",
        "warning",
    ),
    (replace(GOOD, wsl=True, wsl_library_path=True), "wsl-linux-driver", "error"),
    (replace(driver(libraries=()), wsl=True), "wsl-library-path", "warning"),
    (
        replace(no_module(libraries=(), nodes=("dxg",)), wsl=True),
        "wsl-library-path",
        "error",
    ),
    (nvml(driver="390.157", cuda="9.1"), "driver-very-old", "error"),
    (nvml(driver="525.60.13", cuda="12.0"), "cuda-minor-version", "info"),
    (GOOD, "cuda-too-new", "info"),
    (nvml(driver="525.60.13", cuda="12.4"), "cuda-number-differs", "warning"),
    (replace(GOOD, cuda_toolkits=(("/usr/local/cuda", "12.4.1"),)), "cuda-toolkit", "info"),
    (replace(GOOD, toolkit=ToolkitFacts(), cdi=()), "toolkit-missing", "error"),
    (replace(engine(runtimes=("runc",)), cdi=()), "toolkit-not-registered", "error"),
    (
        replace(engine(runtimes=("runc",), daemon=DaemonConfig(runtimes=("nvidia",))), cdi=()),
        "engine-restart-needed",
        "error",
    ),
    (replace(engine(rootless=True), cdi=()), "rootless-cgroups", "error"),
    (engine(daemon=DaemonConfig(path="/etc/docker/daemon.json", error="line 3")), "daemon-json-broken", "error"),
    (replace(GOOD, engine=EngineFacts(error="unix:///x: No such file")), "engine-missing", "warning"),
    (replace(GOOD, engine=EngineFacts(error="unix:///x: permission denied")), "engine-no-permission", "warning"),
    (engine(snap=True), "engine-snap", "error"),
    (replace(BARE, engine=replace(GOOD.engine, snap=True)), "engine-snap", "warning"),
    (engine(desktop=True, system="Docker Desktop"), "engine-desktop", "info"),
    (engine(address="ssh://lab"), "engine-remote", "info"),
    (engine(storage_driver="vfs"), "storage-vfs", "warning"),
    (engine(warnings=("No swap limit support",)), "engine-warning", "info"),
    (replace(driver(char_links_missing=("nvidia0",)), cdi=()), "gpu-may-be-lost", "warning"),
    (replace(GOOD, cdi=()), "cdi-missing", "info"),
    (replace(engine(runtimes=("runc",)), cdi=()), "cdi-missing", "warning"),
    (replace(GOOD, cdi=(CdiFile(path="/etc/cdi/n.yaml", error="bad"),)), "cdi-broken", "error"),
    (replace(GOOD, cdi=(replace(SPEC, missing=("/dev/nvidia1",)),)), "cdi-stale", "error"),
    (replace(GOOD, cdi=(replace(SPEC, driver_versions=("535.104.05",)),)), "cdi-stale", "error"),
    (replace(GOOD, cdi=(replace(SPEC, path="/opt/cdi/nvidia.yaml"),)), "cdi-elsewhere", "warning"),
    (replace(GOOD, storage=(Space(what="engine", path="/", free=3 * GIB, total=90 * GIB),)), "space-low", "error"),
    (replace(GOOD, storage=(Space(what="engine", path="/", free=12 * GIB, total=90 * GIB),)), "space-low", "warning"),
    (replace(GOOD, storage=(Space(what="temporary", path="/tmp", free=GIB, total=2 * GIB),)), "space-low", "warning"),
    (
        replace(GOOD, storage=(Space(what="engine", path="/", free=90 * GIB, total=99 * GIB, inodes_free_percent=1),)),
        "inodes-low",
        "warning",
    ),
    (replace(GOOD, python="3.9.2"), "python-unfit", "error"),
    (replace(GOOD, python_bits=32), "python-unfit", "error"),
    (replace(GOOD, gpu_tests=(GpuTest(form="cdi", delivered=("dev:nvidia0",)),)), "gpu-test-passed", "ok"),
    (
        replace(
            GOOD, toolkit=ToolkitFacts(), gpu_tests=(GpuTest(form="nvidia", error="could not select device driver"),)
        ),
        "gpu-no-toolkit",
        "error",
    ),
    (replace(GOOD, gpu_tests=(GpuTest(form="nvidia"),)), "gpu-not-delivered", "error"),
]


@pytest.mark.parametrize(("facts", "reference", "severity"), CASES, ids=[f"{row[1]}-{row[2]}" for row in CASES])
def test_branch(facts: HostFacts, reference: str, severity: str) -> None:
    found = judged(facts)
    assert reference in found, sorted(found)
    assert found[reference].severity == severity
    assert found[reference].evidence and found[reference].message
    # The control: a good host says none of it, but for what every driver says of newer CUDAs.
    assert reference not in judged(GOOD) or reference in ("cuda-too-new", "cuda-minor-version")


def test_every_bad_finding_says_what_to_do() -> None:
    for facts, reference, severity in CASES:
        finding = judged(facts)[reference]
        if severity in ("warning", "error"):
            assert finding.hint, reference


def test_every_reference_of_the_code_is_tested() -> None:
    import re

    package = Path(doctor.__file__).parent
    text = "".join((package / name).read_text() for name in ("doctor.py", "doctor_python.py"))
    named = set(re.findall(r'reference="([a-z0-9-]+)"', text))
    here = Path(__file__).read_text()
    assert len(named) > 50
    assert {name for name in named if f'"{name}"' not in here} == set()


# -- CUDA floors -----------------------------------------------------------------------------------


def below(version: str) -> str:
    """A version just under this one."""
    parts = [int(part) for part in version.split(".")]
    for place in reversed(range(len(parts))):
        if parts[place] > 0:
            parts[place] -= 1
            return ".".join(str(part) for part in [*parts[: place + 1], *[99] * (len(parts) - place - 1)])
    raise AssertionError(version)


@pytest.mark.parametrize("row", FLOORS, ids=[row.cuda for row in FLOORS])
def test_both_sides_of_every_floor(row: Floors) -> None:
    assert doctor.support(row.native, FLOORS)[row.cuda] == "native"
    under = "minor-version" if key(row.minor) < key(row.native) else "too-old"
    assert doctor.support(below(row.native), FLOORS)[row.cuda] == under
    assert doctor.support(below(row.minor), FLOORS)[row.cuda] == "too-old"
    if key(row.minor) < key(row.native):
        assert doctor.support(row.minor, FLOORS)[row.cuda] == "minor-version"
    found = judged(nvml(driver=below(row.minor), cuda=None))
    if "cuda-too-new" in found:
        assert f"CUDA {row.cuda} needs driver {row.minor}" in found["cuda-too-new"].evidence


def test_says_what_the_number_means() -> None:
    finding = judged(GOOD)["cuda-supported"]
    assert "supports CUDA up to 12.4" in finding.message
    assert "not what is installed" in finding.message


@pytest.mark.parametrize("count", [0, 1, 8])
def test_counts(count: int) -> None:
    facts = nvml(gpus=tuple(replace(A100, index=index) for index in range(count)))
    found = judged(facts)
    assert ("driver-ok" in found) is (count > 0)
    if count:
        assert f"{count} GPU(s)" in found["driver-ok"].evidence


# -- interpreter -----------------------------------------------------------------------------------

TORCH = FrameworkFacts(
    name="torch", version="2.6.0", cuda="12.4", devices=1, kernels=("sm_80", "sm_90"), cxx11_abi=False
)
INSIDE = InterpreterFacts(path="/env/bin/python", version="3.11.2", glibc="2.36", prefix="/env", frameworks=(TORCH,))


def looked(facts: HostFacts = GOOD, **changes: Any) -> dict[str, doctor.Finding]:
    return judged(replace(facts, interpreter=replace(INSIDE, **changes)))


def framework(facts: HostFacts = GOOD, **changes: Any) -> dict[str, doctor.Finding]:
    return looked(facts, frameworks=(replace(TORCH, **changes),))


def test_a_good_interpreter() -> None:
    found = looked()
    assert found["framework"].evidence.startswith("torch 2.6.0: CUDA 12.4, C++11 ABI off, 1 GPU(s)")
    assert not [row for row in found.values() if row.severity in ("warning", "error")]


INTERPRETER_CASES: list[tuple[dict[str, doctor.Finding], str, str]] = [
    (looked(error="cannot be started"), "interpreter-broken", "error"),
    (looked(bits=32), "interpreter", "error"),
    (looked(frameworks=()), "no-framework", "info"),
    (looked(packages=(("onnxruntime", "1"), ("onnxruntime-gpu", "1"))), "rival-packages", "warning"),
    (looked(packages=(("nvidia-cudnn-cu11", "8"), ("nvidia-cublas-cu12", "12"))), "two-cuda-majors", "warning"),
    (looked(duplicates=(("libcudnn.so", ("/a/libcudnn.so.9", "/b/libcudnn.so.8")),)), "duplicate-library", "warning"),
    (framework(error="ImportError: something new"), "import-failed", "error"),
    (
        framework(error="ImportError: libcusparseLt.so.0: cannot open shared object file", output="torch/__init__.py"),
        "torch-wheel-forgot-cuda-libs",
        "error",
    ),
    (framework(libraries=("/usr/local/cuda/lib64/libcudnn.so.8",)), "foreign-library", "warning"),
    (framework(libraries=("/env/lib/stubs/libcuda.so",)), "gpu-stub-library", "error"),
    (framework(cuda=None), "framework-cpu-build", "warning"),
    (framework(nvml(driver="440.33.01")), "gpu-driver-too-old", "error"),
    (framework(nvml(gpus=(replace(A100, capability="12.0"),))), "gpu-no-kernels", "error"),
    (framework(devices=0), "gpu-cpu-fallback", "error"),
    (framework(nvml(gpus=(A100, replace(A100, index=1)))), "fewer-devices", "warning"),
]


@pytest.mark.parametrize(
    ("found", "reference", "severity"), INTERPRETER_CASES, ids=[row[1] for row in INTERPRETER_CASES]
)
def test_interpreter_branch(found: dict[str, doctor.Finding], reference: str, severity: str) -> None:
    assert found[reference].severity == severity


def test_the_driver_s_own_library_is_not_foreign() -> None:
    assert "foreign-library" not in framework(libraries=("/usr/lib/x86_64-linux-gnu/libcuda.so.550.120",))


def test_without_a_gpu_the_framework_is_not_blamed() -> None:
    found = framework(BARE, devices=0)
    assert not [row for row in found.values() if row.severity == "error"]


def test_known_text_explains_the_fall_back() -> None:
    found = framework(devices=0, output="Compiled with WITH_GPU, but no GPU found in runtime")
    assert "driver" in found["gpu-cpu-fallback"].message


# -- reported cases --------------------------------------------------------------------------------

REPORTED: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "host" / "reported.yaml").read_text(encoding="utf-8")
)["cases"]


def built(case: dict[str, Any]) -> HostFacts:
    """GOOD with the case's changes; nested records are given by their fields."""
    facts = GOOD
    for name, values in case["facts"].items():
        if name == "gpu":
            gpu = replace(A100, **values)
            facts = replace(facts, nvml=replace(facts.nvml, gpus=(gpu,) * case.get("count", 1)))
        elif name == "framework":
            row = FrameworkFacts(**{key: tuple(one) if isinstance(one, list) else one for key, one in values.items()})
            facts = replace(facts, interpreter=replace(INSIDE, frameworks=(row,)))
        elif isinstance(values, dict):
            plain = {key: tuple(one) if isinstance(one, list) else one for key, one in values.items()}
            if name == "toolkit" and "programs" in plain:
                plain["programs"] = tuple((one, f"/usr/bin/{one}") for one in plain["programs"])
            facts = replace(facts, **{name: replace(getattr(facts, name), **plain)})
        else:
            facts = replace(facts, **{name: tuple(values) if isinstance(values, list) else values})
    return facts


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: case["id"])
def test_reported_case(case: dict[str, Any]) -> None:
    found = judged(built(case))
    finding = found[case["finds"]]
    told = " ".join([finding.evidence, finding.message, finding.hint, *finding.commands])
    for words in case["says"]:
        assert words in told
    everything = " ".join(f"{row.message} {row.hint} {' '.join(row.commands)}" for row in found.values())
    for words in case.get("never", ()):
        assert words not in everything
    for reference in case.get("not", ()):
        assert reference not in found
