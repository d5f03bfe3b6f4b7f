"""A private Podman service for tests: own storage, own socket, ended by its own process id."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def program() -> str | None:
    return shutil.which("podman")


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """The address of a running service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = min(value for value in (soft, hard, 4096) if value > 0)
    config = folder / "containers.conf"
    # Podman asks for 1048576 open files, which a machine with a lower hard limit refuses.
    config.write_text(f'[containers]\ndefault_ulimits=["nofile={files}:{files}","nproc=4096:4096"]\n', encoding="utf-8")
    storage = [f"--root={folder / 'root'}", f"--runroot={folder / 'run'}"]
    socket = folder / "podman.sock"
    words = [str(program()), *storage, "system", "service", "--time=0", f"unix://{socket}"]
    with (folder / "service.log").open("wb") as log:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CONTAINERS_CONF": str(config), "HOME": str(folder)}
        child = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while not socket.exists() and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            yield f"unix://{socket}"
        finally:
            child.terminate()
            child.wait(timeout=30)
            subprocess.run([words[0], *storage, "rmi", "--all", "--force"], env=environment, capture_output=True)
            subprocess.run(["umount", str(folder / "root" / "overlay")], capture_output=True)
