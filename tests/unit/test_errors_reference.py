"""Every error and finding has its paragraph, every paragraph its error, and the pages are those the code gives."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool() -> ModuleType:
    found = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["gen_docs"] = module
    found.loader.exec_module(module)
    return module


gen_docs = _tool()


def test_every_reference_has_a_paragraph_and_the_other_way_round() -> None:
    texts = gen_docs.paragraphs()
    assert set(gen_docs.error_references()) == set(texts["errors"])
    assert set(gen_docs.finding_references()) == set(texts["findings"])
    short = [name for group in ("errors", "findings") for name, text in texts[group].items() if len(text) < 25]
    assert not short


def test_references_that_are_no_literal_are_known() -> None:
    _, unclear = gen_docs.raised(gen_docs.sources())
    assert unclear == gen_docs.PASSED_ON


def test_the_scan_sees_a_new_reference() -> None:
    tree = ast.parse('raise LockError("brand-new" if x else "other-new", "text")\nraise NetworkError(name, "text")')
    found, unclear = gen_docs.raised([(Path("x.py"), tree)])
    assert found == {"brand-new": {"LockError"}, "other-new": {"LockError"}}
    assert unclear == {"x.py": 1}


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in gen_docs.pages()])
def test_the_committed_page_is_the_generated_one(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == gen_docs.pages()[ROOT / path], "run tools/gen_docs.py"


def test_every_command_stands_in_the_reference_with_its_example() -> None:
    from envforge import cli

    page = gen_docs.commands_page()
    for name in cli.available():
        assert f"\n## {name}\n" in page and f"\nenvforge {name}" in page
