"""Locks of conda-lock and pixi are read as they are; what is missing in them is named."""

from __future__ import annotations

import pytest

from envforge.errors import LockError
from envforge.lockers import conda_import

A, B = "a" * 64, "b" * 64
CONDA_LOCK = f"""
version: 1
metadata:
  channels:
  - url: conda-forge
    used_env_vars: []
  platforms: [linux-64, osx-arm64]
  sources: [environment.yml]
package:
- name: python
  version: 3.12.11
  manager: conda
  platform: linux-64
  dependencies: {{}}
  url: https://conda.anaconda.org/conda-forge/linux-64/python-3.12.11-h9e4cc4f_0_cpython.conda
  hash: {{md5: x, sha256: {A}}}
  category: main
- hash: {{sha256: {B}}}
  url: https://user:pw@conda.anaconda.org/conda-forge/linux-64/jaxlib-0.7.2-cuda129py312h00_0.conda
  name: jaxlib
  version: 0.7.2
  manager: conda
  platform: linux-64
- name: keras-cv
  version: 0.9.0
  manager: pip
  platform: linux-64
  url: https://files.example/keras_cv-0.9.0-py3-none-any.whl
  hash: {{sha256: {A}}}
- name: pytest
  version: '8.0'
  manager: conda
  platform: linux-64
  url: https://conda.anaconda.org/conda-forge/noarch/pytest-8.0-pyhd8ed1ab_0.conda
  hash: {{sha256: {A}}}
  category: dev
- name: python
  version: 3.12.1
  manager: conda
  platform: osx-arm64
  url: https://conda.anaconda.org/conda-forge/osx-arm64/python-3.12.1-h1_0.conda
  hash: {{sha256: {A}}}
"""
PIXI = f"""
version: 6
environments:
  default:
    channels:
    - url: https://conda.anaconda.org/conda-forge/
    packages:
      linux-64:
      - conda: https://conda.anaconda.org/conda-forge/noarch/cuda-version-12.4-h3060b56_3.conda
      - conda: https://conda.anaconda.org/pytorch/linux-64/pytorch-2.4.1-py3.12_cuda12.4_cudnn9.1.0_0.tar.bz2
      - pypi: https://files.example/six-1.16.0-py2.py3-none-any.whl
  gpu:
    channels:
    - url: https://conda.anaconda.org/conda-forge/
    packages:
      linux-aarch64: []
packages:
- conda: https://conda.anaconda.org/conda-forge/noarch/cuda-version-12.4-h3060b56_3.conda
  sha256: {A}
  size: 20940
- conda: https://conda.anaconda.org/pytorch/linux-64/pytorch-2.4.1-py3.12_cuda12.4_cudnn9.1.0_0.tar.bz2
  sha256: {B}
- pypi: https://files.example/six-1.16.0-py2.py3-none-any.whl
  name: six
  version: 1.16.0
  sha256: {A}
"""


def test_bc51_the_contents_of_a_conda_lock_decide_the_cuda() -> None:
    found = conda_import.read(CONDA_LOCK, place="conda-lock.yml", declared_cuda="12.0")
    assert [(one.name, one.version, one.build, one.channel) for one in found.conda] == [
        ("jaxlib", "0.7.2", "cuda129py312h00_0", "conda-forge"),
        ("python", "3.12.11", "h9e4cc4f_0_cpython", "conda-forge"),
    ]
    assert (found.python, found.cuda, found.kind) == ("3.12.11", "12.9", "conda-lock")
    assert [(one.name, one.hashes) for one in found.pip] == [("keras-cv", (f"sha256:{A}",))]
    assert found.notes == (
        "the contents are built for CUDA 12.9, __cuda is declared as 12.0: the driver must fit 12.9",
    )
    assert "pw" not in repr(found)
    assert conda_import.read(CONDA_LOCK, place="x", declared_cuda="12.9").notes == ()


def test_categories_are_chosen() -> None:
    found = conda_import.read(CONDA_LOCK, place="x", categories=("main", "dev"))
    assert "pytest" in {one.name for one in found.conda}


def test_pixi_lock() -> None:
    found = conda_import.read(PIXI, place="pixi.lock")
    assert [(one.name, one.channel, one.subdir, one.sha256, one.size) for one in found.conda] == [
        ("pytorch", "pytorch", "linux-64", B, None),
        ("cuda-version", "conda-forge", "noarch", A, 20940),
    ]
    assert found.cuda == "12.4" and found.environments == ("default", "gpu")
    assert [(one.name, one.version) for one in found.pip] == [("six", "1.16.0")]


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (PIXI, {"environment": "cpu"}, "no environment 'cpu'"),
        (PIXI, {"environment": "gpu"}, "nothing for linux-64"),
        (CONDA_LOCK, {"platform": "win-64"}, "nothing for win-64"),
        (CONDA_LOCK.replace("version: 1\n", "version: 9\n", 1), {}, "version 9"),
        (PIXI.replace("version: 6\n", "version: 3\n", 1), {}, "version 3"),
        ("a: [", {}, "x:"),
        ("just text", {}, "neither"),
        (CONDA_LOCK.replace(f"md5: x, sha256: {A}", "md5: x"), {}, "1 packages have no sha256"),
        (PIXI.replace("python_version", "x").replace("six-1.16.0-py2", "six-9-py2", 1), {}, "not described"),
    ],
)
def test_what_cannot_be_taken_is_said(text: str, words: dict[str, str], said: str) -> None:
    with pytest.raises(LockError) as caught:
        conda_import.read(text, place="x", **words)  # type: ignore[arg-type]
    assert said in caught.value.message
