"""The tables: compiled form equals the YAML, cross-row checks catch broken rows, and the lookups others rely on."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from envforge import compat, tables
from envforge.resources import data

Tree = dict[str, Any]


@pytest.fixture(scope="module")
def everything() -> Tree:
    return {name: tables.read(name) for name in tables.NAMES}


@pytest.fixture(scope="module")
def known() -> compat.Tables:
    return compat.load()


@pytest.mark.parametrize("name", tables.NAMES)
def test_compiled_form_is_that_of_the_yaml(name: str) -> None:
    assert tables.compiled_path(name).read_text(encoding="utf-8") == tables.compile_text(tables.read(name))


def test_compiled_form_keeps_every_row_and_drops_the_sources(everything: Tree) -> None:
    for name, table in everything.items():
        kept = json.loads(tables.compile_text(table))
        assert {section: len(rows) for section, rows in kept.items()} == {s: len(r) for s, r in table.items()}
        assert "source" not in json.dumps([list(row) for rows in kept.values() for row in rows]), name


def test_shipped_tables_are_sound(everything: Tree) -> None:
    assert tables.problems(everything) == []


def _set(path: str, value: Any) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        *heads, last = path.split("/")
        node: Any = tree
        for part in heads:
            node = node[int(part)] if isinstance(node, list) else node[part]
        if isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value

    return change


def _twice(table: str, section: str) -> Callable[[Tree], None]:
    return lambda tree: tree[table][section].append(copy.deepcopy(tree[table][section][-1]))


BROKEN: dict[str, tuple[Callable[[Tree], None], str]] = {
    "no source": (_set("gpus/gpus/0/source", []), "no source"),
    "no date": (_set("gpus/gpus/0/checked", "soon"), "not a date"),
    "bare number": (_set("torch/releases/0/python", [3.1]), "quote it"),
    "toolkit twice": (_twice("cuda", "toolkits"), "stands twice"),
    "gpu twice": (_twice("gpus", "gpus"), "stands twice"),
    "release twice": (_twice("torch", "releases"), "stands twice"),
    "package twice": (_twice("packages", "packages"), "stands twice"),
    "floor moves": (_set("cuda/toolkits/20/floor", "460.27.03"), "differs from the other"),
    "driver falls": (_set("cuda/toolkits/25/driver", "450.80.02"), "falls below"),
    "wrong series": (_set("cuda/toolkits/10/series", "12.9"), "does not belong"),
    "capabilities crossed": (_set("cuda/toolkits/10/sm_min", "9.9"), "sm_min is above"),
    "odd capability": (_set("gpus/gpus/3/capability", "eight"), "capability 'eight'"),
    "unknown architecture": (_set("gpus/gpus/3/capability", "55.0"), "no architecture"),
    "cuda without toolkit": (_set("torch/releases/30/builds/0/cuda", "12.7"), "has no toolkit row"),
    "default without build": (_set("torch/releases/30/default/amd64", "10.1"), "is not among its builds"),
    "python in odd form": (_set("jax/releases/5/python", ["cp311"]), "must list interpreters"),
    "unreadable bound": (_set("tensorflow/releases/5/numpy", ["roughly 1.19"]), "cannot be checked"),
    "unreadable cudnn": (_set("torch/releases/30/builds/0/cudnn", "9.1 or so"), "cannot be checked"),
    "digest too short": (_set("bases/digests/0/digest", "sha256:12ab"), "not a sha256 digest"),
    "system without glibc": (_set("bases/cuda_images/20/distros", ["plan9"]), "has no glibc row"),
    "need of no framework": (_set("rules/undeclared/0/framework", "theano"), "unknown framework"),
    "need of no kind": (_set("rules/undeclared/0/kind", "wish"), "kind wish"),
    "wheels crossed": (_set("rules/wheels/0/first", "9.9"), "first is above last"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_table_is_caught(everything: Tree, name: str) -> None:
    change, text = BROKEN[name]
    tree = copy.deepcopy(everything)
    change(tree)
    assert any(text in problem for problem in tables.problems(tree)), tables.problems(tree)


def test_unsorted_releases_are_caught(everything: Tree) -> None:
    tree = copy.deepcopy(everything)
    tree["torch"]["releases"].reverse()
    assert any("not in order" in problem for problem in tables.problems(tree))


def test_tables_are_read_one_by_one() -> None:
    asked: list[str] = []

    def source(name: str) -> Any:
        asked.append(name)
        return json.loads(data(f"compiled/{name}.json").read_text(encoding="utf-8"))

    found = compat.Tables(source)
    assert found.default_index_cuda("torch", "2.6.0") == "12.4"
    assert asked == ["torch"]
    found.releases("torch")
    assert asked == ["torch"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX5090", "GeForce RTX 5090"),
        ("nvidia geforce rtx 5090", "GeForce RTX 5090"),
        ("A100", "NVIDIA A100"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        ("Tesla V100-SXM2-16GB", "NVIDIA V100"),
        ("p100", "Tesla P100"),
        ("RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090"),
        ("GTX1080Ti", "GeForce GTX 1080 Ti"),
        ("rtx a6000", "NVIDIA RTX A6000"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada"),
        ("DGX Spark", "NVIDIA GB10 (DGX Spark)"),
        ("L4", "NVIDIA L4"),
        ("L40S", "NVIDIA L40S"),
    ],
)
def test_gpu_names(known: compat.Tables, text: str, name: str) -> None:
    found = known.gpu(text)
    assert found is not None and found.name == name


@pytest.mark.parametrize("text", ["sm_90", "SM90", "9.0", "compute_90", "sm_90a", "cc 9.0"])
def test_gpu_by_capability(known: compat.Tables, text: str) -> None:
    found = known.gpu(text)
    assert found is not None and found.text == "9.0" and found.kind == "unknown"


@pytest.mark.parametrize("text", ["", "GPU", "RTX", "foo", "sm_99", "MI300X", "TPU v4", "A1000000", "5090 RTX Radeon"])
def test_gpus_that_are_none(known: compat.Tables, text: str) -> None:
    assert known.gpu(text) is None


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("MI300X", "AMD (ROCm)"),
        ("Radeon RX 7900 XTX", "AMD (ROCm)"),
        ("TPU v5e", "Google TPU"),
        ("Ascend 910B", "Huawei Ascend"),
    ],
)
def test_other_vendors(known: compat.Tables, text: str, vendor: str) -> None:
    assert known.gpu_vendor(text) == vendor


@pytest.mark.parametrize("gpu", [row.name for row in compat.load().gpus()])
def test_no_nvidia_card_is_taken_for_another_vendor(known: compat.Tables, gpu: str) -> None:
    found = known.gpu(gpu)
    assert found is not None and found.name == gpu


@pytest.mark.parametrize(
    ("arguments", "requirement", "index"),
    [
        (("torch", "2.0.1", "cuda", "11.8"), "torch==2.0.1+cu118", "pytorch-cu118"),
        (("torch", "2.6.0", "cuda", "12.4"), "torch==2.6.0", "default"),
        (("torch", "2.6.0", "cpu", None), "torch==2.6.0+cpu", "pytorch-cpu"),
        (("torch", "1.9.1", "cuda", "11.1"), "torch==1.9.1+cu111", "pytorch-stable"),
        (("tensorflow", "2.15.1", "cuda", "12.2"), "tensorflow[and-cuda]==2.15.1", "default"),
        (("tensorflow", "2.10.0", "cuda", "11.2"), "tensorflow==2.10.0", "default"),
        (("tensorflow", "2.21.0", "cpu", None), "tensorflow-cpu==2.21.0", "default"),
        (("jax", "0.4.38", "cuda", "12.6"), "jax[cuda12]==0.4.38", "default"),
        (("jax", "0.4.25", "cuda", "11.8"), "jax[cuda11-pip]==0.4.25", "jax-cuda-releases"),
        (("jax", "0.10.2", "cuda", "13.0"), "jax[cuda13]==0.10.2", "default"),
        (("paddle", "3.3.1", "cpu", None), "paddlepaddle==3.3.1", "default"),
        (("paddle", "2.6.2", "cuda", "11.8"), "paddlepaddle-gpu==2.6.2", "default"),
        (("paddle", "2.4.2", "cuda", "11.2"), "paddlepaddle-gpu==2.4.2.post112", "paddle-flat"),
        (("paddle", "3.2.0", "cuda", "12.6"), "paddlepaddle-gpu==3.2.0", "paddle-cu126"),
        (("mxnet", "1.9.1", "cuda", "11.2"), "mxnet-cu112==1.9.1", "default"),
        (("mindspore", "2.10.0", "cpu", None), "mindspore==2.10.0", "default"),
    ],
)
def test_distribution(known: compat.Tables, arguments: tuple[Any, ...], requirement: str, index: str) -> None:
    found = known.distribution_for(*arguments)
    assert (found.requirement, found.index) == (requirement, index)
    assert (known.index_url(index) is None) == (index == "default")


def test_arm_takes_its_cuda_wheels_from_the_vendor_index(known: compat.Tables) -> None:
    found = known.distribution_for("torch", "2.8.0", "cuda", "12.9", "linux/arm64")
    assert (found.requirement, found.index) == ("torch==2.8.0+cu129", "pytorch-cu129")
    assert known.default_index_cuda("torch", "2.8.0", "linux/arm64") is None


@pytest.mark.parametrize(
    ("framework", "version", "accelerator", "cuda", "text"),
    [
        ("mxnet", "1.9.1", "cpu", None, "numpy<1.24"),
        ("mindspore", "2.10.0", "cpu", None, "scipy<1.14"),
        ("paddle", "3.3.1", "cpu", None, "setuptools<81"),
        ("jax", "0.10.2", "cpu", None, "flatbuffers"),
        ("jax", "0.4.25", "cuda", "12.3", "nvidia-cudnn-cu12<9"),
        ("torch", "2.2.2+cu118", "cuda", "11.8", "numpy<2"),
        ("tensorflow", "2.9.0", "cpu", None, "protobuf<3.20"),
    ],
)
def test_undeclared_needs(
    known: compat.Tables, framework: str, version: str, accelerator: str, cuda: str | None, text: str
) -> None:
    found = known.undeclared_needs(framework, version, "3.11", accelerator, cuda)
    assert text in [need.text for need in found]
    assert all(need.why for need in found)


def test_no_need_where_none_is(known: compat.Tables) -> None:
    assert known.undeclared_needs("torch", "2.6.0", "3.11", "cuda", "12.4") == ()


@pytest.mark.parametrize(
    ("image", "status", "system", "glibc", "instead"),
    [
        ("python:3.11-slim-bookworm", "known", "debian12", "2.36", None),
        ("nvidia/cuda:11.8.0-runtime-ubuntu22.04", "known", "ubuntu22.04", "2.35", None),
        (
            "nvidia/cuda:11.1-cudnn8-runtime-ubuntu18.04",
            "gone",
            "ubuntu18.04",
            "2.27",
            "nvidia/cuda:11.1.1-cudnn8-runtime-ubuntu18.04",
        ),
        ("nvidia/cuda:latest", "gone", None, None, None),
        ("nvidia/cuda:10.2-base", "gone", None, None, None),
        ("nvidia/cuda:12.4.1-cudnn8-runtime-ubuntu22.04", "gone", "ubuntu22.04", "2.35", None),
        ("ubuntu:jammy", "known", "ubuntu22.04", "2.35", None),
        ("ubuntu:22.04", "known", "ubuntu22.04", "2.35", None),
        ("debian:bookworm-slim", "known", "debian12", "2.36", None),
        ("lab.example.org:5000/team/base:7", "unknown", None, None, None),
    ],
)
def test_base_images(
    known: compat.Tables, image: str, status: str, system: str | None, glibc: str | None, instead: str | None
) -> None:
    found = known.base_image(image)
    assert (found.status, found.system, found.glibc, found.instead) == (status, system, glibc, instead)


def test_only_index_digests_are_given(known: compat.Tables) -> None:
    found = known.base_image("nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04")
    assert found.digest is not None and re.fullmatch(r"sha256:[0-9a-f]{64}", found.digest)
    assert known.base_image("nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04").digest is None


@pytest.mark.parametrize(
    ("arguments", "image"),
    [
        (("11.8",), "nvidia/cuda:11.8.0-runtime-ubuntu22.04"),
        (("11.8", "devel"), "nvidia/cuda:11.8.0-devel-ubuntu22.04"),
        (("11.2", "runtime", "8"), "nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"),
        (("12.4", "runtime", "9"), "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04"),
        (("12.0", "runtime", "8", "8.9.1"), "nvidia/cuda:12.2.2-cudnn8-runtime-ubuntu22.04"),
    ],
)
def test_cuda_image(known: compat.Tables, arguments: tuple[str, ...], image: str) -> None:
    found = known.cuda_image(*arguments)
    assert found is not None and found.image == image and found.status == "known"


def test_no_image_of_a_cuda_that_is_gone(known: compat.Tables) -> None:
    assert known.cuda_image("10.2") is None


def test_companions(known: compat.Tables) -> None:
    assert known.companions("torch", "2.0.1+cu118") == {
        "torchvision": ("0.15.2",),
        "torchaudio": ("2.0.2",),
        "triton": ("==2.0.0",),
    }


@pytest.mark.parametrize("name", compat.FRAMEWORKS)
def test_every_framework_has_releases_in_order(known: compat.Tables, name: str) -> None:
    rows = known.releases(name)
    assert rows and [row.key for row in rows] == sorted(row.key for row in rows)
    assert known.newest(name).yanked is None


def test_unknown_words_give_nothing(known: compat.Tables) -> None:
    assert known.framework_name("theano") == (None, None)
    assert known.releases("theano") == ()
    assert known.release("torch", "not a version") is None
    assert known.driver_floors("12.7") is None
    assert known.index_url("nowhere") is None


def test_names_people_use(known: compat.Tables) -> None:
    assert known.framework_name("PyTorch") == ("torch", None)
    assert known.framework_name("tensorflow_gpu") == ("tensorflow", "cuda")
    assert known.framework_name("paddlepaddle-gpu") == ("paddle", "cuda")
