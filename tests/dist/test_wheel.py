"""What ships: the wheel holds templates, smoke tests, locks and Compose files, and works away from a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.network, pytest.mark.heavy]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([uv.find_uv_bin(), "build", "-q", "--wheel", "-o", out, ROOT], check=True)
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_carries_the_shipped_folders(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "envforge/_bundled/templates/",
        "envforge/_bundled/smoke_tests/run.py",
        "envforge/_bundled/lockfiles/jax-cpu/envforge.lock.yaml",
        "envforge/_bundled/compose/",
        "envforge/catalog/jax-cpu.yaml",
        "envforge/py.typed",
    ):
        assert any(name.startswith(part) for name in names), part
    assert not any(name.startswith(("tests/", "tools/", "benchmarks/")) for name in names)


def test_an_installed_wheel_renders_and_checks(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([uv.find_uv_bin(), "pip", "install", "-q", "--python", python, wheel], check=True)
    envforge = tmp_path / "venv" / "bin" / "envforge"
    env = {**os.environ, "ENVFORGE_HOME": str(tmp_path / "home")}

    def run(*words: str) -> str:
        done = subprocess.run([envforge, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(run("list", "--json"))
    assert {"jax-cpu", "torch-cu118", "tf-cpu"} <= {entry["name"] for entry in listed["entries"]}
    run("render", "jax-cpu", "-o", "out")
    assert (tmp_path / "out" / "Dockerfile").read_text(encoding="utf-8").lstrip().startswith("#")
    verdict = json.loads(run("check", "torch-cu124", "--json"))
    assert verdict["verdict"] in ("ok", "ok-with-limits")
