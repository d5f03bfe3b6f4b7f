"""Smoke reports as JUnit XML, the form CI systems show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree


def _clean(text: str) -> str:
    """Text without the control characters that XML 1.0 forbids."""
    return "".join(
        c for c in text if c in "\t\n\r" or "\x20" <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
    )


def render(documents: Iterable[Mapping[str, Any]]) -> bytes:
    """One test suite per report document (`smoke --json`); failed → failure, error and not_run → error,
    unavailable → skipped."""
    root = ElementTree.Element("testsuites")
    for document in documents:
        checks = document["checks"]
        count = {
            name: sum(c["outcome"] == name for c in checks) for name in ("failed", "error", "not_run", "unavailable")
        }
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_clean(str(document["name"])),
            tests=str(len(checks)),
            failures=str(count["failed"]),
            errors=str(count["error"] + count["not_run"]),
            skipped=str(count["unavailable"]),
            time=f"{sum(float(c['seconds']) for c in checks):.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        for key in ("engine", "image", "inputs_digest", "status"):
            ElementTree.SubElement(properties, "property", name=key, value=_clean(str(document.get(key) or "")))
        for check in checks:
            _case(suite, document, check)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _case(suite: ElementTree.Element, document: Mapping[str, Any], check: Mapping[str, Any]) -> None:
    framework = check.get("framework") or "image"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_clean(f"{document['name']}.{framework}"),
        name=str(check["name"]),
        time=f"{float(check['seconds']):.3f}",
    )
    detail = _clean(str(check.get("detail") or ""))
    tag = {"failed": "failure", "error": "error", "not_run": "error", "unavailable": "skipped"}.get(check["outcome"])
    if tag is None:
        if detail:
            ElementTree.SubElement(case, "system-out").text = detail
        return
    found = ElementTree.SubElement(case, tag, message=detail)
    if tag != "skipped":
        found.set("type", str(check.get("cause") or check["outcome"]))
