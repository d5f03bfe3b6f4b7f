"""Cases written as data: each request must get its verdict, say what must be said, and offer what works."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from envforge import compat
from envforge.verdict import FrameworkRequest, Request, judge

FOLDER = Path(__file__).resolve().parents[1] / "cases" / "check"


def cases() -> list[dict[str, Any]]:
    out = []
    for path in sorted(FOLDER.glob("*.yaml")):
        out += yaml.safe_load(path.read_text(encoding="utf-8"))
    return out


def request_of(data: Mapping[str, Any]) -> Request:
    fields = dict(data)
    frameworks = fields.pop("frameworks", {})
    for name in ("gpus", "packages", "conda"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if "bound" in fields:
        fields["bound"] = tuple(tuple(pair) for pair in fields["bound"])
    if "driver" in fields:
        fields["driver"] = str(fields["driver"])
    made = tuple(
        FrameworkRequest(name=name, **{k: tuple(v) if k == "extras" else v for k, v in options.items()})
        for name, options in frameworks.items()
    )
    return Request(name="case", frameworks=made, **fields)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    found = judge(request_of(case["request"]), compat.load())
    told = "\n".join(f"{item.severity} {item.message} {item.hint}" for item in found.findings)
    assert found.verdict in case["verdict"], told
    for text in case.get("says", ()):
        assert text in told
    for text in case.get("never", ()):
        assert text not in told
    if "cuda" in case:
        assert found.cuda == case["cuda"]
    if "driver" in case:
        assert found.driver["answer"] == case["driver"]
    if "floor" in case:
        assert found.driver["floor"] == case["floor"]
    offered = [" + ".join(near.changes) for near in found.nearest]
    for wanted in case.get("nearest", ()):
        assert any(offer.startswith(wanted) for offer in offered), offered
    if "same-as" in case:
        other = judge(request_of(case["same-as"]), compat.load())
        assert (other.verdict, other.cuda, other.findings) == (found.verdict, found.cuda, found.findings)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_every_nearest_combination_works_itself(case: dict[str, Any]) -> None:
    tables = compat.load()
    found = judge(request_of(case["request"]), tables)
    assert bool(found.nearest) <= (found.verdict == "conflict")
    for near in found.nearest:
        again = judge(near.request, tables)
        assert again.verdict == near.verdict != "conflict"


def test_ids_are_unique() -> None:
    ids = [case["id"] for case in cases()]
    assert len(ids) == len(set(ids)) > 60
