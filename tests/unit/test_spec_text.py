"""Writing a spec: what is written reads back as the same spec, comments and all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envforge import spec as specs
from envforge import spec_text
from envforge.spec import (
    BaseSpec,
    CudaSpec,
    EnvSpec,
    FileSpec,
    FrameworkSpec,
    HookSpec,
    IndexSpec,
    PackagesSpec,
    SmokeSpec,
    TargetsSpec,
)

FULL = EnvSpec(
    name="lab",
    description='says "hello": # not a comment',
    python="3.10",
    base=BaseSpec(image="nvidia/cuda:12.4.1-runtime-ubuntu22.04"),
    cuda=CudaSpec(version="12.4", source="base", toolchain="nvcc", cudnn="9.1"),
    frameworks={"torch": FrameworkSpec(version="2.6.0+cu124", index="pytorch-cu124", extras=("opt-einsum",))},
    packages=PackagesSpec(pip=("numpy<2", "onnx>=1.16; python_version < '3.12'"), apt=("git",)),
    indexes={"pytorch-cu124": IndexSpec(url="https://download.pytorch.org/whl/cu124", packages=("torch*",))},
    env={"HF_HOME": "/work/hf", "FLAG": "yes", "NUMBER": "1"},
    files=(FileSpec(source="src", target="/work/src", install="editable"),),
    hooks=(HookSpec(name="warm", command=("python", "-c", "print('a b')")),),
    targets=TargetsSpec(drivers=("535.104.05",), gpus=("RTX 3090",)),
    smoke=SmokeSpec(level=3, without={"export.onnx": "not needed"}),
    allow_untested=True,
)


@pytest.mark.parametrize(
    "spec", [FULL, EnvSpec(name="small", packages=PackagesSpec(pip=("six",))), replace(FULL, cuda=None, indexes={})]
)
def test_what_is_written_reads_back_as_the_same_spec(spec: EnvSpec) -> None:
    text = spec_text.dumps(spec, header=("made by hand",), why={"python": "newest", "cuda.version": "the driver"})
    read = specs.loads(text, source="made.yaml")
    # Where a file was read from (its folder) is not written; everything that is compares equal.
    assert spec_text.document(read) == spec_text.document(spec)
    assert read.frameworks == spec.frameworks and read.cuda == spec.cuda and read.hooks == spec.hooks


def test_comments_stand_behind_their_line() -> None:
    text = spec_text.dumps(FULL, why={"frameworks.torch.version": "last with\nkernels", "packages.pip[0]": "ABI"})
    assert '    version: "2.6.0+cu124"  # last with kernels' in text
    assert '- "numpy<2"  # ABI' in text


def test_words_that_yaml_would_read_otherwise_are_quoted() -> None:
    text = spec_text.dumps(FULL)
    assert 'FLAG: "yes"' in text
    assert 'NUMBER: "1"' in text
    assert 'python: "3.10"' in text
