"""Matrix results as one HTML page, Markdown, JUnit and JSON. Pure: documents in, text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

_MARKS = {
    "passed": "✓ passed",
    "failed": "✗ failed",
    "error": "! error",
    "unavailable": "– unavailable",
    "removed": "⊘ removed",
    "not_run": "· not run",
    "planned": "○ planned",
}
HISTORY = 20  # runs kept in the page


def html(document: Mapping[str, Any], history: Sequence[Mapping[str, Any]], template: str) -> str:
    """One self-contained page; nothing is loaded from elsewhere. ``template`` is envforge/data/report.html."""
    past = [
        {"finished": run.get("finished"), "cells": {cell["id"]: cell["status"] for cell in run.get("cells", ())}}
        for run in history[-HISTORY:]
    ]
    data = json.dumps({**document, "history": past}, ensure_ascii=False, separators=(",", ":"))
    # Inside a script element only these can end it or start a comment.
    safe = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return template.replace("__DATA__", safe, 1)


def _cell_text(value: Any) -> str:
    return str(value if value is not None else "").replace("|", "\\|").replace("\n", " ")


def markdown(document: Mapping[str, Any]) -> str:
    """A table for a pull request or a job summary; removed cells stand in a list of their own with the reason."""
    counts = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in document["counts"].items())
    lines = [f"# Matrix {document['name']}", "", counts, ""]
    shown = [cell for cell in document["cells"] if cell["status"] != "removed"]
    if shown:
        lines += ["| cell | status | seconds | size | reason |", "| --- | --- | ---: | ---: | --- |"]
    for cell in shown:
        size = f"{cell['size_bytes'] / 1e6:.0f} MB" if cell.get("size_bytes") else ""
        seconds = f"{cell['seconds']:.0f}" if cell.get("seconds") is not None else ""
        status = _MARKS[cell["status"]] + (" (reused)" if cell.get("reused") else "")
        row = (cell["id"], status, seconds, size, cell.get("reason", ""))
        lines.append("| " + " | ".join(_cell_text(item) for item in row) + " |")
    removed = [cell for cell in document["cells"] if cell["status"] == "removed"]
    if removed:
        lines += ["", "## Removed before the build", ""]
        lines += [f"* `{cell['id']}`: {_cell_text(cell.get('reason'))}" for cell in removed]
    return "\n".join(lines) + "\n"


def junit(document: Mapping[str, Any]) -> str:
    """JUnit XML: a test case per cell; removed and not-run cells are skipped with their reason, never passed."""
    cells = document["cells"]
    suite = ElementTree.Element(
        "testsuite",
        name=f"envforge matrix {document['name']}",
        tests=str(len(cells)),
        failures=str(sum(cell["status"] == "failed" for cell in cells)),
        errors=str(sum(cell["status"] == "error" for cell in cells)),
        skipped=str(sum(cell["status"] in ("removed", "not_run", "unavailable", "planned") for cell in cells)),
    )
    for cell in cells:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=str(cell["build"]),
            name=str(cell["id"]),
            time=f"{cell.get('seconds') or 0:.2f}",
        )
        reason = _xml_text(str(cell.get("reason") or cell["status"]))
        if cell["status"] in ("failed", "error"):
            kind = "failure" if cell["status"] == "failed" else "error"
            ElementTree.SubElement(case, kind, message=reason).text = _xml_text("\n".join(cell.get("log_tail", ())))
        elif cell["status"] != "passed":
            ElementTree.SubElement(case, "skipped", message=f"{cell['status']}: {reason}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _xml_text(text: str) -> str:
    """Text without the control characters that XML 1.0 forbids."""
    return "".join(char for char in text if char in "\t\n\r" or ord(char) >= 32)


def summary(document: Mapping[str, Any]) -> str:
    """The end of `matrix run` on a terminal."""
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in document["counts"].items())
