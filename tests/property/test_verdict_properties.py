"""Laws every verdict obeys, over random requests."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envforge import compat, tables
from envforge.compat import Tables
from envforge.verdict import FrameworkRequest, Request, judge
from envforge.versions import key

TABLES = compat.load()
DRIVERS = sorted(
    {f for c in TABLES.cuda_series() if (row := TABLES.driver_floors(c)) for f in (row.native, row.minor)}
    | {"390.10", "418.40", "470.82.01", "535.104.05", "580.95.05", "595.45.04", "630.10"},
    key=key,
)
GPUS = [row.name for row in TABLES.gpus()] + ["sm_75", "8.6", "MI300X", "unheard of"]
RANK = {"ok": 0, "ok-with-limits": 1, "unverified": 2, "conflict": 3}
DRIVER_RANK = {"too-old": 0, "forward-compat": 1, "minor-version": 2, "native": 3}


@st.composite
def framework_requests(draw: st.DrawFn) -> FrameworkRequest:
    name = draw(st.sampled_from(TABLES.known_frameworks()))
    rows = TABLES.releases(name)
    version = draw(st.sampled_from([row.version for row in rows] + ["99.0"]))
    row = TABLES.release(name, version)
    labels = [""] + (["+cpu"] + [f"+{build.tag}" for build in row.builds.values()] if name == "torch" and row else [])
    return FrameworkRequest(
        name=name,
        version=version + draw(st.sampled_from(labels)),
        accelerator=draw(st.sampled_from(("auto", "cpu", "cuda"))),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    frameworks = draw(st.lists(framework_requests(), min_size=1, max_size=2, unique_by=lambda item: item.name))
    return Request(
        python=draw(st.sampled_from([f"3.{minor}" for minor in range(6, 17)])),
        platform=draw(st.sampled_from(("linux/amd64", "linux/amd64", "linux/arm64"))),
        cuda=draw(st.sampled_from((None, *TABLES.cuda_series(), "12", "11", "12.7", "14.0"))),
        cuda_source=draw(st.sampled_from((None, "wheels", "base", "conda"))),
        compat=draw(st.booleans()),
        base=draw(
            st.sampled_from(("auto", "python:3.11-slim-bookworm", "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04"))
        ),
        driver=draw(st.sampled_from((None, *DRIVERS))),
        gpus=tuple(draw(st.lists(st.sampled_from(GPUS), max_size=2, unique=True))),
        frameworks=tuple(frameworks),
        packages=tuple(
            draw(
                st.lists(
                    st.sampled_from(
                        (
                            "numpy<2",
                            "numpy>=2",
                            "onnxruntime-gpu==1.20.1",
                            "tf2onnx==1.16.1",
                            "protobuf<4",
                            "flash-attn",
                        )
                    ),
                    max_size=2,
                    unique=True,
                )
            )
        ),
    )


@given(requests())
@settings(max_examples=150, deadline=None)
def test_a_verdict_is_whole(request: Request) -> None:
    found = judge(request, TABLES)
    severities = {item.severity for item in found.findings}
    assert (found.verdict == "conflict") == ("conflict" in severities)
    assert (found.verdict == "ok") == (not severities & {"conflict", "unverified", "limit"})
    assert len(found.gpus) == len(request.gpus)
    if any(row["answer"] == "none" for row in found.gpus) or found.driver["answer"] == "too-old":
        assert found.verdict == "conflict"


@given(requests())
@settings(max_examples=25, deadline=None)
def test_every_nearest_combination_works_itself(request: Request) -> None:
    for near in judge(request, TABLES).nearest:
        assert judge(near.request, TABLES).verdict == near.verdict != "conflict"
        assert near.request != request


@given(requests())
@settings(max_examples=40, deadline=None)
def test_the_same_question_gets_the_same_answer(request: Request) -> None:
    fresh = Tables.of(_documents())
    first, second = judge(request, TABLES), judge(request, fresh)
    assert json.dumps(first.driver) == json.dumps(second.driver)
    assert (first.verdict, first.gpus, first.findings) == (second.verdict, second.gpus, second.findings)


@given(requests(), st.sampled_from(DRIVERS), st.sampled_from(DRIVERS))
@settings(max_examples=150, deadline=None)
def test_a_newer_driver_is_never_too_old_where_an_older_one_was_not(request: Request, first: str, second: str) -> None:
    low, high = sorted((first, second), key=key)
    before = str(judge(replace(request, driver=low), TABLES).driver["answer"])
    after = str(judge(replace(request, driver=high), TABLES).driver["answer"])
    assert DRIVER_RANK.get(after, 9) >= DRIVER_RANK.get(before, 9) or before not in DRIVER_RANK


@given(requests())
@settings(max_examples=150, deadline=None)
def test_removing_a_gpu_never_adds_a_conflict(request: Request) -> None:
    before = judge(request, TABLES)
    for number in range(len(request.gpus)):
        fewer = replace(request, gpus=request.gpus[:number] + request.gpus[number + 1 :])
        after = judge(fewer, TABLES)
        new = {item.reference for item in after.conflicts} - {item.reference for item in before.conflicts}
        assert not new
        assert RANK[after.verdict] <= RANK[before.verdict]


def _documents() -> dict[str, Any]:
    return {name: json.loads(tables.compiled_path(name).read_text(encoding="utf-8")) for name in tables.NAMES}


@given(requests(), st.sampled_from(("torch", "tensorflow", "jax", "gpus", "cuda")))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_adding_a_row_never_makes_a_solvable_request_unsolvable(request: Request, table: str) -> None:
    documents = _documents()
    if table == "gpus":
        row = copy.deepcopy(documents["gpus"]["gpus"][-1]) | {"name": "NVIDIA Next One", "capability": "13.0"}
        documents["gpus"]["gpus"].append(row)
    elif table == "cuda":
        row = copy.deepcopy(documents["cuda"]["toolkits"][-1])
        documents["cuda"]["toolkits"].append(row | {"release": "13.9.0", "series": "13.9", "driver": "640.10"})
    else:
        row = copy.deepcopy(documents[table]["releases"][-1])
        documents[table]["releases"].append(row | {"version": "77.0"})
    if judge(request, TABLES).works and all(item.version != "99.0" for item in request.frameworks):
        found = judge(request, Tables.of(documents))
        assert found.works, found.conflicts


@given(requests())
@settings(max_examples=100, deadline=None)
def test_the_order_of_packages_and_gpus_does_not_matter(request: Request) -> None:
    turned = replace(request, gpus=request.gpus[::-1], packages=request.packages[::-1])
    assert judge(turned, TABLES).verdict == judge(request, TABLES).verdict


def test_keras_with_cuda_on_cpu_backends_is_no_gpu_environment() -> None:
    """Found by the property above: the card's answer was `none` while the verdict said `ok`."""
    frameworks = (
        FrameworkRequest(name="jax", version="0.4.20", accelerator="cpu"),
        FrameworkRequest(name="keras", version="3.0"),
    )
    found = judge(Request(python="3.11", cuda="12.4", frameworks=frameworks, gpus=("A100",)), TABLES)
    assert found.verdict == "conflict"
    assert "no-gpu-build" in {item.reference for item in found.findings}
