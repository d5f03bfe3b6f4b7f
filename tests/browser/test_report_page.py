"""The matrix report in a real Chromium: draws, filters, opens a cell, moves by keyboard; with 5 and 5,000 cells."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envforge import matrix_report
from envforge.resources import data

STATUSES = ("passed", "failed", "removed", "unavailable", "not_run", "error")


@pytest.fixture
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI installs Chromium, and it is not there")
        pytest.skip("no Chromium here")
    return found


def document(count: int) -> dict[str, Any]:
    """Cells over a grid of environments, CUDA builds and test rows; statuses in turn."""
    cells = []
    for number in range(count):
        environment, column = divmod(number, 20)
        cells.append(
            {
                "id": f"torch{environment}-py3.11/{column}",
                "build": f"torch{environment}-py3.11",
                "test": ("docker-cpu", "a100-r470")[column % 2],
                "framework": f"torch {environment}",
                "cuda": ("cpu", "11.8", "12.4", "12.8")[column % 4],
                "python": ("3.9", "3.10", "3.11", "3.12", "3.13")[column % 5],
                "base": "auto",
                "platform": "linux/amd64",
                "status": STATUSES[number % len(STATUSES)],
                "reason": "driver-too-old: <b>470</b>" if number % len(STATUSES) == 2 else "",
                "seconds": 1.5,
                "checks": [{"name": "numerics.matmul", "level": 2, "outcome": "passed", "seconds": 0.1, "detail": ""}],
                "log_tail": ["the last line"],
                "reused": False,
            }
        )
    counts = {status: sum(cell["status"] == status for cell in cells) for status in STATUSES}
    return {"schema": 1, "name": "nightly", "finished": "now", "tests": {}, "cells": cells, "counts": counts}


def in_browser(chromium: str, folder: Path, cells: int, script: str) -> Any:
    """The JSON value that ``script`` (the body of a function) returns inside the page."""
    page = matrix_report.html(document(cells), [], data("report.html").read_text(encoding="utf-8"))
    probe = f"<script>document.title='RESULT'+JSON.stringify((()=>{{{script}}})())</script></body>"
    path = folder / "report.html"
    path.write_text(page.replace("</body>", probe), encoding="utf-8")
    words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    words += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    words += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180)
    found = re.search(r"<title>RESULT(.*?)</title>", done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.mark.parametrize("cells", [5, 5000])
def test_every_cell_is_drawn(chromium: str, tmp_path: Path, cells: int) -> None:
    found = in_browser(
        chromium,
        tmp_path,
        cells,
        "return {cells: document.querySelectorAll('#grid button').length, shown: $('shown').textContent}",
    )
    assert found == {"cells": cells, "shown": f"{cells} of {cells} cells"}


def test_search_and_status_filter(chromium: str, tmp_path: Path) -> None:
    script = """
    $('q').value = 'driver-too-old'; draw();
    const searched = [...document.querySelectorAll('#grid button')].map(b => b.className);
    $('q').value = ''; document.querySelector('#counts button[data-s=failed]').click();
    const failed = [...document.querySelectorAll('#grid button')].map(b => b.className);
    return {searched, failed};
    """
    found = in_browser(chromium, tmp_path, 60, script)
    assert found["searched"] == ["s-removed"] * 10
    assert found["failed"] == ["s-failed"] * 10


def test_a_cell_shows_its_checks_log_and_reason_as_text(chromium: str, tmp_path: Path) -> None:
    script = """
    document.querySelector('#grid button.s-removed').click();
    return {open: $('d').open, text: $('din').textContent, bold: $('din').querySelectorAll('b').length};
    """
    found = in_browser(chromium, tmp_path, 60, script)
    assert found["open"] is True
    assert found["bold"] == 0  # markup in a reason is shown, not obeyed
    for words in ("<b>470</b>", "numerics.matmul", "the last line"):
        assert words in found["text"]


def test_arrow_keys_move_between_cells(chromium: str, tmp_path: Path) -> None:
    script = """
    const first = document.querySelector('#grid tbody button'); first.focus();
    const press = k => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: k, bubbles: true}));
    const at = () => { const t = document.activeElement.closest('td'); return [t.parentElement.rowIndex, t.cellIndex] };
    const start = at(); press('ArrowRight'); const right = at(); press('ArrowDown'); const down = at();
    return {start, right, down};
    """
    found = in_browser(chromium, tmp_path, 400, script)
    assert found["right"][0] == found["start"][0] and found["right"][1] > found["start"][1]
    assert found["down"][1] == found["right"][1] and found["down"][0] > found["right"][0]
