"""diagnose: every known fault is named from a text as people meet it, and unrelated texts get no answer."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from envforge import diagnose

CASES = Path(__file__).parents[1] / "cases" / "diagnose"


def _load(name: str) -> Any:
    return yaml.safe_load((CASES / name).read_text(encoding="utf-8"))


SAMPLES: dict[str, list[str]] = _load("samples.yaml")["samples"]
UNRELATED: list[str] = _load("unrelated.yaml")["logs"]
REPORTED: list[dict[str, Any]] = _load("reported.yaml")["cases"]


def test_every_pitfall_has_a_sample_and_every_sample_a_pitfall() -> None:
    assert [row.reference for row in diagnose.pitfalls()] == list(SAMPLES)
    assert len(SAMPLES) >= 120
    assert all(SAMPLES.values())


@pytest.mark.parametrize(("reference", "text"), [(key, text) for key, texts in SAMPLES.items() for text in texts])
def test_sample_is_named_first(reference: str, text: str) -> None:
    found = diagnose.match(text)
    assert found, "no cause found"
    assert found[0].reference == reference
    assert found[0].line
    assert found[0].line in diagnose.clean(text)


@pytest.mark.parametrize("text", UNRELATED)
def test_silent_on_unrelated_logs(text: str) -> None:
    assert [match.reference for match in diagnose.match(text)] == []


def test_there_are_thirty_unrelated_logs() -> None:
    assert len(set(UNRELATED)) >= 30


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: case["id"])
def test_reported_case(case: dict[str, Any]) -> None:
    first = diagnose.match(case["log"])[0]
    assert first.reference == case["first"]
    told = f"{first.cause} {first.fix}"
    for words in case["says"]:
        assert words in told
    for words in case.get("never", ()):
        assert words not in told
    places = [told.index(words) for words in case.get("order", ())]
    assert places == sorted(places)


def test_data_is_well_formed() -> None:
    rows = diagnose.pitfalls()
    known = {row.reference for row in rows}
    assert len(known) == len(rows)
    for row in rows:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.reference)
        assert row.source and row.versions and row.area
        assert row.role in ("cause", "symptom", "noise")
        assert set(row.over) <= known - {row.reference}
        names = set(re.findall(r"(?<!\{)\{(\w+)\}", row.cause + row.fix))
        assert names <= set(row.pattern.groupindex)
        assert set(row.less or ()) <= set(row.pattern.groupindex)


def test_several_causes_are_ranked_cause_before_symptom_before_noise() -> None:
    text = "\n".join(
        [
            SAMPLES["tf-cudnn-factory"][0],
            SAMPLES["tf-no-cuda-drivers"][0],
            SAMPLES["nvml-version-mismatch"][0],
            SAMPLES["no-space"][0],
        ]
    )
    found = [match.reference for match in diagnose.match(text)]
    assert found == ["nvml-version-mismatch", "no-space", "tf-no-cuda-drivers", "tf-cudnn-factory"]


def test_specific_replaces_general() -> None:
    found = [match.reference for match in diagnose.match(SAMPLES["mxnet-np-bool"][0])]
    assert found == ["mxnet-np-bool"]
    other = "AttributeError: module 'numpy' has no attribute 'bool'"
    assert [match.reference for match in diagnose.match(other)] == ["np-alias-removed"]


def test_captured_values_are_in_the_text() -> None:
    found = diagnose.match("ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found (required by x.so)")
    assert "glibc 2.38" in found[0].cause
    assert "{" not in found[0].cause + found[0].fix


def test_colour_codes_progress_bars_and_line_numbers() -> None:
    text = "one\r\ntwo\r50%\r100%\n\x1b[31merror: externally-managed-environment\x1b[0m\nlast"
    (found,) = diagnose.match(text)
    assert found.line == "error: externally-managed-environment"
    assert found.number == 5


def test_a_huge_log_is_read_in_time() -> None:
    noise = "#9 1.234 Downloading protobuf onnx tensorflow wheel 2.1/2.3 GB from index, module loaded ok\n" * 40_000
    start = time.perf_counter()
    found = diagnose.match(noise + SAMPLES["no-space"][0])
    assert [match.reference for match in found] == ["no-space"]
    assert time.perf_counter() - start < 20


def test_empty_text() -> None:
    assert diagnose.match("") == ()
