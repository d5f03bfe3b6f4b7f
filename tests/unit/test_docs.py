"""Every command and YAML block of README and docs: parsed, validated, and run where that changes nothing.

A YAML block says in its first line which file it is. A command that is to fail says so: ``# exit 4``.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envforge import cli, compat, config, fleet, matrix, spec
from envforge.errors import EnvforgeError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "decisions" not in path.parts)]
PAGES = [page for page in PAGES if page.name != "import-report.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# These read and judge, or write only where they are told to.
HARMLESS = {"list", "show", "check", "choose", "diagnose", "export", "completion"}
SHELL_WORDS = {"python3", ".", "export", "docker"}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> Iterator[tuple[str, int]]:
    """(line, exit code it is said to have) of each command."""
    for block in blocks(text, "bash"):
        for line in block.splitlines():
            if line.strip() and not line.startswith("#"):
                said = re.search(r"  # exit (\d+)$", line)
                yield line[: said.start()] if said else line, int(said[1]) if said else 0


def own(line: str) -> list[list[str]]:
    """The envforge calls of a line (`a && b`), each as words after ``envforge``."""
    found = []
    for part in re.split(r" && |; ", line):
        words = shlex.split(part)
        if words and words[0].rpartition("/")[2] == "envforge":
            found.append(words[1 : words.index(">")] if ">" in words else words[1:])
    return found


def parse(words: list[str]) -> None:
    """UsageError when the real parser does not take the words."""
    if words in (["--help"], ["--version"]):
        return
    if words[0] not in cli.available():
        raise AssertionError(f"there is no command {words[0]}")
    before = words[: words.index("--")] if "--" in words else words
    parser = cli.build_parser(words[0])
    parser.parse_args(before[1:] if parser.get_default("_takes_command") else words[1:])


def place(page: Path, folder: Path) -> list[Path]:
    """Write the YAML blocks of a page where their first line says; returns the files."""
    written = []
    for block in blocks(page.read_text(encoding="utf-8"), "yaml"):
        head = re.fullmatch(r"# ([\w./-]+\.yaml)", block.splitlines()[0])
        assert head is not None, f"{page.name}: a YAML block does not name its file:\n{block}"
        path = folder / head[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, encoding="utf-8")
        written.append(path)
    return written


def validate(path: Path) -> None:
    """EnvforgeError when the file is not what its name says."""
    content = path.read_bytes()
    if path.name.startswith("fleet"):
        fleet.loads(content, source=str(path), tables=compat.load())
    elif path.name.startswith("matrix"):
        matrix.loads(content, source=str(path))
    elif path.name == config.PROJECT_FILE:
        config.load({"ENVFORGE_CONFIG": str(path)})
    else:
        spec.load(str(path), cwd=path.parent.parent)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with what the pages assume: the examples and a log."""
    (tmp_path / "docs").mkdir()
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    (tmp_path / "build.log").write_text("Failed to initialize NVML: Driver/library version mismatch\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_one_the_parser_takes(name: str) -> None:
    for line, _ in commands((ROOT / name).read_text(encoding="utf-8")):
        calls = own(line)
        assert calls or shlex.split(line)[0] in SHELL_WORDS, line
        for words in calls:
            try:
                parse(words)
            except EnvforgeError as error:
                pytest.fail(f"{name}: {line}\n{error.message}")


@pytest.mark.parametrize("name", NAMES)
def test_every_yaml_block_is_valid(name: str, project: Path) -> None:
    for path in place(ROOT / name, project):
        validate(path)


def _harmless(words: list[str]) -> bool:
    if words[0] in ("fleet", "matrix"):
        return words[1] == "plan" or words[:2] == ["matrix", "emit"]
    if words[0] == "render":
        return "--unlocked" in words
    needs_more = "--host" in words or "pylock" in words or "--oom" in words
    return words[0] in HARMLESS and not needs_more


@pytest.mark.parametrize("name", [name for name in NAMES if "reference" not in name])
def test_commands_that_only_read_end_as_the_page_says(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(ROOT / name, project)
    (project / config.PROJECT_FILE).unlink(missing_ok=True)
    for line, code in commands((ROOT / name).read_text(encoding="utf-8")):
        for words in own(line):
            if _harmless(words):
                got = cli.main(words)
                said = capsys.readouterr()
                assert got == code, f"{name}: {line}\nexit {got}\n{said.out[-600:]}{said.err[-600:]}"
                assert said.out.strip() or said.err.strip() or "-o" in words


def test_enough_is_really_run() -> None:
    """A change of the fence marks must not make the tests above empty."""
    lines = [line for page in PAGES for line, _ in commands(page.read_text(encoding="utf-8"))]
    run = [words for line in lines for words in own(line) if _harmless(words)]
    assert len(lines) > 90 and len(run) > 40
    assert sum(len(blocks(page.read_text(encoding="utf-8"), "yaml")) for page in PAGES) >= 8


def test_planted_mistakes_are_found(project: Path) -> None:
    with pytest.raises(EnvforgeError):
        parse(["check", "jax-cpu", "--no-such-option"])
    with pytest.raises(AssertionError, match="no command frobnicate"):
        parse(["frobnicate"])
    page = project / "page.md"
    page.write_text("```yaml\n# envs/bad.yaml\nschema: 1\nname: bad\nframworks: {}\n```\n")
    (bad,) = place(page, project)
    with pytest.raises(EnvforgeError, match="problem"):
        validate(bad)
    assert list(commands("```bash\nenvforge check x  # exit 4\n```\n")) == [("envforge check x", 4)]


def test_site_builds_and_links_hold(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "tutorial.html").is_file()


def links(page: Path) -> list[tuple[str, str]]:
    """(path, anchor) of each link of a page to another file."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", text)
    return [(path, anchor) for path, anchor in found if path or anchor]


def broken(page: Path) -> list[str]:
    """Links of a page whose file or heading is not there."""
    wrong = []
    for path, anchor in links(page):
        target = page.parent / path if path else page
        if not target.exists():
            wrong.append(path)
        elif anchor and anchor not in headings(target):
            wrong.append(f"{path}#{anchor}")
    return wrong


def headings(page: Path) -> set[str]:
    """The anchors of a page, as Markdown makes them from its headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()) for text in found}


@pytest.mark.parametrize("name", NAMES)
def test_links_hold(name: str) -> None:
    assert broken(ROOT / name) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two words\n[a](gone.md) [b](#two-words) [c](page.md#three) [d](https://example.org/x)\n")
    assert broken(page) == ["gone.md", "page.md#three"]
    assert sum(len(links(one)) for one in PAGES) > 30


@pytest.mark.parametrize(
    ("page_key", "words"),
    [
        ("list", ["list", "jax"]),
        ("show", ["show", "jax-cpu"]),
        ("choose", ["choose"]),
        ("check", ["check", "torch-cu128", "--driver", "470.57.02", "--gpu", "A100"]),
        ("fleet plan", ["fleet", "plan", "docs/examples/fleet.yaml"]),
        ("matrix plan, matrix run", ["matrix", "plan", "docs/examples/matrix.yaml"]),
        ("lock --check", ["lock", "jax-cpu", "--check"]),
        ("render", ["render", "jax-cpu", "-o", "out"]),
        ("diagnose", ["diagnose", "build.log"]),
        ("export", ["export", "jax-cpu", "--format", "requirements"]),
    ],
)
def test_real_documents_have_the_keys_of_the_page(
    page_key: str, words: list[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "reference" / "json.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{re.escape(page_key)}` \| (.*) \|$", page, re.MULTILINE)
    assert row is not None
    cli.main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert set(re.findall(r"`(\w+)`", row[1])) <= set(document)
    for key, part in re.findall(rf"^\| `{words[0]}`: `(\w+)` \| (.*) \|$", page, re.MULTILINE):
        found = document[key]
        for one in [found] if isinstance(found, dict) else found:
            assert set(re.findall(r"`(\w+)`", part)) <= set(one), key
