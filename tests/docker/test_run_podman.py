"""`envforge run` on Podman's socket: files of the caller, exit codes, shared memory, and the named cause of no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envforge.docker_engine import DockerEngine
from tests import podman

pytestmark = [
    pytest.mark.docker,
    pytest.mark.heavy,
    pytest.mark.skipif(podman.program() is None, reason="no podman here"),
]


@pytest.fixture(scope="module")
def address(bookworm_base: str) -> Iterator[str]:
    import docker

    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="envforge-podman-") as name:
        folder = Path(name)
        engine = DockerEngine.connect()
        archive = folder / "image.tar"
        archive.write_bytes(b"".join(engine.export(bookworm_base)))
        engine.close()
        with podman.service(folder) as found:
            client = docker.DockerClient(base_url=found, timeout=300)
            with archive.open("rb") as stream:
                client.images.load(stream)
            client.close()
            yield found


def start(
    address: str, image: str, place: Path, *words: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "envforge", "run", image, "--no-network", *options, "--", *words],
        cwd=place,
        env=os.environ | {"DOCKER_HOST": address, "ENVFORGE_HOME": str(place.parent / "home")},
        capture_output=True,
        text=True,
        timeout=180,
    )


def test_files_exit_code_and_shared_memory(address: str, bookworm_base: str, tmp_path: Path) -> None:
    place = tmp_path / "project"
    place.mkdir()
    script = "id -u; echo x > made; df -k /dev/shm | tail -1 | awk '{print $2}'; exit 7"
    done = start(address, bookworm_base, place, "sh", "-c", script, options=("--shm-size", "128m"))
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{os.getuid()}\n{128 * 1024}\n"
    assert (place / "made").stat().st_uid == os.getuid()


def test_a_promised_gpu_is_refused_by_name(address: str, bookworm_base: str, tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    done = start(address, bookworm_base, tmp_path, "echo", "ran", options=("--gpus", "all"))
    assert done.returncode == 6
    assert "gpu-none" in done.stderr
    assert "ran" not in done.stdout
