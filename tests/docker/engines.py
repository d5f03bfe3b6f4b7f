"""Second engines for GPU tests: Docker 26 with CDI in a Debian root, and a dockerd with a stand-in NVIDIA hook.

Both have their own data folder, socket and network namespace, and are ended by their own process id. The
namespace is a must: a dockerd without a bridge removes docker0, which belongs to the machine's own engine.
They need root; their containers have no network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

STUB = Path(__file__).parents[1] / "stubs" / "nvml.c"
TARGET = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
PACKAGES = "docker.io,docker-compose,iptables,ca-certificates"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A running engine. ``folder``/cdi holds its CDI specs; ``folder``/mode what the hook does next."""

    address: str
    folder: Path

    def set_mode(self, text: str) -> None:
        """What the stand-in hook does: ``ok``, ``nothing``, or the words it fails with."""
        (self.folder / "mode").write_text(text, encoding="utf-8")

    def set_cdi(self, spec: dict[str, object] | str | None) -> None:
        """Replace the CDI spec (None: none at all)."""
        file = self.folder / "cdi" / "nvidia.yaml"
        file.unlink(missing_ok=True)
        if spec is not None:
            file.write_text(spec if isinstance(spec, str) else yaml.safe_dump(spec), encoding="utf-8")


def stub_library(folder: Path) -> Path:
    """The stub NVML, compiled."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", target, STUB], check=True)
    return target


def cdi_spec(
    *, devices: tuple[str, ...] = ("0", "all"), library: str = "/opt/gpu/libnvidia-ml.so.1"
) -> dict[str, object]:
    """A spec as nvidia-ctk writes them: one node per device, the library and a variable for all."""
    node = {"path": "/dev/nvidia0", "hostPath": "/opt/gpu/nvidia0"}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": [node]}} for name in devices],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [{"hostPath": library, "containerPath": TARGET, "options": ["ro", "nosuid", "nodev", "bind"]}],
        },
    }


def compose_program(root: Path) -> Path:
    """Compose v2 inside that root; it is one static file and runs outside as well."""
    return root / "usr/libexec/docker/cli-plugins/docker-compose"


def trixie_root() -> Path:
    """A Debian trixie with docker.io 26, made once per machine (about a minute, 500 MB)."""
    place = os.environ.get("ENVFORGE_TEST_TRIXIE")
    root = Path(place) if place else Path.home() / ".cache" / "envforge-tests" / "trixie-docker"
    if compose_program(root).exists():
        return root
    making = root.with_name(f"{root.name}.{os.getpid()}")
    making.parent.mkdir(parents=True, exist_ok=True)
    words = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", str(making)]
    shutil.rmtree(root, ignore_errors=True)
    try:
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        making.rename(root)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return root


def _wait(address: str, child: subprocess.Popen[bytes], log: Path) -> None:
    """Until the engine answers; its log when it ends before."""
    import docker

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        try:
            client = docker.DockerClient(base_url=address, timeout=5)
            client.ping()
            client.close()
            return
        except Exception:
            time.sleep(0.2)
    raise AssertionError("the engine does not answer:\n" + log.read_text(errors="replace")[-3000:])


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(timeout=10)


_CDI_START = r"""
set -eu
root=$1; folder=$2
mount --make-rprivate /
mount --rbind "$root" "$root"
for name in proc sys dev tmp; do mount --rbind /$name "$root/$name"; done
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/etc/cdi" "$root/etc/docker" "$root/opt/gpu" "$root/opt/engine" "$root/var/lib/docker"
mount --bind "$folder/cdi" "$root/etc/cdi"
mount --bind "$folder/gpu" "$root/opt/gpu"
mount --bind "$folder/socket" "$root/opt/engine"
mount --bind "$folder/data" "$root/var/lib/docker"
cd "$root"
pivot_root . mnt
cd /
umount -l /mnt
exec /usr/sbin/dockerd --config-file /opt/engine/daemon.json
"""


@contextmanager
def cdi_engine(folder: Path) -> Iterator[Engine]:
    """Docker 26.1 with CDI on; ``folder``/gpu holds a node and the stub library that specs may name."""
    root = trixie_root()
    for name in ("cdi", "gpu", "socket", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    stub_library(folder / "gpu")
    (folder / "opt").mkdir(exist_ok=True)
    if not (folder / "opt" / "gpu").exists():
        (folder / "opt" / "gpu").symlink_to("../gpu")  # the same paths seen from outside
    node = folder / "gpu" / "nvidia0"
    if not node.exists():
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        node.chmod(0o666)
    settings = {
        "features": {"cdi": True},
        "cdi-spec-dirs": ["/etc/cdi"],
        "hosts": ["unix:///opt/engine/docker.sock"],
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
    }
    (folder / "socket" / "daemon.json").write_text(json.dumps(settings), encoding="utf-8")
    log = folder / "dockerd.log"
    words = ["unshare", "--mount", "--net", "bash", "-c", _CDI_START, "start", str(root), str(folder)]
    with log.open("wb") as stream:
        child = subprocess.Popen(words, stdout=stream, stderr=stream, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    address = f"unix://{folder}/socket/docker.sock"
    try:
        _wait(address, child, log)
        yield Engine(address=address, folder=folder)
    finally:
        _end(child)


# Reads the OCI state, finds the root file system and does what the real hook does: a node, a library.
_HOOK = r"""#!/usr/bin/env python3
import json, os, subprocess, sys
folder = {folder!r}
mode = open(os.path.join(folder, "mode")).read().strip()
state = json.load(sys.stdin)
bundle = state.get("bundle") or state.get("bundlePath")
config = json.load(open(os.path.join(bundle, "config.json")))
asked = [one.partition("=")[2] for one in config["process"]["env"] if one.startswith("NVIDIA_VISIBLE_DEVICES=")]
with open(os.path.join(folder, "asked"), "a") as stream:
    stream.write(",".join(asked) + "\n")
if mode == "nothing" or not asked:
    sys.exit(0)
if mode != "ok":
    sys.stderr.write(mode + "\n")
    sys.exit(1)
root = config["root"]["path"]
root = root if os.path.isabs(root) else os.path.join(bundle, root)
target = root + {target!r}
script = (
    'mkdir -p "$(dirname "$1")" && touch "$1" && mount --bind "$2" "$1" && rm -f "$3/dev/nvidia0" '
    '&& mknod -m 666 "$3/dev/nvidia0" c 1 3'
)
library = os.path.join(folder, "libnvidia-ml.so.1")
words = ["nsenter", "-t", str(state["pid"]), "-m", "sh", "-c", script, "hook", target, library, root]
subprocess.run(words, check=True)
"""


@contextmanager
def hook_engine(folder: Path) -> Iterator[Engine]:
    """The system's own dockerd with a stand-in ``nvidia-container-runtime-hook`` on its PATH."""
    tools = folder / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    stub_library(folder)
    hook = tools / "nvidia-container-runtime-hook"
    hook.write_text(_HOOK.format(folder=str(folder), target=TARGET), encoding="utf-8")
    hook.chmod(0o755)
    (folder / "mode").write_text("ok", encoding="utf-8")
    log = folder / "dockerd.log"
    address = f"unix://{folder}/docker.sock"
    words: list[object] = [
        "unshare",
        "--net",
        "dockerd",
        "-H",
        address,
        "--data-root",
        folder / "data",
        "--exec-root",
        folder / "exec",
    ]
    words += [
        "--pidfile",
        folder / "pid",
        "--bridge",
        "none",
        "--iptables=false",
        "--config-file",
        folder / "daemon.json",
    ]
    words += ["--containerd-namespace", "envforge-hook", "--containerd-plugins-namespace", "envforge-hook-plugins"]
    (folder / "daemon.json").write_text("{}", encoding="utf-8")
    env = {"PATH": f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin"}
    with log.open("wb") as stream:
        child = subprocess.Popen([str(word) for word in words], stdout=stream, stderr=stream, env=env)
    try:
        _wait(address, child, log)
        yield Engine(address=address, folder=folder)
    finally:
        _end(child)
