"""Every tracked file: no address of a default package index, no path of a developer's machine, nothing huge."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Spelled apart so that this file does not match itself.
INDEX = re.compile("(" + "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "deb" + r"\.debian\.org"]) + ")")
MACHINE = re.compile("(" + "|".join(["/wo" + "rk/(main|shared)", "/ro" + "ot/(?!\\.cache)", "bash_" + "jobs"]) + ")")


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def hits(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{number}")
    return found


def test_no_default_index_address_in_the_tree() -> None:
    assert hits(INDEX, tracked()) == []


def test_no_path_of_a_developers_machine_in_the_tree() -> None:
    assert hits(MACHINE, tracked()) == []


def test_the_search_finds_a_planted_address(tmp_path: Path) -> None:
    planted = tmp_path / "requirements.txt"
    planted.write_text("--index-url https://pypi" + ".org/simple\n", encoding="utf-8")
    assert len(hits(INDEX, [planted])) == 1


def test_no_large_files() -> None:
    assert [str(path) for path in tracked() if path.is_file() and path.stat().st_size > 1_500_000] == []
