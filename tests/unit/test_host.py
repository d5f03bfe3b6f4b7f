"""Probing: a host laid out in a folder, a stub NVML compiled here, an engine that answers on a socket."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envforge import compat, doctor, host, host_engine
from envforge.gpu_image import gpu_sign, rootfs
from envforge.hostfacts import HostFacts

STUB = Path(__file__).parents[1] / "stubs" / "nvml.c"
TABLES = compat.load()
FLOORS = [row for series in TABLES.cuda_series() if (row := TABLES.driver_floors(series))]


def write(root: Path, name: str, text: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.fail("the stub NVML needs gcc")
    folder = tmp_path_factory.mktemp("nvml")
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    return folder


def environment(stub: Path, **values: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(stub), "HOME": "/nonexistent"} | {
        f"NVML_STUB_{name}": value for name, value in values.items()
    }


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A GPU host with driver 550.120 in a folder."""
    write(
        tmp_path,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.120  Release Build\nGCC version: 12\n",
    )
    write(tmp_path, "proc/modules", "nvidia_uvm 1 0 - Live\nnvidia 2 1 - Live\next4 1 0 - Live\n")
    write(tmp_path, "proc/version", "Linux version 6.1.0")
    write(tmp_path, "etc/os-release", 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        write(tmp_path, f"dev/{name}")
    device = "sys/bus/pci/devices/0000:01:00.0"
    write(tmp_path, f"{device}/vendor", "0x10de\n")
    write(tmp_path, f"{device}/class", "0x030200\n")
    (tmp_path / "sys/bus/pci/drivers/nvidia").mkdir(parents=True)
    (tmp_path / device / "driver").symlink_to("../../drivers/nvidia")
    write(tmp_path, "sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n")
    write(tmp_path, "sys/bus/pci/devices/0000:02:00.0/class", "0x040300\n")  # its sound part is no GPU
    write(tmp_path, "usr/lib/x86_64-linux-gnu/libcuda.so.550.120", "elf")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libcuda.so.1").symlink_to("libcuda.so.550.120")
    return tmp_path


def test_driver_facts_of_a_laid_out_host(machine: Path) -> None:
    found = host.driver(machine, {})
    assert found.module_version == "550.120"
    assert found.open_module
    assert found.modules == ("nvidia", "nvidia_uvm")
    assert found.nodes == ("nvidia-caps/nvidia-cap1", "nvidia-uvm", "nvidia0", "nvidiactl")
    assert [(gpu.address, gpu.bound) for gpu in found.pci] == [("0000:01:00.0", "nvidia")]
    assert [(row.path, row.version, row.size) for row in found.libraries] == [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "550.120", 3)
    ]


def test_stub_and_empty_libraries_are_told_apart(machine: Path) -> None:
    write(machine, "usr/local/cuda/lib64/stubs/libcuda.so", "stub")
    write(machine, "usr/lib64/libnvidia-ml.so.1", "")
    found = {row.path: row for row in host.driver(machine, {}).libraries}
    assert found["/usr/local/cuda/lib64/stubs/libcuda.so"].stub
    assert found["/usr/lib64/libnvidia-ml.so.1"].size == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="device nodes need root")
def test_missing_char_links(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/nvidia0", 0o600 | 0o020000, os.makedev(195, 0))
    assert host.driver(tmp_path, {}).char_links_missing == ("nvidia0",)
    write(tmp_path, "dev/char/195:0")
    assert host.driver(tmp_path, {}).char_links_missing == ()


def test_wsl(machine: Path) -> None:
    write(machine, "proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2")
    write(machine, "dev/dxg")
    env = {"HOME": "/nonexistent", "PATH": os.environ["PATH"]}
    found = host.probe(root=machine, environ=env, engine=False)
    assert found.wsl and not found.wsl_library_path
    write(machine, "etc/ld.so.conf.d/ld.wsl.conf", "/usr/lib/wsl/lib\n")
    assert host.probe(root=machine, environ=env, engine=False).wsl_library_path


def test_toolkit(machine: Path) -> None:
    assert not host.toolkit(machine).installed
    for name in ("nvidia-ctk", "nvidia-container-runtime-hook"):
        write(machine, f"usr/bin/{name}")
    status = "Package: bash\nVersion: 5\n\nPackage: nvidia-container-toolkit\nStatus: ok\nVersion: 1.17.8-1\n"
    write(machine, "var/lib/dpkg/status", status)
    write(machine, "etc/nvidia-container-runtime/config.toml", "#no-cgroups = false\n[cli]\nno-cgroups = true\n")
    found = host.toolkit(machine)
    assert found.installed
    assert (found.version, found.no_cgroups) == ("1.17.8", True)


def test_cdi_files(machine: Path) -> None:
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
        "containerEdits": {"mounts": [{"hostPath": "/usr/lib/libcuda.so.535.104.05", "containerPath": "/x"}]},
    }
    write(machine, "etc/cdi/nvidia.json", json.dumps(spec))
    write(machine, "etc/cdi/broken.yaml", "kind: [")
    write(machine, "etc/cdi/empty.yaml", "")
    found = {row.path: row for row in host.cdi_files(machine, ("/etc/cdi", "/etc/cdi/"))}
    assert len(found) == 3
    assert found["/etc/cdi/broken.yaml"].error and found["/etc/cdi/empty.yaml"].error
    good = found["/etc/cdi/nvidia.json"]
    assert (good.kind, good.devices, good.error) == ("nvidia.com/gpu", ("all",), "")
    assert good.missing == ("/usr/lib/libcuda.so.535.104.05",)
    assert good.driver_versions == ("535.104.05",)


@pytest.mark.parametrize(
    ("text", "error", "runtimes", "cdi"),
    [
        ('{"runtimes": {"nvidia": {"path": "x"}}, "features": {"cdi": true}}', False, ("nvidia",), True),
        ('{"exec-opts": ["native.cgroupdriver=cgroupfs"]}', False, (), None),
        ("{,}", True, (), None),
        ("[]", True, (), None),
    ],
)
def test_daemon_json(tmp_path: Path, text: str, error: bool, runtimes: tuple[str, ...], cdi: bool | None) -> None:
    write(tmp_path, "etc/docker/daemon.json", text)
    found = host_engine.daemon_config(tmp_path, {})
    assert bool(found.error) is error
    assert (found.runtimes, found.cdi) == (runtimes, cdi)
    assert found.cgroup_driver == ("cgroupfs" if "exec-opts" in text else "")


def test_engine_addresses(tmp_path: Path) -> None:
    assert host_engine.addresses({"DOCKER_HOST": "tcp://x:1"}) == ("tcp://x:1",)
    assert host_engine.addresses({}, tmp_path) == ("unix:///var/run/docker.sock",)
    write(tmp_path, "run/podman/podman.sock")
    write(tmp_path, "run/user/7/docker.sock")
    found = host_engine.addresses({"XDG_RUNTIME_DIR": "/run/user/7"}, tmp_path)
    assert found == ("unix:///run/user/7/docker.sock", "unix:///run/podman/podman.sock")
    write(tmp_path, "config.json", '{"currentContext": "lab"}')
    meta = {"Name": "lab", "Endpoints": {"docker": {"Host": "ssh://lab"}}}
    write(tmp_path, "contexts/meta/abc/meta.json", json.dumps(meta))
    assert host_engine.addresses({"DOCKER_CONFIG": str(tmp_path)}, tmp_path) == ("ssh://lab",)


ANSWERS: dict[str, Any] = {
    "/version": {"Version": "26.1.5", "ApiVersion": "1.45", "Components": [{"Name": "Engine"}]},
    "/info": {
        "SecurityOptions": ["name=seccomp", "name=rootless"],
        "CgroupDriver": "systemd",
        "Runtimes": {"runc": {}, "nvidia": {}},
        "DockerRootDir": "/var/snap/docker/common",
        "Driver": "overlay2",
        "CDISpecDirs": ["/etc/cdi"],
        "Warnings": ["No swap limit"],
    },
}


@pytest.fixture
def engine_socket() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(ANSWERS[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_engine_s_own_words(engine_socket: str, tmp_path: Path) -> None:
    found = host_engine.probe({"DOCKER_HOST": engine_socket}, root=tmp_path)
    assert (found.reachable, found.version, found.flavour) == (True, "26.1.5", "docker")
    assert (found.rootless, found.snap, found.cgroup_driver) == (True, True, "systemd")
    assert (found.runtimes, found.cdi_spec_dirs) == (("nvidia", "runc"), ("/etc/cdi",))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "unix:///nonexistent/x.sock", "ssh://lab"])
def test_engine_that_does_not_answer(address: str, tmp_path: Path) -> None:
    found = host_engine.probe({"DOCKER_HOST": address}, root=tmp_path)
    assert not found.reachable
    assert address.partition(":")[0] in found.error


# -- stub NVML -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 8])
def test_nvml_counts(stub: Path, count: int) -> None:
    found = host.nvml(environment(stub, COUNT=str(count), DRIVER="535.104.05", CUDA="12020"))
    assert (found.status, found.driver, found.cuda, len(found.gpus)) == ("ok", "535.104.05", "12.2", count)
    assert found.library == str(stub / "libnvidia-ml.so.1")
    assert found.through == "nvidia-ml-py"
    if count:
        gpu = found.gpus[0]
        assert (gpu.name, gpu.capability, gpu.memory_bytes) == ("NVIDIA A100-SXM4-40GB", "8.0", 40 << 30)


@pytest.mark.parametrize(("code", "text"), [(18, "mismatch"), (9, "Driver"), (4, "Permission"), (999, "Unknown")])
def test_nvml_error_codes(stub: Path, code: int, text: str) -> None:
    found = host.nvml(environment(stub, INIT=str(code)))
    assert (found.status, found.code) == ("error", code)
    assert text.lower() in found.text.lower()


def test_nvml_mig_and_a_lost_gpu(stub: Path) -> None:
    found = host.nvml(environment(stub, COUNT="2", MIG="on", INSTANCES="2", BAD="1"))
    assert found.gpus[0].mig is True
    assert len(found.gpus[0].mig_instances) == 2
    assert found.gpus[1].error == 15
    assert host.nvml(environment(stub, MIG="off")).gpus[0].mig is False
    assert host.nvml(environment(stub)).gpus[0].mig is None


def test_nvml_that_hangs_or_crashes_takes_nobody_along(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "NVML_SECONDS", 1.0)
    assert host.nvml(environment(stub, HANG="1")).status == "timeout"
    crashed = host.nvml(environment(stub, CRASH="1"))
    assert (crashed.status, crashed.code) == ("crashed", -6)


def test_nvml_absent(tmp_path: Path) -> None:
    assert host.nvml(environment(tmp_path)).status == "library-missing"


def test_nvml_without_the_binding(stub: Path) -> None:
    """With the standard library alone the main questions are still answered."""
    script = Path(host.__file__).with_name("nvml_probe.py")
    code = f"import sys; sys.modules['pynvml'] = None; sys.argv = ['x']; exec(open({str(script)!r}).read())"
    env = environment(stub, COUNT="3")
    done = subprocess.run([sys.executable, "-I", "-c", code], env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["through"], found["status"], found["driver"], len(found["gpus"])) == ("ctypes", "ok", "550.120", 3)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], env=environment(stub, INIT="18"), capture_output=True, text=True
    )
    assert json.loads(done.stdout)["code"] == 18


def references(facts: HostFacts) -> set[str]:
    return {finding.reference for finding in doctor.judge(facts, FLOORS)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "driver-ok"),
        ({"COUNT": "0"}, "no-devices"),
        ({"COUNT": "8"}, "driver-ok"),
        ({"INIT": "18"}, "driver-library-mismatch"),
        ({"INIT": "4"}, "nvml-no-permission"),
        ({"INIT": "999"}, "nvml-error"),
        ({"CRASH": "1"}, "nvml-crashed"),
        ({"MIG": "on"}, "mig-no-instances"),
        ({"MIG": "on", "INSTANCES": "1"}, "mig-on"),
        ({"BAD": "0"}, "gpu-lost"),
        ({"DRIVER": "390.157", "CUDA": "9010"}, "driver-very-old"),
        ({"DRIVER": "525.60.13", "CUDA": "12000"}, "cuda-minor-version"),
        ({"DRIVER": "525.60.13", "CUDA": "12040"}, "cuda-number-differs"),
    ],
)
def test_from_the_stub_to_the_finding(stub: Path, machine: Path, values: dict[str, str], expected: str) -> None:
    facts = host.probe(root=machine, environ=environment(stub, **values), engine=False)
    assert expected in references(facts)


def test_command_document(stub: Path, tmp_path: Path) -> None:
    """The whole command: JSON on stdout, exit code 6 with an error, --fix prints and runs nothing."""
    env = (
        os.environ | environment(stub, INIT="18") | {"DOCKER_HOST": "tcp://127.0.0.1:1", "ENVFORGE_HOME": str(tmp_path)}
    )
    done = subprocess.run(
        [sys.executable, "-m", "envforge", "doctor", "--json"], env=env, capture_output=True, text=True
    )
    document = json.loads(done.stdout)
    assert done.returncode == 6
    assert document["schema"] == 1
    assert {"findings", "driver", "gpus", "engine"} <= set(document)
    for row in document["findings"]:
        assert {"area", "severity", "evidence", "message", "hint"} <= set(row)
    assert "driver-library-mismatch" in {row["reference"] for row in document["findings"]}
    fixed = subprocess.run(
        [sys.executable, "-m", "envforge", "doctor", "--fix"], env=env, capture_output=True, text=True
    )
    assert "sudo reboot" in fixed.stdout.splitlines()
    good = env | {"NVML_STUB_INIT": "0", "NVML_STUB_COUNT": "8"}
    done = subprocess.run(
        [sys.executable, "-m", "envforge", "doctor", "--json"], env=good, capture_output=True, text=True
    )
    document = json.loads(done.stdout)
    assert len(document["gpus"]) == 8
    assert document["driver"]["version"] == "550.120"


def test_starts_with_the_standard_library_and_yaml_only(tmp_path: Path) -> None:
    """On a bare GPU host: no docker, requests, jinja2, rich, packaging, pynvml, uv."""
    import yaml

    site = tmp_path / "site"
    site.mkdir()
    (site / "yaml").symlink_to(Path(yaml.__file__).parent)
    (site / "envforge").symlink_to(Path(host.__file__).parent)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); from envforge.cli import main; "
        "raise SystemExit(main(['doctor', '--json']))"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_HOST": "tcp://127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode in (0, 6), done.stderr
    assert json.loads(done.stdout)["engine"]["reachable"] is False


# -- interpreter -----------------------------------------------------------------------------------


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    return tmp_path / "env"


def site_of(prefix: Path) -> Path:
    return next((prefix / "lib").glob("python*")) / "site-packages"


def test_interpreter_facts(prefix: Path) -> None:
    site = site_of(prefix)
    write(site, "torch/__init__.py", "raise ImportError('libcudnn.so.9: cannot open shared object file')")
    write(
        site, "jax/__init__.py", "import sys\n__version__ = '0.6'\nsys.stderr.write('said')\ndef devices(): return []"
    )
    write(site, "paddle/__init__.py", "import os\nos._exit(3)")
    write(
        site,
        "jax_cuda12_plugin-0.6.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: jax-cuda12-plugin\nVersion: 0.6\n",
    )
    for place in ("nvidia/cudnn/lib/libcudnn.so.9", "torch/lib/libcudnn.so.8"):
        write(site, place)
    found = host.interpreter(str(prefix / "bin/python"), {"PATH": os.environ["PATH"]})
    assert found.error == ""
    assert found.in_venv and found.prefix == str(prefix) and found.bits == 64
    rows = {row.name: row for row in found.frameworks}
    assert set(rows) == {"torch", "jax", "paddle"}
    assert "libcudnn.so.9" in rows["torch"].error
    assert (rows["jax"].version, rows["jax"].cuda, rows["jax"].devices) == ("0.6", "12", 0)
    assert "said" in rows["jax"].output
    assert "ended with code 3" in rows["paddle"].error
    assert found.duplicates[0][0] == "libcudnn.so"
    assert len(found.duplicates[0][1]) == 2
    assert ("jax-cuda12-plugin", "0.6") in found.packages


def test_interpreter_that_is_none(tmp_path: Path) -> None:
    assert "cannot be started" in host.interpreter(str(tmp_path / "python"), {}).error
    assert "ended with code" in host.interpreter("/bin/false", {}).error


def test_envforge_s_own_files_do_not_hide_modules_there(prefix: Path) -> None:
    """The probe lies beside modules called lock, plan and spec; none of them may be importable there."""
    write(
        site_of(prefix),
        "torch/__init__.py",
        "import importlib.util\n__version__ = str(importlib.util.find_spec('resolve'))",
    )
    found = host.interpreter(str(prefix / "bin/python"), {"PATH": os.environ["PATH"]})
    assert found.frameworks[0].version == "None" or "version" in found.frameworks[0].error


# -- the tiny container ----------------------------------------------------------------------------


def test_gpu_sign(machine: Path, tmp_path: Path) -> None:
    assert gpu_sign(machine)
    assert not gpu_sign(tmp_path / "empty")


def test_the_shipped_probe_is_what_its_source_makes(tmp_path: Path) -> None:
    """Built again here, the program prints the same as the one in the package."""
    from tools.build_gpu_probe import build

    made = build("x86_64", ["gcc"], tmp_path / "probe")
    env = {"NVIDIA_VISIBLE_DEVICES": "all", "OTHER": "x"}
    shipped = Path(host.__file__).parent / "data" / "gpu-probe-x86_64"
    outputs = [subprocess.run([str(one)], executable=None, env=env, capture_output=True).stdout for one in (made, made)]
    copy = tmp_path / "shipped"
    shutil.copy(shipped, copy)
    copy.chmod(0o755)
    outputs.append(subprocess.run([copy], env=env, capture_output=True).stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    assert b"env:NVIDIA_VISIBLE_DEVICES=all\n" in outputs[0]
    assert b"OTHER" not in outputs[0]
    assert outputs[0].endswith(b"done\n")


@pytest.mark.parametrize("platform", ["linux/amd64", "linux/arm64"])
def test_rootfs(platform: str) -> None:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(rootfs(platform))) as archive:
        assert archive.getmember("gpu-probe").mode == 0o755
        assert {"dev", "etc", "proc", "usr/lib"} <= set(archive.getnames())
    assert rootfs(platform) == rootfs(platform)
    assert len(rootfs(platform)) < 40_000
