"""Compose files started for real with Compose v2: GPU by CDI and by the NVIDIA driver, files of the caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envforge.docker_engine import DockerEngine
from tests.docker import engines
from tests.docker.test_gpu_passthrough import LOOK, _load, _sound

pytestmark = [
    pytest.mark.docker,
    pytest.mark.heavy,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="a second engine needs root"),
]


@pytest.fixture(scope="module")
def archive(bookworm_base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("image") / "base.tar"
    engine = DockerEngine.connect()
    target.write_bytes(b"".join(engine.export(bookworm_base)))
    engine.close()
    return target


@pytest.fixture(scope="module", params=["cdi", "nvidia"])
def engine(
    request: pytest.FixtureRequest, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, engines.Engine]]:
    start = engines.cdi_engine if request.param == "cdi" else engines.hook_engine
    with start(tmp_path_factory.mktemp(request.param)) as running:
        _load(running.address, archive)
        yield request.param, _sound(running)


def compose(address: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = engines.compose_program(engines.trixie_root())
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "DOCKER_HOST": address, "JUPYTER_TOKEN": "secret"}
    return subprocess.run([program, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=180)


def test_training_service_gets_the_gpu(engine: tuple[str, engines.Engine], bookworm_base: str, tmp_path: Path) -> None:
    form, running = engine
    words = ["compose", bookworm_base, "--service", "train", "--gpus", "all", "-o", "compose.yaml"]
    words += ["--cdi"] if form == "cdi" else []
    look = LOOK + "open('made', 'w').write('x')\n"
    done = subprocess.run(
        [sys.executable, "-m", "envforge", *words, "--env", "NVML_STUB_COUNT=3", "--", "python3", "-c", look],
        cwd=tmp_path,
        env=os.environ | {"DOCKER_HOST": running.address, "ENVFORGE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    up = compose(running.address, tmp_path, "up", "--no-color", "--no-log-prefix", "--exit-code-from", "train")
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        # Compose may still end the line with other words when the container stops.
        found, _ = json.JSONDecoder().raw_decode(up.stdout, up.stdout.index('{"answers"'))
        assert found["node"] and found["count"] == 3 and found["answers"] == [0, 0, 0]
        assert (tmp_path / "made").stat().st_uid == os.getuid()
    finally:
        compose(running.address, tmp_path, "down", "--volumes")


def test_compose_reads_every_file_we_make(bookworm_base: str, tmp_path: Path) -> None:
    """`docker compose config` is the second opinion beside the specification's schema."""
    from envforge import compose_files
    from envforge.passthrough import parse_gpus

    for server in compose_files.SERVERS:
        for gpus in ("none", "all", "2", "device=0,1"):
            request = compose_files.ComposeRequest(
                name="torch-cu124",
                image=bookworm_base,
                services=compose_files.SERVICES,
                gpus=parse_gpus(gpus),
                server=server,  # type: ignore[arg-type]
                env={"A": "$HOME ${X}"},
            )
            (tmp_path / "compose.yaml").write_text(compose_files.render(request))
            done = compose("unix:///nonexistent", tmp_path, "config", "--format", "json")
            assert done.returncode == 0, done.stderr
            train = json.loads(done.stdout)["services"]["train"]
            assert train["environment"]["A"] in ("$HOME ${X}", "$$HOME $${X}")


def test_compose_refuses_count_with_ids(tmp_path: Path) -> None:
    """What we refuse is refused by Compose too."""
    text = (
        "services:\n  a:\n    image: x\n    deploy:\n      resources:\n        reservations:\n          devices:\n"
        "            - {driver: nvidia, count: 1, device_ids: ['0'], capabilities: [gpu]}\n"
    )
    (tmp_path / "compose.yaml").write_text(text)
    done = compose("unix:///nonexistent", tmp_path, "config")
    assert done.returncode != 0
    assert "exclusive" in done.stderr


def test_jupyter_needs_its_token(bookworm_base: str, tmp_path: Path) -> None:
    from envforge import compose_files

    request = compose_files.ComposeRequest(name="a", image=bookworm_base, services=("jupyter",))
    (tmp_path / "compose.yaml").write_text(compose_files.render(request))
    program = engines.compose_program(engines.trixie_root())
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_HOST": "unix:///nonexistent"}
    done = subprocess.run([program, "config"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert "set JUPYTER_TOKEN" in done.stderr
