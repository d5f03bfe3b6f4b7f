"""Comparing two environments: the record travels by file, equal sides are equal, a fault on one side is found.

A stand-in framework (NumPy, told by FAKE what to do wrong) takes both places, so that the real suite runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compare_kit import fake_suite

from envforge import cli, compare, inside, smoke
from envforge.console import Console
from envforge.engine import GpuRequest
from envforge.errors import NothingSelected, UsageError

QUIET = Console(verbosity=-1)
NO_GPU = GpuRequest(kind="none")
PYTHON = Path(sys.executable)


def environment(name: str, **frameworks: str) -> inside.Environment:
    found = {"python": "3.11.2", "frameworks": [{"name": n, "version": v} for n, v in frameworks.items()]}
    return inside.Environment(name=name, python=PYTHON, found=found)


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[inside.Environment, inside.Environment]:
    """Two environments whose torch and jax are stand-ins."""
    suite = fake_suite()
    monkeypatch.setattr(smoke, "suite", lambda: dict(suite))
    return environment("left", torch="1.0"), environment("right", jax="2.0")


def run(sides: tuple[inside.Environment, inside.Environment], **options: Any) -> compare.Comparison:
    a, b = sides
    frameworks = (next(iter(a.frameworks)), next(iter(b.frameworks)))
    return compare.compare(a, b, frameworks=frameworks, gpus=NO_GPU, console=QUIET, timeout=60, **options)


def by_name(found: compare.Comparison) -> dict[str, smoke.Check]:
    return {check.name: check for check in (*found.checks, *found.traps)}


def test_equal_sides_are_equal_and_every_check_is_there(
    sides: tuple[inside.Environment, inside.Environment],
) -> None:
    found = run(sides)
    assert {n: c.detail for n, c in by_name(found).items() if c.outcome not in ("passed", "unavailable")} == {}
    assert found.status == "equal"
    assert [check.name for check in found.checks] == [
        "conv2d",
        "dense",
        "batch_norm",
        "layer_norm",
        "softmax_cross_entropy",
        "attention",
        "resize_bilinear",
        "weights",
        "model",
    ]
    assert by_name(found)["trap_tf32"].outcome == "unavailable"
    assert by_name(found)["conv2d"].facts["difference"] < 1e-5
    assert by_name(found)["model"].facts["difference"] is not None
    document = json.loads(json.dumps(found.document()))
    assert document["schema"] == 1 and document["a"]["framework"] == "torch" and document["b"]["framework"] == "jax"
    assert document["travelled_bytes"]["record.npz"] > 0 and document["a"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("side", "fault", "bad"),
    [
        ("torch", "conv2d", {"conv2d"}),
        ("jax", "attention", {"attention"}),
        ("torch", "native_weights", {"weights"}),
        ("jax", "native_weights", {"weights"}),
        ("jax", "step", {"model"}),
        ("torch", "predict", {"model"}),
    ],
)
def test_a_fault_on_either_side_is_found(
    sides: tuple[inside.Environment, inside.Environment],
    monkeypatch: pytest.MonkeyPatch,
    side: str,
    fault: str,
    bad: set[str],
) -> None:
    monkeypatch.setenv("FAKE_WRONG", f"{side}:{fault}")
    found = run(sides)
    failed = {check.name for check in found.checks if check.outcome == "failed"}
    assert found.status == "differences"
    assert bad <= failed and failed <= bad | {"model"}


def test_defaults_that_differ_are_traps_and_count_only_when_strict(
    sides: tuple[inside.Environment, inside.Environment],
) -> None:
    found = run(sides)
    differing = {trap.name for trap in found.traps if compare.trap_differs(trap)}
    assert differing == {"trap_same_padding", "trap_resize_antialias"}
    assert "antialias" in by_name(found)["trap_resize_antialias"].detail
    assert replace(found, strict=True).status == "differences"


def test_a_default_that_follows_no_documented_rule_is_a_difference(
    sides: tuple[inside.Environment, inside.Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WRONG", "torch:default_resize")
    found = run(sides)
    assert by_name(found)["trap_resize_antialias"].cause == "undocumented-default"
    assert found.status == "differences"


def test_a_side_that_cannot_be_imported_is_an_error_that_says_why(
    sides: tuple[inside.Environment, inside.Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WRONG", "jax:load")
    found = run(sides)
    assert found.status == "error"
    assert all(check.outcome == "error" and "in right" in check.detail for check in found.checks)
    assert "libnothing.so.1" in found.checks[0].detail and found.checks[0].cause == "missing-shared-library"


def test_a_side_that_dies_is_an_error(
    sides: tuple[inside.Environment, inside.Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WRONG", "torch:die")
    found = run(sides)
    assert found.status == "error" and "exit code -9" in found.checks[-1].detail


def test_other_inputs_than_those_recorded_are_refused(
    sides: tuple[inside.Environment, inside.Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = iter((0, 1))
    real = compare.ladder_plan
    a, b = sides
    plan = real(NO_GPU, seed=next(plans), timeout=60)
    job = {"role": "first", "framework": "torch", "labels": ("one", "two"), "checks": ("dense",), "plan": plan}
    record = ("record.npz", "record.json")
    one = a.run(compare.SCRIPT, job, collect=record, gpus=NO_GPU, timeout=60)
    job |= {"role": "second", "framework": "jax", "plan": real(NO_GPU, seed=next(plans), timeout=60)}
    two = b.run(compare.SCRIPT, job, files=one.collected, gpus=NO_GPU, timeout=60)
    assert compare.judge(two, ["dense"], where="right")[0].cause == "inputs-differ"


def test_an_upgrade_carries_checkpoints_over(sides: tuple[inside.Environment, inside.Environment]) -> None:
    old, new = environment("old", torch="1.0"), environment("new", torch="2.0")
    found = compare.upgrade(old, new, frameworks=("torch",), gpus=NO_GPU, console=QUIET, timeout=60)
    assert found.status == "equal" and found.kind == "upgrade"
    assert [(c.name, c.outcome) for c in found.checks] == [("export.checkpoint", "passed")]


def test_an_upgrade_that_changes_numbers_or_cannot_load_is_found(
    sides: tuple[inside.Environment, inside.Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = environment("old", torch="1.0"), environment("new", torch="2.0")
    for fault, cause in (("reload", "export-differs"), ("unreadable", "keras2-lstm-config")):
        monkeypatch.setenv("FAKE_WRONG", f"torch:{fault}")
        found = compare.upgrade(old, new, frameworks=("torch",), gpus=NO_GPU, console=QUIET, timeout=60)
        assert found.status == "differences"
        assert found.checks[0].cause == cause


def test_an_upgrade_that_drops_the_framework_is_a_difference(
    sides: tuple[inside.Environment, inside.Environment],
) -> None:
    old, new = environment("old", torch="1.0"), environment("new", jax="2.0")
    found = compare.upgrade(old, new, frameworks=("torch",), gpus=NO_GPU, console=QUIET, timeout=60)
    assert found.status == "differences" and found.checks[0].cause == "framework-absent"
    assert "jax 2.0" in found.checks[0].detail


def test_the_framework_is_the_shared_one_unless_named() -> None:
    both, jax = environment("both", torch="1", jax="2"), environment("jax", jax="2")
    assert compare.pick(both, None, jax) == "jax" and compare.pick(both, "torch", jax) == "torch"
    assert compare.pick(both, None, environment("x", paddle="3")) == "torch"
    with pytest.raises(UsageError, match="'paddle'"):
        compare.pick(both, "paddle")
    with pytest.raises(NothingSelected):
        compare.pick(environment("m", mxnet="1.9.1"), None)


def test_keras_is_upgraded_through_tensorflow_where_that_is_there() -> None:
    assert compare.upgraded(environment("tf", tensorflow="2.21.0", keras="3.15.1")) == ("tensorflow",)
    assert compare.upgraded(environment("k", jax="0.10.2", keras="3.15.1")) == ("jax", "keras")
    assert compare.upgraded(environment("k", jax="0.10.2", keras="3.15.1"), "keras") == ("keras",)
    with pytest.raises(UsageError, match="'torch'"):
        compare.upgraded(environment("k", jax="0.10.2"), "torch")


def test_the_same_framework_and_version_on_both_sides_gets_two_labels() -> None:
    one, two = environment("a", jax="0.10.2"), environment("b", jax="0.10.2")
    assert compare.labels(one, two, "jax", "jax") == ("jax 0.10.2 (A)", "jax 0.10.2 (B)")


@pytest.mark.parametrize(
    "words", [[], ["one"], ["one", "two", "three"], ["one", "two", "--python-b", "p"], ["a", "b", "--timeout", "0"]]
)
def test_two_sides_are_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *words]) == 2
    assert "error[usage]" in capsys.readouterr().err


def test_an_interpreter_without_a_framework_is_nothing_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["compare", "--python-a", str(PYTHON), "--python-b", str(PYTHON), "--json"])
    assert code == 9
    assert json.loads(capsys.readouterr().out)["error"]["reference"] == "no-framework"


def test_the_command_prints_the_document_and_exits_by_it(
    sides: tuple[inside.Environment, inside.Environment],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, b = sides
    monkeypatch.setattr(inside, "find", lambda name, **_: {"left": a, "right": b}[name])
    assert cli.main(["compare", "left", "right", "--gpus", "none", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "equal" and {"name", "outcome", "detail", "differs"} <= document["traps"][0].keys()
    assert cli.main(["compare", "left", "right", "--gpus", "none", "--strict"]) == 10
    assert "antialias" in capsys.readouterr().out
    monkeypatch.setenv("FAKE_WRONG", "jax:dense")
    assert cli.main(["compare", "left", "right", "--gpus", "none"]) == 10
    assert "DIFFERS" in capsys.readouterr().out


def test_sides_keep_their_order_when_one_is_an_interpreter() -> None:
    from envforge.commands.compare import _sides

    args = argparse.Namespace(names=["new"], python_a=Path("p"), python_b=None)
    assert _sides(args) == ((None, Path("p")), ("new", None))
    args = argparse.Namespace(names=["old"], python_a=None, python_b=Path("p"))
    assert _sides(args) == (("old", None), (None, Path("p")))
