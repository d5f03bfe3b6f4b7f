"""`clean`: shows first, removes only with --yes, only what is envforge's own."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from envforge import cli, paths
from envforge.commands import clean


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path / "home"))
    for name in ("prefixes/jax-cpu-0123456789ab/lib", "cache/uv", "records/jax-cpu"):
        (paths.home() / name).mkdir(parents=True)
        (paths.home() / name / "file").write_text("x" * 10_000, encoding="utf-8")
    (paths.home() / "logs").mkdir()
    (paths.home() / "logs" / "jax-cpu-20260101-000000-abcdef.log").write_text("log", encoding="utf-8")
    (tmp_path / "mine").write_text("keep", encoding="utf-8")
    return tmp_path


def _run(*words: str) -> tuple[int, dict[str, object]]:
    out = io.StringIO()
    from contextlib import redirect_stdout

    with redirect_stdout(out):
        code = cli.main(["clean", "--json", *words])
    return code, json.loads(out.getvalue())


def test_nothing_goes_without_yes(full: Path) -> None:
    code, document = _run("prefixes", "caches", "logs", "records")
    assert code == 0 and document["removed"] is False
    items = document["items"]
    assert isinstance(items, list)
    assert sorted(item["kind"] for item in items) == ["caches", "logs", "prefixes", "records"]
    assert isinstance(document["total_bytes"], int) and document["total_bytes"] >= 30_000
    assert (paths.prefixes() / "jax-cpu-0123456789ab").is_dir()


def test_yes_removes_what_was_named_and_nothing_else(full: Path) -> None:
    code, document = _run("--yes", "prefixes", "logs")
    assert code == 0 and document["removed"] is True
    assert list(paths.prefixes().iterdir()) == [] and list(paths.logs().iterdir()) == []
    assert (paths.records() / "jax-cpu" / "file").is_file() and (paths.cache() / "uv" / "file").is_file()
    assert (full / "mine").is_file()


def test_dry_run_wins(full: Path) -> None:
    _, document = _run("--yes", "--dry-run", "prefixes")
    assert document["removed"] is False and (paths.prefixes() / "jax-cpu-0123456789ab").is_dir()


def test_a_link_is_removed_and_not_followed(full: Path) -> None:
    outside = full / "outside"
    outside.mkdir()
    (outside / "file").write_text("keep", encoding="utf-8")
    with pytest.raises(ValueError):
        clean._delete(outside)
    (paths.prefixes() / "link").symlink_to(outside)
    with pytest.raises(ValueError):
        clean._delete(paths.prefixes() / "link")
    assert (outside / "file").is_file()


def test_an_unknown_kind_is_a_usage_error(full: Path) -> None:
    code, document = _run("everything")
    assert code == 2 and "error" in document


@pytest.mark.parametrize(
    ("file", "belongs"),
    [
        ("jax-cpu-0123456789ab", True),
        ("jax-cpu-20260101-000000-abcdef.log", True),
        ("jax-cpu", True),
        ("jax-cpu-nightly-0123456789ab", False),
        ("my-jax-cpu-0123456789ab", False),
    ],
)
def test_only_the_named_environment(file: str, belongs: bool) -> None:
    assert clean._belongs(file, "jax-cpu") is belongs
