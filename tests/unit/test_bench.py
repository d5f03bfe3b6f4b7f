"""The benchmark's judgement, table and plot; the part inside with a stand-in framework and the real suite."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from envforge import bench, cli, inside, smoke
from envforge.console import Console
from envforge.engine import GpuRequest
from envforge.errors import NothingSelected, UsageError

ROOT = Path(__file__).resolve().parents[2]
QUIET = Console(verbosity=-1)
NO_GPU = GpuRequest(kind="none")

ADAPTER = """
import os
import numpy as np
from envforge_smoke.adapters.base import Base


class Adapter(Base):
    name = "jax"

    def load(self):
        if os.environ.get("FAKE_BENCH") == "import":
            raise ImportError("No module named 'flatbuffers'")

    def versions(self):
        return {"version": "1.0", "cuda": None}

    def gpus(self):
        return []

    def seed(self, number):
        np.random.seed(number)
"""

BENCH = """
import os, shutil, sys, time
import numpy as np
from envforge_smoke import bench_model
from envforge_smoke.outcome import MissingPackage

DO = os.environ.get("FAKE_BENCH", "")


class Bench(object):
    ROUTES = ("plain", "export.good", "export.bad", "export.tensorrt")
    STATIC = ("export.good",)

    def __init__(self, adapter, device):
        self.a = adapter

    def model(self, weights):
        if DO == "weights":
            weights = dict(weights, fc_b=weights["fc_b"] + 1)
        return weights

    def native(self, model):
        return lambda x: bench_model.forward(model, x).astype(np.float32)

    def write(self, route, model, x, folder):
        if route == "export.bad" and DO == "package":
            raise MissingPackage("nonesuch")
        with open(os.path.join(folder, "m.bin"), "wb") as stream:
            stream.write(b"x" * len(x))

    def load(self, route, folder, weights):
        # A network in NumPy is slow; the answers are known beforehand, only that they are given is measured.
        with np.load(os.path.join(os.path.dirname(os.path.dirname(folder)), "expected.npz")) as saved:
            y = saved["y"]
        size = os.path.getsize(os.path.join(folder, "m.bin"))
        if route == "export.bad":
            if DO == "wrong":
                y = y + 1
            if DO == "die":
                os.kill(os.getpid(), 9)
            if DO == "hang":
                time.sleep(600)

        def call(x):
            if route == "export.good" and len(x) != size:
                raise ValueError("written for {0} images, given {1}".format(size, len(x)))
            time.sleep(0.002)
            return y

        return call
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> inside.Environment:
    suite = smoke.suite()
    suite["smoke_tests/adapters/jax_.py"] = ADAPTER.encode()
    suite["smoke_tests/bench_jax.py"] = BENCH.encode()
    monkeypatch.setattr(smoke, "suite", lambda: dict(suite))
    found = {"python": "3.11.2", "frameworks": [{"name": "jax", "version": "1.0"}]}
    return inside.Environment(name="fake", python=Path(sys.executable), found=found)


def measure(environment: inside.Environment, **options: Any) -> bench.Bench:
    settings = {"batch": 4, "runs": 20, "timeout": 60, **options}
    return bench.measure(environment, framework="jax", gpus=NO_GPU, console=QUIET, **settings)


def by_name(found: bench.Bench) -> dict[str, bench.Route]:
    return {route.name: route for route in found.routes}


def test_every_route_is_measured_in_its_own_process(environment: inside.Environment) -> None:
    found = measure(environment)
    assert {n: r.outcome for n, r in by_name(found).items()} == {
        "plain": "passed",
        "export.good": "passed",
        "export.bad": "passed",
        "export.tensorrt": "unavailable",
    }
    assert found.status == "passed"
    document = json.loads(json.dumps(found.document()))
    good = document["routes"][1]
    assert 2 <= good["latency_ms"]["best"] <= good["latency_ms"]["median"] <= good["latency_ms"]["p95"]
    assert good["throughput_per_second"] == pytest.approx(4 / 0.002, rel=0.9)
    assert good["cold_start_seconds"] > good["load_seconds"] > 0
    assert good["peak_memory_bytes"] > 10_000_000 and good["file_bytes"] == 1
    assert document["parameters"] == 11_173_962
    assert document["reference_error"] < 1e-6 and document["device"] == "cpu"
    assert "GPU" in document["routes"][3]["detail"]


@pytest.mark.parametrize(
    ("fault", "outcome", "status", "words"),
    [
        ("wrong", "failed", "failed", "differs from the model"),
        ("die", "error", "error", "killed"),
        ("hang", "error", "error", "time limit of 8 s"),
        ("package", "unavailable", "passed", "nonesuch"),
    ],
)
def test_a_bad_route_does_not_spoil_the_others(
    environment: inside.Environment, monkeypatch: pytest.MonkeyPatch, fault: str, outcome: str, status: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_BENCH", fault)
    limit = 8 if fault == "hang" else 60
    found = measure(environment, runs=3, timeout=limit, routes=["export.bad", "plain"] if fault == "hang" else [])
    routes = by_name(found)
    assert routes["export.bad"].outcome == outcome and words in routes["export.bad"].detail
    assert routes["plain"].outcome == "passed" and found.status == status


@pytest.mark.parametrize(("fault", "words"), [("weights", "NumPy reference"), ("import", "flatbuffers")])
def test_a_wrong_model_or_framework_measures_nothing(
    environment: inside.Environment, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_BENCH", fault)
    found = measure(environment, runs=3)
    assert found.status == "error"
    assert [route.outcome for route in found.routes] == ["error"] and words in found.routes[0].detail


def test_a_route_that_does_not_exist_is_an_error(environment: inside.Environment) -> None:
    found = measure(environment, runs=3, routes=["export.nothing"])
    assert found.status == "error" and "no such route" in found.routes[0].detail


def document(**change: Any) -> dict[str, Any]:
    facts = {
        "latency_ms": {"median": 1.5, "p95": 3.0, "best": 1.0},
        "throughput_per_second": 640.0,
        "cold_start_seconds": 2.25,
        "peak_memory_bytes": 512_000_000,
        "file_bytes": 44_800_000,
    }
    good = bench.Route(name="export.onnx", outcome="passed", detail="", cause="", facts=facts)
    none = bench.Route(name="export.tensorrt", outcome="unavailable", detail="needs <a GPU> & more", cause="", facts={})
    found = bench.Bench(
        environment={"name": "x<y>", "engine": "docker", "image": "sha256:1"},
        framework="torch",
        routes=change.get("routes", (good, none)),
        began={"device": "cpu", "versions": {"version": "2.6.0"}},
        batch=32,
        runs=100,
        seconds=1.0,
    )
    return found.document()


def test_the_table_shows_figures_and_reasons() -> None:
    text = bench.markdown(document())
    assert "| onnx | 1.50 | 3.00 | 640.0 | 512 | – | 2.2 | 44.8 |" in text
    assert "| tensorrt (unavailable) | – | – |" in text
    assert "- export.tensorrt: unavailable — needs <a GPU> & more" in text
    assert "100 calls after 10 dropped" in text and "batches of 32" in text


def test_the_plot_is_well_formed_and_to_scale() -> None:
    root = ElementTree.fromstring(bench.svg(document()))
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text or "" for element in root.iter(f"{space}text")]
    assert any("x<y>" in text for text in texts) and texts.count("onnx") == 4 and "tensorrt" not in texts
    bars = [float(element.attrib["width"]) for element in root.iter(f"{space}rect")][1:]
    assert bars == [210.0, 420.0, 420.0, 420.0]  # the median is half of the p95 that fills the width
    empty = document(routes=(bench.Route(name="a", outcome="error", detail="", cause="", facts={}),))
    assert "no route could be measured" in bench.svg(empty)


def test_the_framework_is_the_first_that_can_be_measured() -> None:
    def holds(*names: str) -> inside.Environment:
        found = {"frameworks": [{"name": name, "version": "1"} for name in names]}
        return inside.Environment(name="e", python=Path("p"), found=found)

    assert bench.pick(holds("jax", "torch"), None) == "torch" and bench.pick(holds("jax", "torch"), "jax") == "jax"
    with pytest.raises(UsageError, match="'tensorflow'"):
        bench.pick(holds("jax"), "tensorflow")
    with pytest.raises(NothingSelected):
        bench.pick(holds("mxnet"), None)


@pytest.mark.parametrize("words", [["--batch", "0"], ["--runs", "0"], ["--timeout", "-1"], ["--plot", "x.png"]])
def test_wrong_options_are_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "jax-cpu", *words]) == 2
    assert "error[usage]" in capsys.readouterr().err


def test_the_command_writes_plot_and_table(
    environment: inside.Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inside, "find", lambda *_, **__: environment)
    plot, table = tmp_path / "out" / "b.svg", tmp_path / "b.md"
    words = ["bench", "x", "--runs", "3", "--batch", "2", "--gpus", "none", "--route", "plain"]
    assert cli.main([*words, "--plot", str(plot), "--table", str(table)]) == 0
    assert "plain" in capsys.readouterr().out
    assert ElementTree.fromstring(plot.read_text()).tag.endswith("svg") and "| plain |" in table.read_text()
    monkeypatch.setenv("FAKE_BENCH", "import")
    assert cli.main([*words, "--json"]) == 8
    assert json.loads(capsys.readouterr().out)["status"] == "error"


def model_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_model", ROOT / "smoke_tests" / "bench_model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_model_is_resnet_18() -> None:
    """Counted by hand: 20 convolutions, 11 173 962 trained numbers for 10 classes."""
    model = model_module()
    weights = model.weights(0)
    trained = sum(w.size for n, w in weights.items() if not n.endswith(("_mean", "_var")))
    assert trained == 11_173_962
    assert sum(w.ndim == 4 for w in weights.values()) == 20
    x = model.images(0, 2)
    y = model.forward(weights, x)
    assert y.shape == (2, 10) and y.dtype == np.float64
    np.testing.assert_allclose(model.forward(weights, x[1:]), y[1:], rtol=1e-12)
    assert np.abs(y[0] - y[1]).max() > 1e-3
