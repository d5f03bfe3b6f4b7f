"""GPU passthrough on real engines: delivered through the hook and through CDI, and each staged cause named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envforge import host, passthrough
from envforge.docker_engine import DockerEngine
from envforge.engine import RunRequest
from envforge.errors import GpuUnavailable
from envforge.hostfacts import DriverFacts, EngineFacts, GpuFacts, HostFacts, NvmlFacts, PciGpu, ToolkitFacts
from tests.docker import engines

pytestmark = [
    pytest.mark.docker,
    pytest.mark.heavy,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="a second engine needs root"),
]

# A sound GPU host with a toolkit; what the engine says is real, what the machine has is this.
HEALTHY = HostFacts(
    driver=DriverFacts(module_version="550.120", nodes=("nvidia0",), pci=(PciGpu(address="1", bound="nvidia"),)),
    nvml=NvmlFacts(status="ok", driver="550.120", cuda="12.4", gpus=(GpuFacts(index=0, name="A100"),)),
    toolkit=ToolkitFacts(programs=(("nvidia-ctk", "/usr/bin/nvidia-ctk"),)),
    engine=EngineFacts(reachable=True, version="26.1.5", runtimes=("runc", "nvidia")),
)
# What a program inside finds: the node, the variable, and the stub library's own answers.
LOOK = """
import ctypes, json, os
library = ctypes.CDLL("libnvidia-ml.so.1")
text, count = ctypes.create_string_buffer(96), ctypes.c_uint()
answers = [library.nvmlInit_v2(), library.nvmlSystemGetDriverVersion(text, 96)]
answers.append(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
print(json.dumps({"answers": answers, "driver": text.value.decode(), "count": count.value,
                  "node": os.path.exists("/dev/nvidia0"), "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES")}))
"""
STUB = {"NVML_STUB_DRIVER": "550.120", "NVML_STUB_COUNT": "2"}


def _load(address: str, archive: Path) -> None:
    import docker

    client = docker.DockerClient(base_url=address, timeout=300)
    with archive.open("rb") as stream:
        client.images.load(stream)
    client.close()


@pytest.fixture(scope="session")
def archive(bookworm_base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("image") / "base.tar"
    engine = DockerEngine.connect()
    with target.open("wb") as stream:
        for piece in engine.export(bookworm_base):
            stream.write(piece)
    engine.close()
    return target


@pytest.fixture(scope="session")
def hook_engine(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines.Engine]:
    with engines.hook_engine(tmp_path_factory.mktemp("hook")) as engine:
        _load(engine.address, archive)
        yield engine


@pytest.fixture(scope="session")
def cdi_engine(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines.Engine]:
    with engines.cdi_engine(tmp_path_factory.mktemp("cdi")) as engine:
        _load(engine.address, archive)
        yield engine


def _sound(engine: engines.Engine) -> engines.Engine:
    """The engine, delivering."""
    engine.set_mode("ok")
    (engine.folder / "cdi").mkdir(exist_ok=True)
    engine.set_cdi(engines.cdi_spec())
    return engine


@pytest.fixture
def hook(hook_engine: engines.Engine) -> engines.Engine:
    return _sound(hook_engine)


@pytest.fixture
def cdi(cdi_engine: engines.Engine) -> engines.Engine:
    return _sound(cdi_engine)


def connect(engine: engines.Engine, monkeypatch: pytest.MonkeyPatch, facts: HostFacts | None = HEALTHY) -> DockerEngine:
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    if facts is not None:
        monkeypatch.setattr(host, "probe", lambda **_: facts)
    return DockerEngine.connect()


def containers(engine: DockerEngine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = engine._api.containers(all=True)
    return found


@pytest.mark.parametrize(("name", "form", "visible"), [("hook", "nvidia", "all"), ("cdi", "cdi", "void")])
def test_run_delivers_device_library_and_variable(
    name: str,
    form: str,
    visible: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    bookworm_base: str,
) -> None:
    engine = connect(request.getfixturevalue(name), monkeypatch)
    gpus = passthrough.parse_gpus("all")
    chosen = engine.gpu_passthrough(gpus)
    assert chosen is not None
    assert chosen.form == form
    done = engine.run(bookworm_base, RunRequest(argv=("python3", "-c", LOOK), gpus=gpus, env=STUB))
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout) == {
        "answers": [0, 0, 0],
        "driver": "550.120",
        "count": 2,
        "node": True,
        "visible": visible,
    }
    without = engine.run(bookworm_base, RunRequest(argv=("python3", "-c", LOOK), gpus=passthrough.parse_gpus("none")))
    assert without.code != 0
    assert "libnvidia-ml.so.1: cannot open shared object file" in without.stderr
    assert containers(engine) == []
    engine.close()


@pytest.mark.parametrize("name", ["hook", "cdi"])
def test_the_run_command_delivers(
    name: str, request: pytest.FixtureRequest, bookworm_base: str, tmp_path: Path
) -> None:
    engine = request.getfixturevalue(name)
    words = ["run", bookworm_base, "--gpus", "all", "--no-network", "--env", "NVML_STUB_COUNT=2"]
    done = subprocess.run(
        [sys.executable, "-m", "envforge", *words, "--", "python3", "-c", LOOK],
        env=os.environ | {"DOCKER_HOST": engine.address, "ENVFORGE_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["node"] and found["count"] == 2 and found["answers"] == [0, 0, 0]


def test_the_hook_gets_exactly_what_was_asked(hook: engines.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = connect(hook, monkeypatch)
    (hook.folder / "asked").write_text("")
    for text in ("all", "2", "device=0,1"):
        engine.gpu_choice(passthrough.parse_gpus(text))
    assert (hook.folder / "asked").read_text().split() == ["all", "0,1", "0,1"]


CLI = "nvidia-container-cli: "
HOOK_FAILURES = {
    CLI + "initialization error: nvml error: driver/library version mismatch": "gpu-driver-mismatch",
    CLI + "initialization error: nvml error: driver not loaded": "gpu-no-driver",
    CLI + "initialization error: load library failed: libnvidia-ml.so.1: cannot open": "gpu-library-missing",
    CLI + "requirement error: unsatisfied condition: cuda>=12.6": "gpu-driver-too-old",
    CLI + "device error: 3: unknown device": "gpu-unknown-device",
    CLI + "mount error: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted": "gpu-rootless",
    CLI + "ldcache error: process /sbin/ldconfig failed": "gpu-hook-failed",
    "nothing": "gpu-not-delivered",
}


@pytest.mark.parametrize(("words", "cause"), HOOK_FAILURES.items(), ids=list(HOOK_FAILURES.values()))
def test_hook_failures_are_named(
    words: str, cause: str, hook: engines.Engine, monkeypatch: pytest.MonkeyPatch, bookworm_base: str
) -> None:
    hook.set_mode(words)
    engine = connect(hook, monkeypatch)
    with pytest.raises(GpuUnavailable) as caught:
        engine.run(bookworm_base, RunRequest(argv=("true",), gpus=passthrough.parse_gpus("all")))
    assert caught.value.reference == cause
    if words != "nothing":
        assert words.rpartition(": ")[2] in "\n".join(caught.value.context)
    assert containers(engine) == [], "no container may run, or stay, without the GPU that was promised"


CDI_FAILURES: dict[str, tuple[object, str, str]] = {
    "no-spec": (None, "all", "gpu-cdi-missing"),
    "other-kind": ({**engines.cdi_spec(), "kind": "vendor.com/net"}, "all", "gpu-cdi-missing"),
    "device-not-in-spec": (engines.cdi_spec(), "device=7", "gpu-unknown-device"),
    "library-gone": (engines.cdi_spec(library="/opt/gpu/libnvidia-ml.so.535.104.05"), "all", "gpu-cdi-stale"),
    "broken-yaml": ("kind: [", "all", "gpu-cdi-missing"),
}


@pytest.mark.parametrize("case", CDI_FAILURES)
def test_cdi_failures_are_named(
    case: str, cdi: engines.Engine, monkeypatch: pytest.MonkeyPatch, bookworm_base: str
) -> None:
    spec, gpus, cause = CDI_FAILURES[case]
    cdi.set_cdi(spec)  # type: ignore[arg-type]
    seen = tuple(host.cdi_files(cdi.folder, ("/cdi",)))
    engine = connect(cdi, monkeypatch, replace(HEALTHY, cdi=seen))
    with pytest.raises(GpuUnavailable) as caught:
        engine.run(bookworm_base, RunRequest(argv=("true",), gpus=passthrough.parse_gpus(gpus)))
    assert caught.value.reference == cause, caught.value.context
    assert containers(engine) == []


def test_cdi_node_gone(cdi: engines.Engine, monkeypatch: pytest.MonkeyPatch, bookworm_base: str) -> None:
    spec: Any = engines.cdi_spec()
    for device in spec["devices"]:
        device["containerEdits"]["deviceNodes"][0]["hostPath"] = "/opt/gpu/nvidia9"
    cdi.set_cdi(spec)
    engine = connect(cdi, monkeypatch)
    with pytest.raises(GpuUnavailable) as caught:
        engine.run(bookworm_base, RunRequest(argv=("true",), gpus=passthrough.parse_gpus("all")))
    assert caught.value.reference == "gpu-cdi-stale", caught.value.context


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (HEALTHY, "gpu-hook-failed"),
        (replace(HEALTHY, toolkit=ToolkitFacts()), "gpu-no-toolkit"),
        (replace(HEALTHY, engine=replace(HEALTHY.engine, runtimes=("runc",))), "gpu-toolkit-unregistered"),
        (replace(HEALTHY, engine=replace(HEALTHY.engine, snap=True)), "gpu-engine-snap"),
        (None, "gpu-none"),
    ],
)
def test_engine_without_any_driver(
    facts: HostFacts | None, cause: str, monkeypatch: pytest.MonkeyPatch, bookworm_base: str
) -> None:
    """The machine's own engine knows no NVIDIA driver; the host's facts decide which part is named."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    if facts is not None:
        monkeypatch.setattr(host, "probe", lambda **_: facts)
    engine = DockerEngine.connect()
    with pytest.raises(GpuUnavailable) as caught:
        engine.run(bookworm_base, RunRequest(argv=("true",), gpus=passthrough.parse_gpus("all")))
    assert caught.value.reference == cause
    assert "could not select device driver" in "\n".join(caught.value.context)


@pytest.mark.parametrize(
    ("stub", "cause"),
    [
        ({"NVML_STUB_INIT": "18"}, "gpu-driver-mismatch"),
        ({"NVML_STUB_INIT": "999"}, "gpu-lost-access"),
        ({"NVML_STUB_INIT": "9"}, "gpu-no-driver"),
    ],
)
def test_trouble_inside_is_named(
    stub: dict[str, str], cause: str, hook: engines.Engine, monkeypatch: pytest.MonkeyPatch, bookworm_base: str
) -> None:
    """The container has the GPU, and NVML inside it fails: the text decides."""
    engine = connect(hook, monkeypatch)
    script = Path(host.__file__).with_name("nvml_probe.py").read_bytes()
    done = engine.run(
        bookworm_base,
        RunRequest(
            argv=("python3", "/envforge/nvml_probe.py"),
            files={"nvml_probe.py": script},
            gpus=passthrough.parse_gpus("all"),
            env=stub,
        ),
    )
    found = json.loads(done.stdout)
    assert found["status"] == "error"
    assert passthrough.name_cause(f"Failed to initialize NVML: {found['text']}", HEALTHY) == cause


def test_auto_takes_no_gpu_for_granted(monkeypatch: pytest.MonkeyPatch, bookworm_base: str) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    engine = DockerEngine.connect()
    done = engine.run(bookworm_base, RunRequest(argv=("echo", "ran"), gpus=passthrough.parse_gpus("auto")))
    assert (done.code, done.stdout) == (0, "ran\n")


@pytest.mark.parametrize(("name", "good"), [("cdi", True), ("cdi", False), ("hook", True)])
def test_doctor_gpu_test(name: str, good: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    engine = request.getfixturevalue(name)
    if not good:
        engine.set_cdi(None)
    done = subprocess.run(
        [sys.executable, "-m", "envforge", "doctor", "--gpu-test", "--json"],
        env=os.environ | {"DOCKER_HOST": engine.address, "ENVFORGE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    document = json.loads(done.stdout)
    tests = [row for row in document["gpu_tests"] if row["delivered"]]
    assert bool(tests) is good
    references = [row["reference"] for row in document["findings"]]
    assert ("gpu-test-passed" in references) is good
    assert done.returncode == (0 if good else 6)
