"""Every choice and its reason, over the shipped tables; the expected values are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from envforge import compat, spec
from envforge.errors import EXIT_CONFLICT, ConflictError
from envforge.resolve import Resolution, package_name, resolve


def resolved(text: str) -> Resolution:
    return resolve(spec.loads("schema: 1\nname: case\n" + text, source="case"), compat.load())


def texts(found: Resolution) -> list[tuple[str, str]]:
    return [(item.text, item.index) for item in found.requirements]


def why(found: Resolution, field: str) -> str:
    return next(reason.why for reason in found.reasons if reason.field == field)


def test_cuda_from_wheels_takes_the_slim_image_and_the_default_index() -> None:
    found = resolved('cuda: {version: "12.4"}\nframeworks: {torch: {version: "2.6.0"}}\n')
    assert (found.base.image, found.base.python_from) == ("python:3.11-slim-bookworm", "image")
    assert (found.base.system, found.base.glibc, found.glibc) == ("debian:bookworm", "2.36", "2.36")
    assert texts(found) == [("torch==2.6.0", "default")]
    assert found.cuda is not None
    assert (found.cuda.version, found.cuda.tag, found.cuda.source, found.cuda.cudnn) == (
        "12.4",
        "cu124",
        "wheels",
        "9.1.0.70",
    )
    assert "CUDA comes with the wheels" in why(found, "base.image")


def test_another_cuda_of_the_same_release_comes_from_pytorchs_index() -> None:
    found = resolved(
        'cuda: {version: "11.8"}\nframeworks: {torch: {version: "2.6.0"}}\n'
        'packages: {pip: ["torchvision==0.21.0+cu118", "onnx"]}\n'
    )
    assert texts(found) == [
        ("torch==2.6.0+cu118", "pytorch-cu118"),
        ("torchvision==0.21.0+cu118", "pytorch-cu118"),
        ("onnx", "default"),
    ]
    assert dict(found.indexes) == {"pytorch-cu118": "https://download.pytorch.org/whl/cu118"}
    assert {"torch", "torchvision", "torchaudio", "triton"} <= set(found.index_packages["pytorch-cu118"])
    assert found.frameworks[0].cuda == "11.8"


def test_cpu_torch_comes_from_the_cpu_index() -> None:
    found = resolved('frameworks: {torch: {version: "2.6.0"}}\n')
    assert texts(found) == [("torch==2.6.0+cpu", "pytorch-cpu")]
    assert found.cuda is None and found.frameworks[0].accelerator == "cpu"


def test_a_local_label_decides_the_accelerator() -> None:
    found = resolved('cuda: {version: "12.4"}\nframeworks: {torch: {version: "2.6.0+cpu"}, jax: {version: "0.4.38"}}\n')
    assert [item.accelerator for item in found.frameworks] == ["cpu", "cuda"]


def test_the_specs_own_index_wins_over_the_known_one() -> None:
    found = resolved(
        'cuda: {version: "11.8"}\nframeworks: {torch: {version: "2.7.1+cu118", index: pytorch-cu118}}\n'
        'indexes: {pytorch-cu118: {url: "http://localhost:8080/simple/", packages: [torch, "torch*"]}}\n'
    )
    assert dict(found.indexes) == {"pytorch-cu118": "http://localhost:8080/simple/"}
    assert found.index_packages["pytorch-cu118"] == ("torch", "torch*")


def test_jax_takes_extras_and_the_needs_its_metadata_leaves_out() -> None:
    found = resolved('cuda: {version: "12.8"}\nframeworks: {jax: {version: "0.4.38"}}\n')
    assert texts(found) == [("jax[cuda12]==0.4.38", "default"), ("flatbuffers", "default")]
    assert "jax.export" in next(item.why for item in found.requirements if item.text == "flatbuffers")
    own = resolved('frameworks: {jax: {version: "0.4.38"}}\npackages: {pip: ["flatbuffers==24.3.25"]}\n')
    assert texts(own) == [("jax==0.4.38", "default"), ("flatbuffers==24.3.25", "default")]


def test_bounds_stay_bounds() -> None:
    found = resolved('cuda: {version: "11.8"}\npython: "3.10"\nframeworks: {torch: {version: "2.0.1"}}\n')
    assert [item.text for item in found.constraints] == ["numpy<2"]
    assert texts(found) == [("torch==2.0.1+cu118", "pytorch-cu118")]


@pytest.mark.parametrize(
    ("text", "image", "system", "python_from"),
    [
        (
            'python: "3.10"\ncuda: {version: "11.8", from: base}\nframeworks: {tensorflow: {version: "2.13.1"}}\n',
            "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04",
            "ubuntu:22.04",
            "apt",
        ),
        (
            'cuda: {version: "12.4", from: base}\nframeworks: {torch: {version: "2.6.0"}}\n',
            "nvidia/cuda:12.4.1-runtime-ubuntu22.04",
            "ubuntu:22.04",
            "uv",
        ),
        ('base: {image: "debian:trixie"}\npackages: {pip: [six]}\n', "debian:trixie", "debian:trixie", "uv"),
        (
            'base: {image: "debian:bookworm"}\npackages: {pip: [six]}\n',
            "debian:bookworm",
            "debian:bookworm",
            "apt",
        ),
        ('python: "3.12"\npackages: {pip: [six]}\n', "python:3.12-slim-bookworm", "debian:bookworm", "image"),
        (
            'base: {image: "lab.example/thing:7"}\npackages: {pip: [six]}\n',
            "lab.example/thing:7",
            "unknown",
            "uv",
        ),
        ("packages: {conda: [ffmpeg]}\n", "debian:bookworm-slim", "debian:bookworm", "conda"),
    ],
)
def test_bases(text: str, image: str, system: str, python_from: str) -> None:
    found = resolved(text)
    assert (found.base.image, found.base.system, found.base.python_from) == (image, system, python_from)
    assert why(found, "base.image") and why(found, "python")


def test_a_digest_is_kept_and_named() -> None:
    digest = "sha256:" + "a" * 64
    for base in (
        f'{{image: "debian:bookworm", digest: "{digest}"}}',
        f'{{image: "debian:bookworm@{digest}"}}',
    ):
        found = resolved(f"base: {base}\npackages: {{pip: [six]}}\n")
        assert (found.base.image, found.base.digest) == ("debian:bookworm", digest)
        assert why(found, "base.digest") == "fixed in the spec"


def test_toolchain_and_compat_name_the_images_they_come_from() -> None:
    found = resolved(
        'cuda: {version: "12.4", toolchain: nvcc, compat: true}\nframeworks: {torch: {version: "2.6.0"}}\n'
    )
    assert found.cuda is not None and found.cuda.toolkit_image and found.cuda.compat_image
    assert found.cuda.toolkit_image.startswith("nvidia/cuda:12.4.1-devel-ubuntu22.04")
    assert found.cuda.compat_image.startswith("nvidia/cuda:12.4.1-base-ubuntu22.04")


def test_keras_gets_the_backend_that_is_there() -> None:
    text = 'frameworks: {keras: {version: "3.15.1"}, jax: {version: "0.10.2"}}\n'
    assert dict(resolved(text).env) == {"KERAS_BACKEND": "jax"}
    assert dict(resolved(text + "env: {KERAS_BACKEND: torch}\n").env) == {"KERAS_BACKEND": "torch"}


def test_versions_left_out_are_chosen_for_the_interpreter() -> None:
    found = resolved('python: "3.9"\nframeworks: {torch: {accelerator: cpu}}\n')
    row = compat.load().release("torch", found.frameworks[0].version)
    assert row is not None and "3.9" in row.python
    assert "the newest known with a build for Python 3.9" in why(found, "frameworks.torch.version")


def test_doubled_requests_become_one() -> None:
    """BC-36: the same package given twice is asked for once."""
    found = resolved("packages: {pip: [six, six, rich], conda: [rdkit, rdkit], apt: [git, git]}\n")
    assert [item.text for item in found.requirements] == ["six", "rich"]
    assert (found.conda, found.apt) == (("rdkit",), ("git",))


def test_variants_have_their_own_name() -> None:
    document = "schema: 1\nname: a\npackages: {pip: [six]}\nvariants: {v: {python: '3.12'}}\n"
    found = resolve(spec.loads(document, variant="v"), compat.load())
    assert (found.name, found.python) == ("a@v", "3.12")


@pytest.mark.parametrize(
    ("text", "told", "nearest"),
    [
        ('frameworks: {torch: {version: "2.6.3"}}\n', "torch has no release 2.6.3", "torch 2.6.0"),
        (
            'python: "3.12"\ncuda: {version: "11.8"}\nframeworks: {torch: {version: "2.0.1"}}\n',
            "torch 2.0.1 has no wheel for Python 3.12",
            "Python 3.11",
        ),
        ('cuda: {version: "12.4"}\nframeworks: {torch: {version: "2.0.1"}}\n', "torch 2.0.1", ""),
    ],
)
def test_conflicts_say_who_needs_what_and_the_nearest(text: str, told: str, nearest: str) -> None:
    with pytest.raises(ConflictError) as caught:
        resolved(text)
    assert caught.value.exit_code == EXIT_CONFLICT
    assert told in caught.value.message and nearest in caught.value.hint and caught.value.hint


def test_newer_than_the_tables_is_untested_not_refused() -> None:
    found = resolved('frameworks: {torch: {version: "9.0.0"}}\n')
    assert (found.verdict, found.untested) == ("unverified", True)


def test_the_oldest_target_driver_decides() -> None:
    text = 'cuda: {version: "12.4"}\nframeworks: {torch: {version: "2.6.0"}}\ntargets: {drivers: ["570.86.10", "%s"]}\n'
    assert resolved(text % "550.54.15").verdict == "ok"
    with pytest.raises(ConflictError):
        resolved(text % "470.82.01")


@pytest.mark.parametrize(
    ("text", "name"), [("A_b.c>=1", "a-b-c"), ("jax[cuda12]==1", "jax"), ("x; python_version<'3'", "x")]
)
def test_package_names_are_normalised(text: str, name: str) -> None:
    assert package_name(text) == name


def test_every_choice_has_a_reason() -> None:
    found = resolved('cuda: {version: "12.4"}\nframeworks: {torch: {}, jax: {version: "0.4.38"}}\n')
    assert all(reason.why and reason.value for reason in found.reasons)
    fields = {reason.field for reason in found.reasons}
    assert {
        "frameworks.torch.version",
        "frameworks.torch",
        "frameworks.jax",
        "base.image",
        "python",
        "cuda",
    } <= fields
    assert all(item.why for item in (*found.requirements, *found.constraints))


def test_the_same_spec_resolves_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'cuda: {version: "12.4"}\nframeworks: {torch: {}, jax: {version: "0.4.38"}}\n'
    first = resolved(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolved(text) == first
