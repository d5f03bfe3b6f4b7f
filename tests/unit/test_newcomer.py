"""What a newcomer stumbles over: each message must say the next step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def envforge(*words: str, cwd: Path, closed: bool = False) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "envforge", *words]
    if closed:  # stdout is closed before the program starts
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(cwd / "home")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def document(*words: str, cwd: Path) -> tuple[int, dict[str, Any]]:
    code, out, _ = envforge(*words, "--json", cwd=cwd)
    return code, json.loads(out)


def test_an_imported_spec_is_named_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("six==1.16.0\n", encoding="utf-8")
    (tmp_path / "envs").mkdir()
    code, _, err = envforge("import", "requirements.txt", "-o", "envs/mylab.yaml", cwd=tmp_path)
    assert code == 0, err
    code, found = document("show", "mylab", cwd=tmp_path)
    assert (code, found["name"]) == (0, "mylab")


def test_a_command_without_its_dashes_is_explained(tmp_path: Path) -> None:
    code, _, err = envforge("run", "jax-cpu", "python", "my.py", cwd=tmp_path)
    assert code == 2
    assert "stands behind --" in err


@pytest.mark.parametrize("driver", ["latest", "12.4", "99999.0"])
def test_what_is_no_driver_version_is_a_usage_error(driver: str, tmp_path: Path) -> None:
    code, found = document("check", "jax-cpu", "--driver", driver, cwd=tmp_path)
    assert code == 2
    assert found["error"]["reference"] == "driver-version"
    assert "535.104.05" in found["error"]["hint"]


def test_a_bare_branch_is_its_first_release(tmp_path: Path) -> None:
    code, found = document("check", "jax-cuda13", "--driver", "580", cwd=tmp_path)
    assert code == 0
    assert found["driver"]["answer"] == "native"


def test_a_closed_stdout_is_no_bug(tmp_path: Path) -> None:
    code, _, err = envforge("list", cwd=tmp_path, closed=True)
    assert code == 0, err
    assert "bug" not in err


@pytest.mark.parametrize("base", ["windows", "python:3.11-windowsservercore"])
def test_a_windows_base_is_a_conflict(base: str, tmp_path: Path) -> None:
    code, found = document("check", "--framework", "torch=2.6.0", "--base", base, cwd=tmp_path)
    assert code == 4
    assert "not-linux" in {item["reference"] for item in found["findings"]}


def test_an_empty_gpu_is_a_usage_error(tmp_path: Path) -> None:
    assert document("check", "torch-cu124", "--gpu", "", cwd=tmp_path)[0] == 2
