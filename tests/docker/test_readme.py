"""The README's first line, as a newcomer would paste it, in a clean container: Python and venv, no engine."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import docker
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.heavy]


def quick_start() -> list[str]:
    """The commands of the quick start block."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## Quick start", 1)[1]
    block = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [line for line in block.group(1).splitlines() if line.strip()]


def test_the_quick_start_is_two_lines() -> None:
    lines = quick_start()
    assert len(lines) == 2
    assert "envforge build jax-cpu" in lines[0]
    assert "pytest" in lines[1]


def checkout_tar() -> bytes:
    """What a fresh clone holds: the tracked files as they are now."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in names.decode().split("\0"):
            if name and (ROOT / name).is_file():
                tar.add(ROOT / name, arcname=f"checkout/{name}")
    return stream.getvalue()


@pytest.mark.timeout(1200)
def test_first_line_in_a_clean_container(bookworm_base: str) -> None:
    client = docker.from_env(timeout=1200)
    env = {"LANG": "C.UTF-8", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    bundle = os.environ.get("SSL_CERT_FILE")
    volumes = {}
    if bundle:  # a host behind a TLS proxy: the container needs the same certificates
        volumes[bundle] = {"bind": "/host-ca.pem", "mode": "ro"}
        env |= dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), "/host-ca.pem")
    for key in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        if key in os.environ:
            env[key] = os.environ[key]
    container = client.containers.create(
        bookworm_base, ["bash", "-c", quick_start()[0]], environment=env, volumes=volumes, working_dir="/checkout"
    )
    try:
        container.put_archive("/", checkout_tar())
        container.start()
        code = container.wait()["StatusCode"]
        output = container.logs().decode()
        assert code == 0, output[-4000:]
        assert "engine: local" in output
        assert "jax-cpu: passed" in output
    finally:
        container.remove(force=True, v=True)
        client.close()
