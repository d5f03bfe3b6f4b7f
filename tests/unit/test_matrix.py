"""Matrix files: expansion, removal with reasons, merging, selection; and the documents made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from envforge import matrix, matrix_emit, matrix_report
from envforge.errors import NothingSelected, SpecError
from envforge.spec import EnvSpec

TEXT = """
schema: 1
name: nightly
axes:
  framework: ["jax=0.10.2", "torch=2.6.0"]
  cuda: [cpu, "12.4"]
  python: ["3.11", "3.13"]
exclude:
  - {framework: "torch*", cuda: cpu}
include:
  - {framework: "tensorflow=2.21.0", python: "3.11"}
packages:
  jax: [flatbuffers]
tests:
  - {name: cpu}
  - {name: a100-r450, driver: "450.80.02", gpu: A100, gpus: all, labels: [self-hosted, a100]}
require: ["jax*-py3.11-cpu/cpu"]
allow-failure: ["*py3.13*"]
"""


@dataclass(frozen=True)
class Asked:
    """The question a fake judge gets."""

    spec: EnvSpec
    driver: str | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    severity: str
    reference: str
    message: str


@dataclass(frozen=True)
class Answer:
    verdict: str
    findings: tuple[Finding, ...] = field(default=())


def judge(request: Any) -> Any:
    """Python 3.13 has no torch here, and CUDA 12.4 needs a driver of branch 525 or newer."""
    if "torch" in request.spec.frameworks and request.spec.python == "3.13":
        return Answer("conflict", (Finding("conflict", "python-no-wheel", "torch 2.6.0 has no wheel for Python 3.13"),))
    if request.spec.cuda and request.driver and int(request.driver.split(".")[0]) < 525:
        return Answer("conflict", (Finding("conflict", "driver-too-old", f"driver {request.driver} is too old"),))
    return Answer("ok")


def no_file(name: str) -> EnvSpec:
    raise AssertionError(f"no spec file was named, but {name!r} was loaded")


def planned(text: str = TEXT, **more: Any) -> matrix.Plan:
    options: dict[str, Any] = {"judge": judge, "request_of": Asked, "load_spec": no_file}
    return matrix.plan(matrix.loads(text, source="m.yaml"), **(options | more))


def test_product_minus_exclude_plus_include() -> None:
    assert [build.id for build in planned().builds] == [
        "jax0.10.2-py3.11-cpu",
        "jax0.10.2-py3.13-cpu",
        "jax0.10.2-py3.11-cu12.4",
        "jax0.10.2-py3.13-cu12.4",
        "torch2.6.0-py3.11-cu12.4",
        "torch2.6.0-py3.13-cu12.4",
        "tensorflow2.21.0-py3.11-cpu",
    ]


def test_impossible_cells_are_removed_with_their_reason() -> None:
    cells = {cell.id: cell for cell in planned().cells}
    assert cells["torch2.6.0-py3.13-cu12.4/cpu"].status == "removed"
    assert cells["torch2.6.0-py3.13-cu12.4/cpu"].reason.startswith("python-no-wheel: torch 2.6.0")
    assert cells["torch2.6.0-py3.11-cu12.4/cpu"].status == "planned"
    assert cells["torch2.6.0-py3.11-cu12.4/a100-r450"].reason == "driver-too-old: driver 450.80.02 is too old"
    assert cells["jax0.10.2-py3.11-cpu/a100-r450"].status == "planned"
    assert len(cells) == 14


def test_require_and_allow_failure() -> None:
    cells = {cell.id: cell for cell in planned().cells}
    assert [key for key, cell in cells.items() if cell.required] == ["jax0.10.2-py3.11-cpu/cpu"]
    assert cells["jax0.10.2-py3.13-cpu/cpu"].allow_failure
    assert not cells["jax0.10.2-py3.11-cpu/cpu"].allow_failure


def test_packages_and_versions_reach_the_spec() -> None:
    spec = {build.id: build.spec for build in planned().builds}["jax0.10.2-py3.13-cu12.4"]
    assert spec is not None
    assert spec.frameworks["jax"].version == "0.10.2"
    assert spec.packages.pip == ("flatbuffers",)
    assert spec.cuda is not None and spec.cuda.version == "12.4"


def test_equal_inputs_are_one_image() -> None:
    plan = planned(digest_of=lambda spec: "same" if "jax" in spec.frameworks and not spec.cuda else spec.name)
    merged = {build.id: build.merged_into for build in plan.builds if build.merged_into}
    assert merged == {"jax0.10.2-py3.13-cpu": "jax0.10.2-py3.11-cpu"}
    assert not any(cell.build == "jax0.10.2-py3.13-cpu" for cell in plan.cells)


def test_selection_and_its_failure() -> None:
    plan = planned(select=["jax*-cu12.4/cpu"])
    assert [cell.id for cell in plan.cells] == ["jax0.10.2-py3.11-cu12.4/cpu", "jax0.10.2-py3.13-cu12.4/cpu"]
    with pytest.raises(NothingSelected) as caught:
        planned(select=["jax0.10.2-py3.11-cpuu/cpu"])
    assert "jax0.10.2-py3.11-cpu/cpu" in caught.value.hint
    assert caught.value.exit_code == 9


def test_local_labels_and_combined_frameworks_in_ids() -> None:
    text = 'schema: 1\nname: n\naxes: {framework: ["torch=2.0.1+cu118", "torch=2.6.0+jax=0.4.38"], cuda: ["11.8"]}\n'
    plan = planned(text)
    first, second = plan.builds
    assert first.spec is not None and second.spec is not None
    assert first.spec.frameworks["torch"].version == "2.0.1+cu118"
    assert set(second.spec.frameworks) == {"torch", "jax"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema: 1\nname: n\naxes: {framework: [jax=0.4], python: [3.10]}\n", "quote it"),
        ("schema: 1\nname: n\naxes: {framework: [caffe=1.0]}\n", "framework"),
        ("schema: 1\nname: n\naxis: {}\n", "axes"),
        ("schema: 1\nname: n\n", "nothing to build"),
        ("schema: 2\nname: n\nspecs: [jax-cpu]\n", "schema"),
        ("schema: 1\nname: n\nspecs: [a]\ntests: [{name: x}, {name: x}]\n", "stands twice"),
    ],
)
def test_bad_files_say_what_and_where(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        matrix.loads(text, source="m.yaml")
    assert words in " ".join(caught.value.context)
    assert all(line.startswith("m.yaml") for line in caught.value.context)


def test_too_many_cells_are_refused_before_they_are_made() -> None:
    versions = ", ".join(f'"jax=0.{n}.0"' for n in range(2000))
    rows = ", ".join(f"{{name: t{n}}}" for n in range(600))
    with pytest.raises(SpecError, match="problems in this matrix"):
        matrix.loads(f"schema: 1\nname: n\naxes: {{framework: [{versions}]}}\ntests: [{rows}]\n", source="m.yaml")


def result_document() -> dict[str, Any]:
    plan = planned()
    cells = matrix.plan_document(plan)["cells"]
    coordinates = {build.id: dict(build.coordinates) for build in plan.builds}
    for cell in cells:
        cell |= coordinates[cell["build"]]
    cells[0] |= {"status": "passed", "seconds": 12.0, "size_bytes": 600_000_000}
    cells[2] |= {"status": "failed", "reason": "</script><b>x</b> | pipe", "log_tail": ["line\x01one"], "checks": []}
    return {"schema": 1, "name": "nightly", "cells": cells, "counts": plan.counts(), "tests": {}}


def test_the_page_holds_its_data_safely() -> None:
    template = (Path(matrix_report.__file__).parent / "data" / "report.html").read_text(encoding="utf-8")
    page = matrix_report.html(result_document(), [], template)
    assert "</script><b>" not in page
    inner = page.split('<script id="data" type="application/json">')[1].split("</script>")[0]
    assert json.loads(inner)["cells"][2]["reason"] == "</script><b>x</b> | pipe"
    assert "http://" not in page and "https://" not in page


def test_markdown_lists_removed_cells_with_reasons() -> None:
    text = matrix_report.markdown(result_document())
    assert "| jax0.10.2-py3.11-cpu/cpu | ✓ passed | 12 | 600 MB |" in text
    assert "\\| pipe" in text
    assert "* `torch2.6.0-py3.13-cu12.4/cpu`: python-no-wheel" in text


def test_junit_never_calls_a_removed_cell_passed() -> None:
    root = ElementTree.fromstring(matrix_report.junit(result_document()))
    cases = {case.get("name"): case for case in root}
    assert root.get("failures") == "1"
    assert cases["torch2.6.0-py3.13-cu12.4/cpu"].find("skipped") is not None
    assert list(cases["jax0.10.2-py3.11-cpu/cpu"]) == []


def test_emitted_jobs_call_the_same_command() -> None:
    import yaml

    plan = planned()
    github = yaml.safe_load(matrix_emit.emit(plan, "github", matrix_file="ci/matrix.yaml"))
    (job,) = github["jobs"].values()
    steps = [step.get("run", "") for step in job["steps"]]
    assert 'envforge matrix run ci/matrix.yaml --select "$CELL" --junit report.xml\n' in steps
    rows = job["strategy"]["matrix"]["include"]
    assert {row["cell"] for row in rows} == {cell.id for cell in plan.cells if cell.status == "planned"}
    gpu_row = next(row for row in rows if row["cell"] == "jax0.10.2-py3.11-cpu/a100-r450")
    assert gpu_row["runner"] == ["self-hosted", "a100"]
    gitlab = yaml.safe_load(matrix_emit.emit(plan, "gitlab", matrix_file="ci/matrix.yaml"))
    entry = gitlab["jax0.10.2-py3.11-cpu/a100-r450"]
    assert entry["script"] == matrix_emit.commands("jax0.10.2-py3.11-cpu/a100-r450", "ci/matrix.yaml")
    assert entry["tags"] == ["self-hosted", "a100"]
