"""Every combination of the sweep against the hand-written oracle: no false ok, no false conflict."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from envforge import compat
from envforge.verdict import FrameworkRequest, Request, Verdict, judge


def _oracle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdict_oracle", Path(__file__).with_name("oracle.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


oracle = _oracle()
PYTHONS = ("3.7", "3.8", "3.11", "3.12", "3.14")


def ask(name: str, version: str, cuda: str, python: str, driver: str, gpus: tuple[str, ...] = ()) -> Verdict:
    request = Request(
        python=python,
        cuda=cuda,
        driver=driver,
        gpus=gpus,
        frameworks=(FrameworkRequest(name=name, version=version, accelerator="cuda"),),
    )
    return judge(request, compat.load())


def test_the_oracle_imports_nothing_of_the_product() -> None:
    text = Path(oracle.__file__ or "").read_text(encoding="utf-8")
    assert "import envforge" not in text and "from envforge" not in text


@pytest.mark.parametrize("version", oracle.TORCH)
def test_torch_sweep(version: str) -> None:
    """Release × CUDA × Python × one GPU per capability × a driver on each side of each floor."""
    wrong = []
    count = 0
    for cuda in (*oracle.TORCH[version][1], "11.1" if "11.1" not in oracle.TORCH[version][1] else "12.0"):
        for python in PYTHONS:
            for gpu in oracle.GPUS:
                for driver in oracle.SIDES:
                    works, driver_answer, card = oracle.torch(version, cuda, python, gpu, driver)
                    found = ask("torch", version, cuda, python, driver, (gpu,))
                    count += 1
                    seen = (found.works, found.driver["answer"], found.gpus[0]["answer"])
                    if not driver_answer:
                        seen = (found.works, "", "")
                    if seen != (works, driver_answer, card):
                        wrong.append((cuda, python, gpu, driver, "expected", (works, driver_answer, card), "got", seen))
    assert count > 5_000
    assert wrong[:5] == []


@pytest.mark.parametrize("version", oracle.TENSORFLOW)
def test_tensorflow_sweep(version: str) -> None:
    wrong = []
    for cuda in oracle.DRIVERS:
        for python in PYTHONS:
            for driver in oracle.SIDES:
                works, answer = oracle.tensorflow(version, cuda, python, driver)
                found = ask("tensorflow", version, cuda, python, driver)
                if (found.works, found.driver["answer"] if answer else "") != (works, answer):
                    wrong.append((cuda, python, driver, "expected", works, answer, "got", found.verdict, found.driver))
    assert wrong[:5] == []


@pytest.mark.parametrize("version", oracle.JAX)
def test_jax_sweep(version: str) -> None:
    wrong = []
    for cuda in oracle.DRIVERS:
        for python in PYTHONS:
            for driver in oracle.SIDES:
                works, answer = oracle.jax(version, cuda, python, driver)
                found = ask("jax", version, cuda, python, driver)
                if (found.works, found.driver["answer"] if answer else "") != (works, answer):
                    wrong.append((cuda, python, driver, "expected", works, answer, "got", found.verdict, found.driver))
    assert wrong[:5] == []


@pytest.mark.parametrize(("version", "cuda"), oracle.TORCH_DEFAULT.items())
def test_default_build(version: str, cuda: str) -> None:
    assert compat.load().default_index_cuda("torch", version) == cuda


@pytest.mark.parametrize("version", oracle.TENSORFLOW)
def test_tensorflow_cudnn(version: str) -> None:
    _, cuda, cudnn = oracle.TENSORFLOW[version]
    assert compat.load().cudnn_for("tensorflow", version, cuda) == cudnn


@pytest.mark.parametrize("cuda", oracle.DRIVERS)
def test_driver_floors(cuda: str) -> None:
    floors = compat.load().driver_floors(cuda)
    assert floors is not None
    assert (floors.native, floors.minor) == oracle.DRIVERS[cuda]


def test_a_wrong_oracle_is_noticed() -> None:
    """Control: the comparison is able to fail."""
    works, answer, card = oracle.torch("2.6.0", "12.4", "3.11", "GeForce RTX 5090", "580.65.06")
    assert (works, answer, card) == (False, "native", "none")
    found = ask("torch", "2.8.0", "12.8", "3.11", "580.65.06", ("GeForce RTX 5090",))
    assert (found.works, found.gpus[0]["answer"]) != (works, card)
