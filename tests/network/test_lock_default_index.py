"""Locks from the real default index: known releases, days in the past, and reported cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envforge import compat, resources
from envforge import lock as lockfile
from envforge.errors import LockError
from envforge.lock import LockedPackage, dumps
from envforge.lockers import pip
from envforge.resolve import resolve
from envforge.spec import load
from tests.lock_samples import quiet_console, resolution, sample_lock

pytestmark = pytest.mark.network


def lock(*requirements: str, **options: Any) -> dict[str, LockedPackage]:
    console = options.pop("console", quiet_console())
    chosen = {key: options.pop(key) for key in ("as_of", "upgrade", "previous") if key in options}
    return {
        package.name: package for package in pip.lock(resolution(*requirements, **options), console=console, **chosen)
    }


def test_torch_260_brings_the_cuda_124_libraries() -> None:
    found = lock("torch==2.6.0")
    assert found["torch"].version == "2.6.0"
    assert found["nvidia-cublas-cu12"].version == "12.4.5.8"
    assert found["nvidia-cudnn-cu12"].version == "9.1.0.70"
    assert found["triton"].version == "3.2.0"
    assert all(package.index == "default" for package in found.values())
    # One wheel for Python 3.11 on x86-64, and no source archive beside it.
    assert len(found["torch"].hashes) == len(found["triton"].hashes) == len(found["filelock"].hashes) == 1


def test_arm_gets_the_arm_wheel_and_no_cuda_libraries() -> None:
    found = lock("torch==2.6.0", platform="linux/arm64")
    assert not [name for name in found if name.startswith("nvidia-")]
    assert found["torch"].hashes != lock("torch==2.6.0")["torch"].hashes


def test_two_locks_of_one_day_agree_byte_for_byte() -> None:
    asked = ("torch==2.6.0", "onnx", "numpy")
    first, second = lock(*asked, as_of="2025-03-01"), lock(*asked, as_of="2025-03-01")
    made_for = resolution(*asked)
    assert dumps(sample_lock(made_for, *first.values())) == dumps(sample_lock(made_for, *second.values()))
    assert first["numpy"].version == "2.2.3"  # the newest on that day
    assert first["onnx"].version == "1.17.0"


def test_jax_0428_takes_cudnn_8_and_not_9() -> None:
    found = lock("jax[cuda12]==0.4.28")
    assert found["jaxlib"].version == "0.4.28"
    assert found["jax-cuda12-plugin"].version == "0.4.28"
    assert found["nvidia-cudnn-cu12"].version.startswith("8.9.")


def test_a_retired_framework_with_a_numpy_bound() -> None:
    assert lock("mxnet==1.9.1", "numpy<1.24")["numpy"].version == "1.23.5"
    with pytest.raises(LockError) as caught:
        lock("mxnet==1.9.1", "numpy<1.24", python="3.12")
    assert caught.value.reference == "lock-no-wheel"
    assert "numpy 1.23.5 has no wheel for Python 3.12" in caught.value.message
    assert caught.value.context == ("the spec asks for numpy<1.24", "mxnet needs numpy")


def test_a_withdrawn_release_is_reported_with_its_reason() -> None:
    console = quiet_console()
    found = lock("opencv-contrib-python-headless==4.3.0.36", python="3.8", console=console)
    assert found["opencv-contrib-python-headless"].yanked == "Release deprecated"
    assert "Release deprecated" in console.stderr.getvalue()  # type: ignore[attr-defined]


def test_a_family_pair_that_does_not_fit_names_both() -> None:
    with pytest.raises(LockError) as caught:
        lock("torch==2.6.0", "torchvision==0.22.1")
    told = " ".join(caught.value.context)
    assert "torchvision==0.22.1 depends on torch==2.7.1" in told
    assert "the spec asks for" in told


def test_a_wheel_for_another_python_only_is_named() -> None:
    with pytest.raises(LockError) as caught:
        lock("torch==2.0.1", python="3.13")
    assert caught.value.reference == "lock-no-wheel"
    assert "torch has no wheel for Python 3.13" in caught.value.message


@pytest.mark.parametrize("name", ["jax-cpu", "jax-cpu@py313", "tf-cpu", "torch-cu124", "torch-cu118@py312"])
def test_the_files_of_shipped_locks_are_still_on_the_index(name: str) -> None:
    made_for = resolve(load(name), compat.load())
    found = lockfile.read_folder(Path(resources.shipped("lockfiles")) / name)
    default = [package for package in found.pip if package.index == "default"]
    from dataclasses import replace

    places = pip.locate(replace(found, pip=tuple(default)), made_for, console=quiet_console())
    assert {value for package in default for value in package.hashes} == set(places)
