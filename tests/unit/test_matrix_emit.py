"""Emitted workflows against the schemas that GitHub and GitLab publish (vendored by check-jsonschema)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envforge import matrix_emit
from envforge.matrix import Cell, Plan, TestRow

SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}


def plan() -> Plan:
    rows = {
        "cpu": TestRow(name="cpu", engine="docker"),
        "a100": TestRow(name="a100", gpus="all", labels=("self-hosted", "a100")),
    }
    cells = (
        Cell("x-py3.11/cpu", "x", "cpu", "planned"),
        Cell("x-py3.11/a100", "x", "a100", "planned", allow_failure=True),
    )
    return Plan(name="night", builds=(), cells=cells, tests=rows, level=4)


def check(system: str, path: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[system], str(path)]
    if system == "gitlab":
        words += ["--data-transform", "gitlab-ci"]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.parametrize("system", SCHEMAS)
def test_the_workflow_is_what_the_system_reads(system: str, tmp_path: Path) -> None:
    path = tmp_path / "ci.yml"
    path.write_text(matrix_emit.emit(plan(), system, matrix_file="m.yaml"), encoding="utf-8")
    done = check(system, path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("system", "key"), [("github", "timeout-minutes:"), ("gitlab", "script:")])
def test_a_wrong_workflow_is_refused(system: str, key: str, tmp_path: Path) -> None:
    text = matrix_emit.emit(plan(), system, matrix_file="m.yaml")
    assert key in text
    path = tmp_path / "ci.yml"
    path.write_text(text.replace(key, "no-such-key:"), encoding="utf-8")
    assert check(system, path).returncode != 0
