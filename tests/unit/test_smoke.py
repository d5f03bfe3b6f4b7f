"""Planning on the host, reading what the ladder says, and the forms of the report."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from smoke_kit import ALL, AUTO, NONE, ROOT, SUITE, copy_suite, fake_plan, inside

from envforge import junit, passthrough, smoke
from envforge.cli import main
from envforge.compat import load as tables
from envforge.console import Console
from envforge.engine import GpuRequest
from envforge.errors import EngineError, NothingSelected
from envforge.lock import Lock, LockedBase, LockedPackage
from envforge.resolve import Resolution, resolve
from envforge.spec import load as load_spec


def resolution(name: str) -> Resolution:
    return resolve(load_spec(name), tables())


def lock_of(found: Resolution, *packages: str) -> Lock:
    return Lock(
        name=found.name,
        resolution_digest="sha256:r",
        inputs_digest="sha256:i",
        python=found.python,
        platform=found.platform,
        base=LockedBase(image=found.base.image, digest=None, reason="test"),
        pip=tuple(LockedPackage(name=p, version="1.0", index="default", hashes=("sha256:0",)) for p in packages),
    )


def names(plan: smoke.SmokePlan, framework: str) -> set[str]:
    return {check.name for check in plan.checks if check.framework == framework}


# -- the plan --------------------------------------------------------------------------------------------------


def test_the_plan_of_a_cuda_environment_carries_what_is_promised() -> None:
    found = resolution("torch-cu124")
    plan = smoke.make_plan(found, lock_of(found, "torch", "onnx", "onnxruntime"), level=4, gpus=ALL)
    document = plan.document()
    (entry,) = document["frameworks"]
    assert entry["key"] == "torch" and entry["accelerator"] == "cuda" and entry["cuda"] == "12.4"
    assert entry["version"] == found.frameworks[0].version
    assert document["expect_gpu"] == "promised" and document["packages"]["torch"] == "1.0"
    assert set(entry["required"]) == {
        "export.checkpoint",
        "export.torchscript_script",
        "export.torchscript_trace",
        "export.torch_export",
        "export.onnx",
    }
    assert document["labels_expected"]["envforge.inputs-digest"] == "sha256:i"
    assert document["user"]["uid"] == 1000 and found.workdir in document["user"]["writable"]
    assert not any(check["level"] > 4 for check in document["checks"])


def test_a_route_whose_package_is_not_locked_is_not_required() -> None:
    found = resolution("torch-cu124")
    plan = smoke.make_plan(found, lock_of(found, "torch"), level=4, gpus=AUTO)
    assert "export.onnx" not in plan.frameworks[0].required and "export.onnx" in names(plan, "torch")


def test_stablehlo_is_required_of_jax_whether_or_not_flatbuffers_is_locked() -> None:
    found = resolution("jax-cpu")
    plan = smoke.make_plan(found, lock_of(found, "jax"), level=4, gpus=AUTO)
    assert "export.stablehlo" in plan.frameworks[0].required


def test_a_framework_counts_as_there_under_any_of_its_distribution_names() -> None:
    found = resolution("tensorflow-jax-cpu")
    plan = smoke.make_plan(found, lock_of(found, "tensorflow-cpu", "jax"), level=4, gpus=AUTO)
    assert "export.savedmodel" in {entry.key: entry.required for entry in plan.frameworks}["jax"]


@pytest.mark.parametrize(
    ("gpus", "expect", "count"),
    [
        (NONE, "none", None),
        (AUTO, "auto", None),
        (ALL, "promised", None),
        (GpuRequest(kind="count", count=2), "promised", 2),
        (GpuRequest(kind="devices", devices=("0", "3")), "promised", 2),
    ],
)
def test_what_is_promised(gpus: GpuRequest, expect: str, count: int | None) -> None:
    document = fake_plan(gpus=gpus).document()
    assert (document["expect_gpu"], document["gpu_count"]) == (expect, count)


def test_two_frameworks_are_also_compared_with_each_other() -> None:
    found = resolution("torch-jax-cpu")
    plan = smoke.make_plan(found, lock_of(found, "torch", "jax"), level=3, gpus=AUTO)
    cross = names(plan, "crossframework")
    order = {entry.key: entry for entry in plan.frameworks}["crossframework"].frameworks
    assert {f"crossframework.import_{order[0]}_{order[1]}", f"crossframework.import_{order[1]}_{order[0]}"} <= cross
    assert {"crossframework.weights", "crossframework.model", "crossframework.trap_tf32"} <= cross
    assert {"torch", "jax", "crossframework", ""} == {check.framework for check in plan.checks}


@pytest.mark.parametrize(("name", "backend"), [("keras-jax-cpu", "jax"), ("keras-tf-cpu", "tensorflow")])
def test_keras_runs_on_its_backend_in_a_process_of_its_own(name: str, backend: str) -> None:
    found = resolution(name)
    plan = smoke.make_plan(found, lock_of(found, "keras"), level=4, gpus=AUTO)
    keras = next(entry for entry in plan.frameworks if entry.adapter == "keras")
    assert (keras.backend, dict(keras.env)["KERAS_BACKEND"]) == (backend, backend)
    assert "crossframework" not in {entry.key for entry in plan.frameworks}


def test_bc56_accelerators_and_backends_are_per_framework() -> None:
    found = resolution("torch-jax-cpu")
    mixed = replace(
        found,
        frameworks=(
            replace(found.frameworks[0], name="tensorflow", accelerator="cpu", cuda=None),
            replace(found.frameworks[0], name="torch", accelerator="cpu", cuda=None),
            replace(found.frameworks[0], name="jax", accelerator="cuda", cuda="12"),
            replace(found.frameworks[0], name="keras", accelerator="cpu", cuda=None),
        ),
        env=(),
    )
    plan = smoke.make_plan(mixed, None, level=4, gpus=ALL)
    accelerators = {entry.key: entry.accelerator for entry in plan.frameworks if entry.adapter != "crossframework"}
    assert accelerators == {
        "tensorflow": "cpu",
        "torch": "cpu",
        "jax": "cuda",
        "keras-tensorflow": "cpu",
        "keras-jax": "cuda",
        "keras-torch": "cpu",
    }


def test_every_catalogue_entry_with_a_framework_has_a_plan_whose_adapters_exist() -> None:
    seen = set()
    for path in sorted((ROOT / "envforge/catalog").glob("*-cpu.yaml")):
        found = resolution(path.stem)
        for entry in smoke.make_plan(found, None, level=5, gpus=AUTO).frameworks:
            seen.add(entry.adapter)
            assert entry.adapter == "crossframework" or (SUITE / f"adapters/{entry.adapter}_.py").is_file()
    assert {"torch", "tensorflow", "jax", "keras", "paddle", "mindspore", "mxnet", "crossframework"} == seen


def test_every_planned_name_has_an_implementation() -> None:
    known = smoke.known_checks()
    ladder, structure, cross = inside("ladder"), inside("structure"), inside("cross")
    assert set(known["image"]) == set(structure.CHECKS)
    for name in [*known["framework"], *known["stress"]]:
        assert callable(getattr(ladder.Ladder, "check_" + name.replace(".", "_")))
    assert {name.partition(".")[2] for name in known["cross"]} == set(cross._CHECKS)
    for framework, entry in known["frameworks"].items():
        adapter = importlib.import_module(f"envforge_smoke.adapters.{framework}_").Adapter(
            {"backend": "torch"}, {"expect_gpu": "auto"}
        )
        assert set(entry["exports"]) == set(adapter.routes()), framework


# -- reading ---------------------------------------------------------------------------------------------------


def line(name: str, outcome: str = "passed", **more: object) -> str:
    return smoke.MARKER + json.dumps({"check": name, "framework": "fake", "outcome": outcome, "seconds": 1, **more})


def all_lines(plan: smoke.SmokePlan) -> list[str]:
    return [line(check.name) for check in plan.checks]


def test_noise_around_and_before_the_marker_is_no_trouble() -> None:
    plan = fake_plan(level=1)
    text = "\n".join(
        [
            "W0000 warning",
            *("half a progress bar 50%" + x for x in all_lines(plan)),
            '{"check": "x"}',
            "@envforge {broken",
        ]
    )
    report = smoke.judge(plan, text, engine="docker", image="i")
    assert report.status == "passed" and report.noise == ()


def test_a_check_that_does_not_report_is_an_error_and_says_how_the_run_ended() -> None:
    plan = fake_plan(level=1)
    report = smoke.judge(plan, "\n".join(all_lines(plan)[:-1]), engine="docker", image="i", ended="killed for memory")
    assert report.checks[-1].outcome == "error" and "killed for memory" in report.checks[-1].detail
    assert report.status == "error" and not smoke.earns_tag(report)


def test_an_outcome_that_is_none_counts_as_an_error() -> None:
    plan = fake_plan(level=1)
    text = "\n".join([line(plan.checks[0].name, "great"), *all_lines(plan)[1:]])
    assert smoke.judge(plan, text, engine="docker", image="i").checks[0].outcome == "error"


def test_a_report_of_nothing_earns_no_tag() -> None:
    plan = fake_plan(level=1)
    text = "\n".join(line(check.name, "unavailable") for check in plan.checks)
    report = smoke.judge(plan, text, engine="docker", image="i")
    assert report.status == "passed" and not smoke.earns_tag(report)


def test_a_check_left_out_by_the_spec_says_why_and_is_not_run() -> None:
    plan = replace(fake_plan(), without={"export.onnx": "no ONNX here"})
    assert "export.onnx" not in {check["name"] for check in plan.document()["checks"]}
    text = "\n".join(x for x in all_lines(plan) if "export.onnx" not in x)
    report = smoke.judge(plan, text, engine="docker", image="i")
    left = next(check for check in report.checks if check.name == "export.onnx")
    assert left.outcome == "unavailable" and "no ONNX here" in left.detail and report.status == "passed"


def test_the_document_fits_its_schema() -> None:
    schema = json.loads((ROOT / "envforge/data/smoke_report.schema.json").read_text())
    plan = fake_plan(level=1)
    good = smoke.judge(plan, "\n".join(all_lines(plan)), engine="docker", image="i").document()
    jsonschema.validate(good, schema)
    bad = json.loads(json.dumps(good))
    bad["checks"][0]["outcome"] = "skipped"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, schema)


def test_junit_counts_and_survives_control_characters() -> None:
    plan = fake_plan(level=1)
    text = "\n".join(
        [
            line(plan.checks[0].name, "failed", detail="bad \x1b[31m <tag> & \x00", cause="cpu-build"),
            line(plan.checks[1].name, "unavailable", detail="no GPU"),
        ]
    )
    report = smoke.judge(plan, text, engine="docker", image="i")
    suite = ElementTree.fromstring(junit.render([report.document()])).find("testsuite")
    assert suite is not None
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["3", "1", "1", "1"]
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.get("type") == "cpu-build" and "<tag>" in (failure.get("message") or "")


# -- an interpreter of this host ----------------------------------------------------------------------------------


def test_run_python_climbs_with_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_suite(tmp_path)
    monkeypatch.setattr("envforge.resources.shipped", lambda name: tmp_path / name)
    report = smoke.run_python(Path(sys.executable), fake_plan(level=2), console=Console(verbosity=-1))
    assert report.status == "passed" and report.engine == "python"


def test_an_interpreter_without_a_framework_is_nothing_to_test() -> None:
    with pytest.raises(NothingSelected):
        smoke.run_python(Path(sys.executable), console=Console(verbosity=-1), level=1, gpus=AUTO)


@pytest.mark.parametrize("path", ["/nonexistent/python", "/bin/true", "/"])
def test_what_is_no_interpreter(path: str) -> None:
    with pytest.raises(EngineError) as caught:
        smoke.probe_python(Path(path))
    assert caught.value.reference == "no-interpreter"


@pytest.mark.parametrize(
    ("gpus", "given", "seen"),
    [
        ("none", "0,1", ""),
        ("auto", "0,1", "0,1"),
        ("all", None, None),
        ("2", "4,5,6", "4,5"),
        ("2", None, "0,1"),
        ("device=1,3", None, "1,3"),
    ],
)
def test_which_gpus_an_interpreter_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, given: str | None, seen: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    env = smoke._python_env(tmp_path, passthrough.parse_gpus(gpus))
    assert env.get("CUDA_VISIBLE_DEVICES") == seen


def test_the_command_prints_one_document_and_exit_8_for_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_suite(tmp_path)
    monkeypatch.setattr("envforge.resources.shipped", lambda name: tmp_path / name)
    behaviour: dict[str, object] = {}
    monkeypatch.setattr(smoke, "probe_python", lambda python: {"frameworks": [{"name": "fake"}], "packages": {}})
    monkeypatch.setattr(smoke, "make_plan", lambda *_, **options: fake_plan(behaviour, level=options["level"]))
    words = ["smoke", "--python", sys.executable, "--level", "2", "--json", "--junit", str(tmp_path / "j.xml")]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "passed" and Path(document["record"]).is_file()
    assert ElementTree.parse(tmp_path / "j.xml").getroot().tag == "testsuites"
    behaviour["place"] = "elsewhere"
    assert main(words) == 8
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "failed"
    assert {c["name"]: c["outcome"] for c in document["checks"]}["numerics.tensor"] == "failed"


def test_only_the_standard_library_and_yaml_are_needed_beside_the_package() -> None:
    """The GPU host has neither packaging nor docker nor jinja2: forbid them and run the command."""
    code = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('packaging', 'docker', 'jinja2', 'requests', 'rich', 'filelock', 'rattler',"
        " 'uv', 'pynvml'):\n"
        "            raise ImportError('not here: ' + name)\n"
        "sys.meta_path.insert(0, No())\n"
        "from envforge.cli import main\n"
        f"sys.exit(main(['smoke', '--python', {sys.executable!r}, '--level', '5', '--json', '--gpus', 'all']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert json.loads(done.stdout)["error"]["reference"] == "no-framework", done.stderr
    assert done.returncode == 9
