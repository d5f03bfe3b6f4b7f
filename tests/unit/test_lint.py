"""The tree is lint-clean and strictly typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str, cwd: Path = ROOT) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    code, text = run("ruff", "check", "--no-cache", ".")
    assert code == 0, text[-4000:]


@pytest.mark.timeout(600)
def test_mypy_strict_finds_nothing(tmp_path: Path) -> None:
    code, text = run("mypy", "--cache-dir", str(tmp_path / "cache"))
    assert code == 0, text[-4000:]


def test_ruff_would_notice(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import os\n", encoding="utf-8")
    code, text = run("ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(tmp_path))
    assert code == 1
    assert "F401" in text
