"""Is there a GPU at all, and the root file system of the tiny container that proves its passthrough."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from envforge import resources
from envforge.errors import EngineError

_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
# The NVIDIA hook mounts into these and refreshes the loader's cache in /etc.
_FOLDERS = ("dev", "etc", "lib", "lib64", "proc", "run", "sys", "tmp", "usr", "usr/bin", "usr/lib", "usr/lib64")
_MULTIARCH = {"x86_64": "usr/lib/x86_64-linux-gnu", "aarch64": "usr/lib/aarch64-linux-gnu"}


def rootfs(platform: str) -> bytes:
    """A tar for the engine's platform ("linux/amd64"). EngineError ``gpu-probe-platform`` for any other one."""
    machine = _MACHINES.get(platform)
    if machine is None:
        hint = "GPUs need an engine for linux/amd64 or linux/arm64"
        raise EngineError("gpu-probe-platform", f"there is no GPU probe for {platform}", hint=hint)
    program = resources.data(f"gpu-probe-{machine}").read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in (*_FOLDERS, _MULTIARCH[machine]):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name in ("etc/ld.so.conf", "etc/ld.so.cache"):
            archive.addfile(tarfile.TarInfo(name))
        member = tarfile.TarInfo("gpu-probe")
        member.size, member.mode = len(program), 0o755
        archive.addfile(member, io.BytesIO(program))
    return buffer.getvalue()


def gpu_sign(root: Path = Path("/")) -> bool:
    """Whether this machine shows any sign of an NVIDIA GPU, at the cost of two directory listings."""
    if any((root / "dev").glob("nvidia*")) or (root / "dev/dxg").exists():
        return True
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False
