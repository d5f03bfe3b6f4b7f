"""Reported files: what each must give, in our own words and data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envforge.errors import SpecError
from envforge.importers import FORMATS, Imported, read


def notes(found: Imported) -> set[str]:
    return {note.reference for note in found.notes}


def test_several_requirements_on_a_line() -> None:
    text = (
        "torch==2.0.1+cu118 torchvision==0.15.2+cu118 --extra-index-url https://download.pytorch.org/whl/cu118 # x\n"
        "xformers==0.0.21 bitsandbytes==0.41.1\ntensorboard==2.14.1 tensorflow==2.14.0\n-r requirements.txt\n"
    )
    found = read(text, place="linux.txt", reader=lambda name: "requests==2.31.0\n")
    assert found.spec.frameworks["torch"].version == "2.0.1+cu118"
    assert found.spec.frameworks["tensorflow"].version == "2.14.0"
    assert set(found.spec.packages.pip) == {
        "torchvision==0.15.2+cu118",
        "xformers==0.0.21",
        "bitsandbytes==0.41.1",
        "tensorboard==2.14.1",
        "requests==2.31.0",
    }
    assert {"accelerator-question", "option-on-requirement"} <= notes(found)
    with pytest.raises(SpecError, match=r"linux\.txt:1:20"):
        read(text, place="linux.txt", strict=True)


@pytest.mark.parametrize("extra", ["cuda12-pip", "cuda12_pip"])
def test_inline_option_and_python_line(extra: str) -> None:
    page = "https://storage.googleapis.com/jax-releases/jax_cuda_releases.html"
    found = read(f"jax[{extra}]==0.4.25 -f {page}\npython==3.10.14\n", place="requirements.txt")
    assert found.spec.python == "3.10"
    assert [item.url for item in found.spec.indexes.values() if item.find_links] == [page]
    assert "nvidia-cudnn-cu12<9" in found.spec.packages.pip
    assert len(found.spec.frameworks["jax"].extras) == 1
    assert found.counts["lines"] == 3


def test_dockerfile_substitution() -> None:
    text = (
        "ARG CUDA={}\nFROM nvidia/cuda:${{CUDA}}-cudnn8-runtime-ubuntu18.04\n"
        "RUN apt-get install -y cuda-command-line-tools-${{CUDA/./-}}\n"
        "RUN conda install -y cudatoolkit==${{CUDA}} python=3.7\n"
        "RUN pip install jaxlib==0.1.69+cuda${{CUDA/./}} && chmod u+s /sbin/ldconfig.real\n"
    )
    for version in ("11.1", "11.1.1"):
        found = read(text.format(version), place="Dockerfile")
        assert found.spec.packages.apt == ("cuda-command-line-tools-11-1",)
        assert found.spec.packages.pip == ("jaxlib==0.1.69+cuda111",)
        assert {"setuid-ldconfig", "two-cuda-providers"} <= notes(found)
        assert ("substitution-breaks" in notes(found)) == (version == "11.1.1")


def test_two_indexes_no_pins() -> None:
    found = read(
        "FROM $REGISTRY/$OWNER/scipy-notebook\nRUN pip install --extra-index-url=https://pypi.nvidia.com "
        "--index-url 'https://download.pytorch.org/whl/cu128' 'torch' 'torchaudio' 'torchvision'\n"
        "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n",
        place="Dockerfile",
    )
    assert found.spec.base.image == "auto"
    assert found.spec.cuda is not None and found.spec.cuda.version == "12.8"
    assert found.spec.indexes["pytorch-cu128"].packages and found.spec.indexes["nvidia"].packages
    assert found.spec.env["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_conda_channels_and_pip_section() -> None:
    found = read(
        "channels: [defaults, pytorch, nvidia, xformers, conda-forge]\ndependencies:\n  - python=3.9\n"
        "  - pytorch::pytorch=2.0.0\n  - pytorch::pytorch-cuda=11.7.0\n  - xformers::xformers=0.0.18\n  - pip:\n"
        "    - git+https://github.com/facebookincubator/submitit\n"
        "    - --extra-index-url https://pypi.nvidia.com\n    - cuml-cu11\n",
        place="conda.yaml",
    )
    assert found.spec.channels == ("defaults", "pytorch", "nvidia", "xformers", "conda-forge")
    assert {"pytorch::pytorch=2.0.0", "mkl<2024.1"} <= set(found.spec.packages.conda)
    assert found.spec.cuda is not None and (found.spec.cuda.version, found.spec.cuda.source) == ("11.7", "conda")
    assert {"git-without-commit", "mkl-bound", "defaults-channel", "channel-priority"} <= notes(found)
    assert "nvidia" in found.spec.indexes


def test_old_conda_file_keeps_its_pins() -> None:
    found = read(
        "channels: [pytorch, defaults]\ndependencies: [python=3.8.5, pip=20.3, cudatoolkit=11.3, pytorch=1.12.1,"
        " numpy=1.23.1, {pip: [opencv-contrib-python-headless==4.3.0.36]}]\n",
        place="environment.yaml",
    )
    assert found.spec.python == "3.8" and found.spec.frameworks["torch"].version == "1.12.1"
    assert found.spec.cuda is not None and found.spec.cuda.version == "11.3"
    assert found.spec.packages.pip == ("opencv-contrib-python-headless==4.3.0.36",)


def test_accelerator_per_framework() -> None:
    found = read(
        "tensorflow-cpu~=2.18.0\ntf2onnx\n--extra-index-url https://download.pytorch.org/whl/cpu\ntorch==2.6.0+cpu\n"
        "--find-links https://storage.googleapis.com/jax-releases/jax_cuda_releases.html\njax[cuda12]==0.4.28\nflax\n",
        place="requirements.txt",
    )
    got = {name: item.accelerator for name, item in found.spec.frameworks.items()}
    assert got == {"tensorflow": "cpu", "torch": "cpu", "jax": "cuda"}
    assert "nvidia-cudnn-cu12<9" in found.spec.packages.pip
    assert "*" not in found.spec.indexes["pytorch-cpu"].packages


def test_compose_reservation() -> None:
    text = (
        "services:\n  lab:\n    image: python:3.11\n    user: root\n    environment:\n"
        "      JUPYTER_TOKEN: ${{TOKEN}}\n    deploy:\n      resources:\n        reservations:\n"
        "          devices:\n            - capabilities: [gpu]\n{}"
    )
    found = read(text.format(""), place="docker-compose.yml")
    assert {"empty-token", "runs-as-root", "reservation-all", "compose-version", "no-shm-size"} <= notes(found)
    with pytest.raises(SpecError) as caught:
        read(text.format("              count: 1\n              device_ids: ['0']\n"), place="docker-compose.yml")
    assert caught.value.reference == "compose-count-and-ids"


def test_encodings_are_said() -> None:
    for data in (b"\xef\xbb\xbfonnx==1.17.0\r\n", "onnx==1.17.0\r\n".encode("utf-16")):
        found = read(data, place="requirements.txt")
        assert found.spec.packages.pip == ("onnx==1.17.0",)
        assert {"encoding", "crlf"} <= notes(found)
    assert not notes(read(b"onnx==1.17.0\n", place="requirements.txt"))


_SOUP = st.lists(
    st.sampled_from(
        [
            "torch",
            "==",
            "2.0.1+cu118",
            " ",
            "\n",
            "-r x",
            "-f",
            "[",
            "]",
            "{",
            "}",
            ":",
            "- ",
            "dependencies:",
            "pip:",
            "#",
            "\\",
            "FROM ",
            "RUN pip install ",
            "ENV A=",
            "${A/./}",
            "'",
            '"',
            "services:",
            "image: ",
            ";",
            "@",
            "git+https://x/y",
            "\t",
            "é",
        ]
    ),
    max_size=25,
).map("".join)


@pytest.mark.parametrize("form", sorted(FORMATS))
@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.text(max_size=120), _SOUP))
def test_any_text_is_an_import_or_a_spec_error(form: str, text: str) -> None:
    try:
        found = read(text, place="file", form=form)
    except SpecError as error:
        assert error.reference
    else:
        assert found.counts["lines"] == len(found.lines) > 0
