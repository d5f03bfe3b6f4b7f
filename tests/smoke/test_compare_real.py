"""Comparing and measuring with real frameworks in interpreters of this host, made by uv and removed afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envforge import bench, compare, inside
from envforge.console import Console
from envforge.engine import GpuRequest

pytestmark = [pytest.mark.heavy, pytest.mark.network, pytest.mark.nightly]

QUIET = Console(verbosity=-1)
NO_GPU = GpuRequest(kind="none")


def interpreter(folder: Path, *packages: str) -> inside.Environment:
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "-q", "--python", "3.11", folder], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
    return inside.find(None, python=python, engine="auto", console=QUIET)


@pytest.fixture(scope="module")
def jax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[inside.Environment]:
    folder = tmp_path_factory.mktemp("jax")
    yield interpreter(folder, "jax==0.10.2", "flatbuffers")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def keras3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[inside.Environment]:
    folder = tmp_path_factory.mktemp("keras3")
    yield interpreter(folder, "tensorflow-cpu==2.21.0", "tf2onnx", "onnxruntime")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def keras2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[inside.Environment]:
    folder = tmp_path_factory.mktemp("keras2")
    yield interpreter(folder, "tensorflow-cpu==2.15.1", "numpy<2")
    shutil.rmtree(folder)


def test_tensorflow_and_jax_agree_and_their_defaults_are_explained(
    keras3: inside.Environment, jax: inside.Environment
) -> None:
    found = compare.compare(keras3, jax, frameworks=("tensorflow", "jax"), gpus=NO_GPU, console=QUIET)
    assert {c.name: c.detail for c in found.checks if c.outcome != "passed"} == {}
    assert found.status == "equal" and len(found.checks) == 9
    differing = {trap.name for trap in found.traps if compare.trap_differs(trap)}
    assert differing == {"trap_resize_antialias", "trap_logits"}


def test_from_keras_2_to_keras_3_what_breaks_is_named(keras2: inside.Environment, keras3: inside.Environment) -> None:
    found = compare.upgrade(keras2, keras3, frameworks=("tensorflow",), gpus=NO_GPU, console=QUIET)
    outcomes = {check.name: check.outcome for check in found.checks}
    causes = {check.name: check.cause for check in found.checks if check.outcome == "failed"}
    assert found.status == "differences"
    assert causes == {
        "export.checkpoint": "keras2-checkpoint-names",
        "upgrade.lstm_keras": "keras2-lstm-config",
        "upgrade.lstm_h5": "keras2-lstm-config",
    }
    sound = ("export.savedmodel", "export.keras", "export.tflite", "upgrade.lstm_weights", "upgrade.lstm_savedmodel")
    assert {name: outcomes[name] for name in sound} == dict.fromkeys(sound, "passed")


def test_an_upgrade_to_itself_loses_nothing(keras3: inside.Environment, jax: inside.Environment) -> None:
    for environment, framework in ((keras3, "tensorflow"), (jax, "jax")):
        found = compare.upgrade(environment, environment, frameworks=(framework,), gpus=NO_GPU, console=QUIET)
        assert {c.name: c.detail for c in found.checks if c.outcome not in ("passed", "unavailable")} == {}
        assert found.status == "equal"


def test_old_torch_files_load_in_a_new_one_and_the_changed_default_is_explained(tmp_path: Path) -> None:
    """torch 1.13.1 loads whole pickled modules by default, 2.6.0 refuses them."""
    try:
        old = interpreter(tmp_path / "old", "torch==1.13.1", "numpy<2", "setuptools<81")
        new = interpreter(tmp_path / "new", "torch==2.6.0", "numpy")
        found = compare.upgrade(old, new, frameworks=("torch",), gpus=NO_GPU, console=QUIET)
    finally:
        shutil.rmtree(tmp_path)
    assert {c.name: c.detail for c in found.checks if c.outcome not in ("passed", "unavailable")} == {}
    (trap,) = found.traps
    assert trap.outcome == "passed" and compare.trap_differs(trap) and "weights_only" in trap.detail
    assert found.status == "equal"


def test_every_route_of_tensorflow_is_measured(keras3: inside.Environment) -> None:
    found = bench.measure(keras3, framework="tensorflow", gpus=NO_GPU, console=QUIET, batch=2, runs=3)
    outcomes = {route.name: route.outcome for route in found.routes}
    assert outcomes.pop("export.tensorrt") == "unavailable"
    assert set(outcomes.values()) == {"passed"} and len(outcomes) == 6
    figures = {route["name"]: route for route in found.document()["routes"]}
    assert figures["export.onnx"]["peak_memory_bytes"] < figures["function"]["peak_memory_bytes"]
