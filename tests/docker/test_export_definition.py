"""The steps of an exported Apptainer definition, run as root in a container of its base, as Apptainer would."""

from __future__ import annotations

import os
from pathlib import Path

import docker
import pytest

from envforge import cli

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.heavy]


@pytest.mark.timeout(900)
def test_the_steps_make_an_environment_that_works(bookworm_base: str, tmp_path: Path) -> None:
    target = tmp_path / "jax.def"
    assert cli.main(["export", "jax-cpu", "--format", "apptainer", "-o", str(target), "-q"]) == 0
    text = target.read_text(encoding="utf-8")
    post = text.split("\n%post\n")[1].split("\n%environment\n")[0]
    variables = text.split("\n%environment\n")[1].split("\n%labels\n")[0]
    probe = "cd /work && python -c 'import jax; print(jax.__version__, jax.numpy.arange(4).sum())' && ls /run/envforge"
    environment = {
        key: os.environ[key] for key in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL") if key in os.environ
    }
    volumes = {}
    if bundle := os.environ.get("SSL_CERT_FILE"):  # a host behind a TLS proxy
        volumes[bundle] = {"bind": "/host-ca.pem", "mode": "ro"}
        environment |= {"SSL_CERT_FILE": "/host-ca.pem", "PIP_CERT": "/host-ca.pem"}
    client = docker.from_env(timeout=900)
    container = client.containers.create(
        bookworm_base, ["sh", "-c", f"( {post}\n) && {variables}\n{probe}"], environment=environment, volumes=volumes
    )
    try:
        container.start()
        container.wait()
        log = container.logs().decode(errors="replace")
    finally:
        container.remove(force=True, v=True)
    assert "\n0.10.2 6\n" in log, log[-3000:]
    assert "/run/envforge" in log.splitlines()[-1] and "No such file" in log.splitlines()[-1]
