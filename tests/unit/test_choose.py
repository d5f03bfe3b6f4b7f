"""The framework guide: its words, its ranking, and that it never names a spec that does not work there."""

from __future__ import annotations

import copy
import itertools
import json
import time
from typing import Any

import pytest
import yaml

from envforge import choose, spec
from envforge.cli import main
from envforge.errors import ConflictError, UsageError
from envforge.resources import data

GUIDE = choose.load()


def yes(name: str) -> str:
    return "ok"


def raw() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(data("choose.yaml").read_text())
    return found


@pytest.mark.parametrize(
    ("bottleneck", "target", "constraints", "framework", "export"),
    [
        ("training-speed", "gpu-server", ("tpu-later",), "jax", "export.stablehlo"),
        ("inference-latency", "gpu-server", ("onnx",), "torch", "export.onnx"),
        ("deployment", "edge", ("keras-api",), "tensorflow", "export.tflite"),
        ("debugging", "cpu-server", (), "torch", "export.checkpoint"),
        ("debugging", "gpu-server", ("keras-api",), "keras", "export.keras"),
        ("deployment", "ascend", (), "mindspore", "export.mindir"),
        ("debugging", "apple", (), "torch", "export.checkpoint"),
        ("memory", "gpu-server", (), "jax", "export.stablehlo"),
        ("deployment", "cpu-server", ("keras-api", "python-free"), "tensorflow", "export.savedmodel"),
    ],
)
def test_answers(bottleneck: str, target: str, constraints: tuple[str, ...], framework: str, export: str) -> None:
    best = choose.choose(GUIDE, bottleneck=bottleneck, target=target, constraints=constraints, judge=yes)[0]
    assert (best.route.framework, best.route.export) == (framework, export)


def test_every_question_has_an_answer_or_a_reasoned_refusal() -> None:
    words = [(), *((word,) for word in GUIDE.constraints), *itertools.combinations(GUIDE.constraints, 2)]
    answered = 0
    for bottleneck, target, constraints in itertools.product(GUIDE.bottlenecks, GUIDE.targets, words):
        try:
            found = choose.choose(GUIDE, bottleneck=bottleneck, target=target, constraints=constraints, judge=yes)
        except ConflictError as error:
            assert constraints, "without a constraint every target has a route"
            assert error.context and error.exit_code == 4
            continue
        answered += 1
        scores = [item.route.scores[bottleneck] for item in found]
        assert scores == sorted(scores, reverse=True)
        for item in found:
            assert target in item.route.targets and set(constraints) <= set(item.route.gives)
            assert item.route.costs, "no choice without its trade-offs"
    assert answered > 200


def test_a_spec_that_does_not_work_there_is_passed_over_and_said() -> None:
    first = choose.choose(GUIDE, bottleneck="memory", target="gpu-server", judge=yes)[0]
    second = choose.choose(
        GUIDE, bottleneck="memory", target="gpu-server", judge=lambda n: "conflict" if n == first.spec else "ok"
    )[0]
    assert second.route == first.route
    assert second.spec == first.route.specs["gpu-server"][1]
    assert any(first.spec in text for text in second.why)


def test_nothing_left_is_a_conflict_that_names_each_reason() -> None:
    with pytest.raises(ConflictError) as error:
        choose.choose(GUIDE, bottleneck="memory", target="edge", judge=lambda n: "conflict")
    assert all("none of" in text for text in error.value.context)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ({"bottleneck": "trainingspeed", "target": "edge"}, "training-speed"),
        ({"bottleneck": "memory", "target": "gpu"}, "gpu-server"),
        ({"bottleneck": "memory", "target": "edge", "constraints": ("onx",)}, "onnx"),
    ],
)
def test_unknown_words_are_refused_with_a_guess(words: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError) as error:
        choose.choose(GUIDE, judge=yes, **words)
    assert hint in error.value.hint


def test_every_spec_named_is_in_the_catalogue_and_holds_that_framework() -> None:
    for route in GUIDE.routes:
        for names in route.specs.values():
            for name in names:
                assert route.framework in spec.load(name).frameworks, (route.id, name)


def test_every_framework_and_word_is_used() -> None:
    assert {route.framework for route in GUIDE.routes} >= {"torch", "tensorflow", "jax", "keras", "paddle", "mindspore"}
    assert {word for route in GUIDE.routes for word in route.gives} == set(GUIDE.constraints)
    assert {word for route in GUIDE.routes for word in route.targets} == set(GUIDE.targets)


def _no_costs(table: dict[str, Any]) -> None:
    table["routes"][0]["costs"] = []


def _bad_score(table: dict[str, Any]) -> None:
    table["routes"][0]["scores"]["memory"] = 4


def _bad_word(table: dict[str, Any]) -> None:
    table["routes"][0]["gives"].append("cheap")


def _twice(table: dict[str, Any]) -> None:
    table["routes"].append(copy.deepcopy(table["routes"][0]))


def _no_spec(table: dict[str, Any]) -> None:
    del table["routes"][0]["specs"]["cpu-server"]


@pytest.mark.parametrize("fault", [_no_costs, _bad_score, _bad_word, _twice, _no_spec])
def test_a_broken_table_is_refused(fault: Any) -> None:
    table = raw()
    choose.parse(table)  # sound before
    fault(table)
    with pytest.raises(ValueError, match=r"torch-compile|share an id"):
        choose.parse(table)


def test_command_names_a_spec_that_runs_on_the_driver(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["choose", "--bottleneck", "debugging", "--driver", "470.57.02", "--gpu", "A100", "--framework", "pytorch"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["choice"]["spec"] == "torch-cu118"
    assert document["choice"]["verdict"] in ("ok", "ok-with-limits")
    assert {row["framework"] for row in [document["choice"], *document["alternatives"]]} == {"torch"}
    assert main([*words[:3], "--driver", "580.65.06", "--gpu", "RTX 5090", "--json"]) == 0
    newer = json.loads(capsys.readouterr().out)
    assert newer["choice"]["spec"] != "torch-cu118", "control: a newer driver gets a newer build"


def test_command_for_people_says_costs_and_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", "--bottleneck", "deployment", "--target", "ascend"]) == 0
    text = capsys.readouterr().out
    assert "next: envforge build mindspore-cpu" in text and "\n  - " in text
    assert "does not pass Ascend devices" in text


def test_command_refuses_unknown_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", "--target", "tpu", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["reference"] == "choose-word"


def test_it_answers_fast() -> None:
    start = time.perf_counter()
    for _ in range(200):
        choose.choose(GUIDE, bottleneck="memory", target="gpu-server", judge=yes)
    assert time.perf_counter() - start < 1.0
