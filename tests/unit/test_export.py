"""`envforge export`: each format is read back by its own tool's reader where one can be had here."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from packaging.pylock import Pylock as StandardPylock

from envforge import cli, compat, exporters, lock, pylock, spec
from envforge.errors import LockError, UsageError
from envforge.plan import BuildPlan, Rendered, make_plan
from envforge.pylock import PylockFile
from envforge.render import render
from envforge.resolve import resolve


def _plan(name: str) -> BuildPlan:
    resolution = resolve(spec.load(name), compat.load())
    found = lock.read(name)
    assert found is not None
    return make_plan(resolution, found, "plain")


@pytest.fixture(scope="module")
def torch() -> BuildPlan:
    return _plan("torch-cu118")


@pytest.fixture(scope="module")
def conda() -> BuildPlan:
    return _plan("torch-conda-cu129")


def _pins(found: lock.Lock) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {one.name: (one.version, one.hashes) for one in found.pip}


def test_requirements_hold_every_pin_and_hash(torch: BuildPlan) -> None:
    assert torch.lock is not None
    target = pylock.Target(python="3.11", platform="linux/amd64")
    back = pylock.read_requirements(exporters.requirements(torch.lock), target)
    assert {one.name: (one.version, one.hashes) for one in back.packages} == _pins(torch.lock)
    assert back.extra_index_urls == ("https://download.pytorch.org/whl/cu118",)


def test_pylock_is_valid_by_the_standard_reader(torch: BuildPlan) -> None:
    import tomllib

    assert torch.lock is not None
    places = {
        value: PylockFile(
            name=f"{one.name.replace('-', '_')}-{one.version}-py3-none-any.whl",
            url=f"https://files.invalid/{number}/{one.name.replace('-', '_')}-{one.version}-py3-none-any.whl",
            hashes={"sha256": value.removeprefix("sha256:")},
        )
        for one in torch.lock.pip
        for number, value in enumerate(one.hashes)
    }
    text = pylock.dumps(pylock.from_lock(torch.lock, places))
    document = StandardPylock.from_dict(tomllib.loads(text))
    assert {str(one.name): str(one.version) for one in document.packages} == {
        one.name: one.version for one in torch.lock.pip
    }


def test_environment_yml_holds_both_kinds(torch: BuildPlan, conda: BuildPlan) -> None:
    assert torch.lock is not None and conda.lock is not None
    document = yaml.safe_load(exporters.environment_yml(torch.lock))
    (pip,) = [entry["pip"] for entry in document["dependencies"] if isinstance(entry, dict)]
    assert len(pip) == len(torch.lock.pip) + 1  # and the index
    assert all(re.fullmatch(r"\S+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in pip[1:])
    document = yaml.safe_load(exporters.environment_yml(conda.lock))
    assert set(document["dependencies"]) == {
        f"{one.name}={one.version}={one.build}" for one in conda.lock.conda
    }


def test_conda_explicit_names_every_package_by_address_and_hash(conda: BuildPlan) -> None:
    assert conda.lock is not None
    lines = exporters.conda_explicit(conda.lock).splitlines()
    addresses = [line for line in lines if line.startswith("https://")]
    assert lines.index("@EXPLICIT") < lines.index(addresses[0])
    assert len(addresses) == len(conda.lock.conda)
    for one in conda.lock.conda:
        assert any(
            line.endswith(f"/{one.subdir}/{one.filename}#sha256:{one.sha256}") for line in addresses
        ), one.name


def test_a_format_that_would_lose_packages_is_refused(torch: BuildPlan, conda: BuildPlan) -> None:
    assert torch.lock is not None and conda.lock is not None
    for write, found, reference in (
        (exporters.requirements, conda.lock, "export-not-pip"),
        (exporters.require_pip_only, conda.lock, "export-not-pip"),
        (exporters.conda_explicit, torch.lock, "export-not-conda"),
    ):
        with pytest.raises(LockError) as caught:
            write(found)
        assert caught.value.reference == reference and "--format" in caught.value.hint


def test_devcontainer(torch: BuildPlan) -> None:
    document = json.loads(exporters.devcontainer(torch, "registry.lab:5000/ml/torch:abc"))
    assert document["image"] == "registry.lab:5000/ml/torch:abc"
    assert document["hostRequirements"] == {"gpu": "optional"}
    assert document["remoteUser"] == torch.resolution.user.name
    assert "hostRequirements" not in json.loads(exporters.devcontainer(_plan("jax-cpu"), "x:y"))


@pytest.mark.parametrize("name", ["torch-cu118", "torch-conda-cu129", "jax-cpu"])
def test_apptainer_definition_has_the_steps_and_files_of_the_dockerfile(name: str) -> None:
    plan = _plan(name)
    rendered = render(plan)
    text = exporters.apptainer(plan, rendered)
    assert f"\nFrom: {plan.base}\n" in text
    body = text.split("\n%post\n")[1].split("\n%environment\n")[0]
    runs = [one.body for one in exporters.instructions(rendered.dockerfile) if one.word == "RUN"]
    assert runs and all(run in body for run in runs)
    checked = subprocess.run(["sh", "-n"], input=body, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for path, content in rendered.files.items():
        if path.startswith("locks/"):
            assert content.decode() in body, path
    broken = subprocess.run(
        ["sh", "-n"], input=body + "\nif true", text=True, capture_output=True, check=False
    )
    assert broken.returncode != 0  # control: sh does read it


def test_files_reach_the_definition_byte_for_byte(tmp_path: Path) -> None:
    files = {
        "files/a/text": b"plain\n",
        "files/a/no-end": b"no newline",
        "files/a/section": b"%post\nrm -rf /\n",
        "files/a/mark": b"ENVFORGE_FILE\n",
        "files/a/bytes": bytes(range(256)),
    }
    lines = exporters._copied(f"--chown=1:1 files/a/ {tmp_path}/out/", files)
    subprocess.run(["sh", "-eu"], input="\n".join(lines), text=True, check=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        name.rpartition("/")[2]: content for name, content in files.items()
    }
    assert not any(line.startswith("%") for text in lines for line in text.splitlines())
    assert base64.b64encode(b"no newline").decode() in "\n".join(lines)


def test_a_second_base_is_refused(torch: BuildPlan) -> None:
    with pytest.raises(UsageError) as caught:
        exporters.apptainer(
            torch, Rendered(dockerfile=f"FROM {torch.base} AS base\nFROM other:1 AS compat\n")
        )
    assert caught.value.reference == "export-apptainer" and "docker-daemon://" in caught.value.hint


def test_run_lines(torch: BuildPlan) -> None:
    text = exporters.run_lines(torch.resolution, "registry.lab:5000/ml/torch:abc")
    for line in (
        "docker run --rm",
        "--gpus all",
        "podman run",
        "nvidia.com/gpu=all",
        "apptainer exec --nv",
        "srun --gpus=1",
    ):
        assert line in text
    assert "registry.lab:5000#ml/torch:abc" in text
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    pod = yaml.safe_load(block)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        assert subprocess.run(["sh", "-n"], input=block, text=True, check=False).returncode == 0
    cpu = exporters.run_lines(replace(torch.resolution, cuda=None), "x:y")
    assert "--gpus" not in cpu and "nvidia" not in cpu and "--nv" not in cpu


@pytest.mark.parametrize("text", ["x; rm -rf /", "a b", "$(x)", "", "-x", "a\nb"])
def test_an_image_that_is_none_is_refused(torch: BuildPlan, text: str) -> None:
    with pytest.raises(UsageError, match="no image reference"):
        exporters.run_lines(torch.resolution, text)


def test_command_writes_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "sub" / "requirements.txt"
    assert cli.main(["export", "jax-cpu", "--format", "requirements", "-o", str(target), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["content"] == target.read_text() and document["format"] == "requirements"
    assert cli.main(["export", "jax-cpu", "--format", "requirements"]) == 0
    assert capsys.readouterr().out == target.read_text()
    assert cli.main(["export", "torch-cu92", "--format", "requirements"]) == 5
