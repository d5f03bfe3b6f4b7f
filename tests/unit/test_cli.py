"""The command line as a program: list, show, render, completion; exit codes, streams and JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envforge.cli import COMMANDS, available, main
from envforge.commands.render import write
from envforge.errors import UsageError
from envforge.plan import Rendered
from envforge.spec import names

TINY = 'schema: 1\nname: tiny\npackages: {pip: ["six==1.16.0"]}\nfiles: [{source: src, target: /work/src/}]\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs" / "src").mkdir(parents=True)
    (tmp_path / "envs" / "src" / "main.py").write_text("print(1)\n", encoding="utf-8")
    (tmp_path / "envs" / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = ran(capsys, *words, "--json")
    found = json.loads(out)
    assert isinstance(found["schema"], int)
    return code, found


def test_list_shows_the_catalogue_and_the_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "list")
    assert code == 0
    rows = {row["name"]: row for row in found["entries"]}
    assert {*names(), "tiny"} == set(rows)
    assert rows["torch-cu124"]["frameworks"] == {"torch": "2.6.0"}
    assert (rows["torch-cu124"]["cuda"], rows["torch-cu124"]["python"]) == ("12.4", "3.11")
    assert rows["jax-cpu"]["cuda"] is None
    assert (rows["tiny"]["source"], rows["tiny"]["locked"]) == ("project", False)
    (project / "lockfiles" / "tiny").mkdir(parents=True)
    (project / "lockfiles" / "tiny" / "envforge.lock.yaml").write_text("x", encoding="utf-8")
    assert next(row for row in document(capsys, "list", "tiny")[1]["entries"])["locked"] is True


def test_list_goes_on_after_a_broken_spec_and_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "envs" / "broken.yaml").write_text("name: 1\n", encoding="utf-8")
    code, out, err = ran(capsys, "list")
    assert code == 0 and "tiny" in out and "broken" not in out
    assert "envs/broken.yaml:1:7: name: expected text" in err


def test_list_with_no_match_is_exit_9(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "list", "no-such-thing")[0] == 9


def test_show_gives_each_choice_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "show", "torch-cu124")
    assert code == 0 and found["name"] == "torch-cu124" and found["cuda"]["version"] == "12.4"
    assert found["base"]["image"] == "python:3.11-slim-bookworm"
    assert {"requirement": "torch==2.6.0", "index": "default"}.items() <= found["packages"]["pip"][0].items()
    fields = {reason["field"] for reason in found["reasons"]}
    assert {"base.image", "python", "cuda", "frameworks.torch"} <= fields
    _, out, _ = ran(capsys, "show", "torch-cu124")
    assert all(reason["why"] in out for reason in found["reasons"])


def test_show_takes_flags_instead_of_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "show", "--framework", "torch=2.1.0", "--cuda", "11.8")
    assert code == 0 and found["packages"]["pip"][0]["requirement"] == "torch==2.1.0+cu118"


@pytest.mark.parametrize(
    ("words", "code", "reference"),
    [
        (["show"], 2, "usage"),
        (["show", "jax-cpu", "--cuda", "12"], 2, "usage"),
        (["show", "jax-cpu", "--no-such"], 2, "usage"),
        (["show", "no-such"], 3, "spec-not-found"),
        (["show", "jax-cpu@no-such"], 3, "unknown-variant"),
        (["show", "--framework", "torch=2.6.3"], 4, "unknown-release"),
        (
            ["show", "--framework", "torch=2.0.1", "--cuda", "11.8", "--python", "3.12"],
            4,
            "no-wheel-for-python",
        ),
        (["render", "tiny", "-o", "out"], 5, "lock-missing"),
        (["render", "jax-cpu"], 2, "usage"),
        (["rendr"], 2, "unknown-command"),
    ],
)
def test_failures_have_their_exit_code_and_document(
    words: list[str], code: int, reference: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = ran(capsys, *words, "--json")
    error = json.loads(out)["error"]
    assert (got, error["exit_code"], error["reference"]) == (code, code, reference)
    assert error["message"] and error["hint"] and f"error[{reference}]" in err
    assert not (project / "out").exists()


def test_a_bad_spec_file_is_told_line_by_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "bad.yaml").write_text("schema: 1\nname: a\npython: 3.10\npackges: {}\n", encoding="utf-8")
    code, out, err = ran(capsys, "show", "bad.yaml")
    assert (code, out) == (3, "")
    assert '  bad.yaml:3:9: python: a version must be quoted text; quote it: "3.10"' in err
    assert "  bad.yaml:4:1: packges: unknown key; did you mean 'packages'?" in err


def test_render_unlocked_writes_the_same_context_twice(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, "render", "tiny", "-o", "out", "--unlocked")
    assert code == 0 and found["locked"] is False and found["image"] == "envforge/tiny:unlocked"
    before = {row["path"]: (project / "out" / row["path"]).read_bytes() for row in found["files"]}
    assert before["files/0/main.py"] == b"print(1)\n" and b"# UNLOCKED" in before["Dockerfile"]
    assert document(capsys, "render", "tiny", "-o", "out", "--unlocked")[1] == found
    again = {path: (project / "out" / path).read_bytes() for path in before}
    assert again == before


def test_render_removes_what_no_longer_belongs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(capsys, "render", "tiny", "-o", "out", "--unlocked")
    (project / "out" / "files" / "0" / "old.py").write_text("x", encoding="utf-8")
    (project / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    ran(capsys, "render", "tiny", "-o", "out", "--unlocked")
    assert not (project / "out" / "files" / "0" / "old.py").exists()
    assert (project / "out" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_render_leaves_a_foreign_dockerfile_alone(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        write(Rendered(dockerfile="# Made by envforge \nFROM x\n"), tmp_path)
    assert caught.value.reference == "output-not-ours"
    assert (tmp_path / "Dockerfile").read_text(encoding="utf-8") == "FROM scratch\n"
    write(Rendered(dockerfile="# Made by envforge \nFROM x\n"), tmp_path, force=True)
    assert (tmp_path / "Dockerfile").read_text(encoding="utf-8").startswith("# Made by envforge")


def test_render_names_a_source_that_is_missing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(project / "envs" / "src")
    code, found = document(capsys, "render", "tiny", "-o", "out", "--unlocked")
    assert (code, found["error"]["reference"]) == (3, "file-missing")


def test_render_does_not_follow_a_link_out_of_the_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(project / "envs" / "src")
    (project / "envs" / "src").symlink_to("/etc")
    code, found = document(capsys, "render", "tiny", "-o", "out", "--unlocked")
    assert (code, found["error"]["reference"]) == (3, "file-outside")


def test_completion_scripts_know_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        code, out, _ = ran(capsys, "completion", shell)
        assert code == 0
        for name in available():
            assert name in out
        assert "torch-cu124" in out and "buildkit plain" in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completion_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "c.bash"
    script.write_text(ran(capsys, "completion", "bash")[1], encoding="utf-8")
    program = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _envforge; echo "${{COMPREPLY[@]}}"'

    def words(*typed: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", program, "x", "envforge", *typed], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert words("lis") == ["list"]
    assert words("render", "--form", "") == ["buildkit", "plain"]
    assert "jax-cpu" in words("show", "jax-")
    assert words("completion", "z") == ["zsh"]


def test_help_of_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in available():
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        assert f"example: envforge {name}" in " ".join(capsys.readouterr().out.split()), name
    assert set(available()) <= set(COMMANDS)


def test_starting_up_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; from envforge.cli import main\n"
        "code = main(['render', 'jax-cpu', '-o', sys.argv[1], '--unlocked', '-q'])\n"
        "heavy = {'docker', 'requests', 'rich', 'rattler', 'pydantic', 'packaging', 'uv', 'asyncio'}\n"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
