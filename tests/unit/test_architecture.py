"""The rules between rooms: who may import Docker, who may start programs, which modules stay pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "envforge"
PURE = ("resolve", "plan", "render", "lock", "verify", "verdict", "diagnose", "doctor", "errors", "engine", "yamlmodel")
EFFECTS = {"docker_engine", "local_engine", "process", "host", "lockers", "registry", "record", "base"}
FORBIDDEN_IN_PURE = {"docker", "subprocess", "socket", "requests", "urllib", "time", "random"}


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            if node.module == "envforge":
                found |= {f"envforge.{alias.name}" for alias in node.names}
    return found


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_bundled" not in path.parts)


def test_only_one_module_imports_docker() -> None:
    users = {path.stem for path in modules() if any(name.split(".")[0] == "docker" for name in imports(path))}
    assert users == {"docker_engine"}


def test_only_one_module_starts_programs() -> None:
    users = {path.stem for path in modules() if "subprocess" in imports(path)}
    assert users == {"process"}


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_no_effects(name: str) -> None:
    path = PACKAGE / f"{name}.py"
    found = imports(path)
    roots = {item.split(".")[0] for item in found}
    assert not roots & FORBIDDEN_IN_PURE
    assert not {item.split(".")[1] for item in found if item.startswith("envforge.")} & EFFECTS


def test_the_rule_would_notice_a_breach(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    import docker.errors\n    from subprocess import run\n", encoding="utf-8")
    assert {"docker.errors", "subprocess"} <= imports(bad)


def test_every_command_of_the_table_is_there_and_has_an_example() -> None:
    from importlib import import_module

    from envforge.cli import COMMANDS, available

    assert set(available()) <= set(COMMANDS)
    for name, (module_name, _) in available().items():
        module = import_module(f"envforge.commands.{module_name}")
        assert module.EXAMPLE.startswith(f"envforge {name}"), name


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from envforge.cli import main; main(['--help']); "
        "print(sorted(set(sys.modules) & {'docker', 'jinja2', 'rich', 'requests', 'rattler', 'yaml', 'uv'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
