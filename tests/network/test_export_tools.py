"""What `export` writes is taken by another program: uv reads both pip formats and would install the same set."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from envforge import cli, lock

pytestmark = pytest.mark.network


@pytest.mark.parametrize(("form", "name"), [("pylock", "pylock.toml"), ("requirements", "requirements.txt")])
def test_uv_would_install_the_locked_set(form: str, name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    assert cli.main(["export", "jax-cpu", "--format", form, "-o", str(target), "-q"]) == 0
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    command = [
        find_uv_bin(),
        "pip",
        "sync",
        "--preview",
        "--dry-run",
        "--python",
        str(tmp_path / "v" / "bin" / "python"),
    ]
    checked = [] if form == "pylock" else ["--require-hashes"]
    done = subprocess.run(
        [*command, "--python-version", "3.11", *checked, str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = lock.read("jax-cpu")
    assert found is not None
    installed = dict(re.findall(r"^ \+ ([\w.-]+)==(\S+)", done.stderr, re.MULTILINE))
    assert installed == {one.name: one.version for one in found.pip}
