"""Builds envforge/data/gpu-probe-<machine> from tools/gpu_probe.c with any C compiler.

    python tools/build_gpu_probe.py x86_64 gcc
    python tools/build_gpu_probe.py aarch64 zig cc -target aarch64-linux-none
"""

from __future__ import annotations

import sys
from pathlib import Path

from envforge import process

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ("-Os", "-static", "-nostdlib", "-nostartfiles", "-ffreestanding", "-fno-builtin", "-fno-stack-protector")
LINK = ("-fno-asynchronous-unwind-tables", "-fno-pic", "-Wl,--build-id=none", "-s")
GNU_LINK = ("-Wl,-z,noseparate-code",)  # saves two pages; zig's linker does not know it


def build(machine: str, compiler: list[str], target: Path | None = None) -> Path:
    """Compile for ``machine``; raises SystemExit with the compiler's words when it fails."""
    output = target or ROOT / "envforge" / "data" / f"gpu-probe-{machine}"
    link = LINK if "zig" in " ".join(compiler) else (*LINK, *GNU_LINK)
    done = process.run([*compiler, *FLAGS, *link, "-o", output, ROOT / "tools" / "gpu_probe.c"], timeout=120)
    if not done.ok:
        raise SystemExit("\n".join(done.tail()))
    return output


if __name__ == "__main__":
    made = build(sys.argv[1], sys.argv[2:])
    print(f"{made}: {made.stat().st_size} bytes")
