"""Which base a build stands on: names, mapping, substitution rules, messages, and the tar of a made one."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import base
from envforge.config import Config
from envforge.errors import NetworkError, UsageError
from envforge.resolve import BaseChoice
from tests.fakes import FakeEngine

SLIM = BaseChoice(
    image="python:3.11-slim-bookworm", digest=None, system="debian:bookworm", glibc="2.36", python_from="image"
)
DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("python", ("docker.io", "library/python", "latest", None)),
        ("python:3.11", ("docker.io", "library/python", "3.11", None)),
        ("nvidia/cuda:12.4.1-base", ("docker.io", "nvidia/cuda", "12.4.1-base", None)),
        ("nvcr.io/nvidia/pytorch:24.01", ("nvcr.io", "nvidia/pytorch", "24.01", None)),
        ("localhost:5000/x:1", ("localhost:5000", "x", "1", None)),
        (f"python@{DIGEST}", ("docker.io", "library/python", "", DIGEST)),
        (f"python:3.11@{DIGEST}", ("docker.io", "library/python", "3.11", DIGEST)),
    ],
)
def test_names_are_read_as_docker_reads_them(image: str, expected: tuple[str, str, str, str | None]) -> None:
    assert base.split_reference(image) == expected


def test_mapping() -> None:
    settings = Config(registries={"docker.io": "registry.lab/hub/"}, bases={"python:3.12-slim": "lab/py:12"})
    assert base.map_image("python:3.11", settings)[0] == "registry.lab/hub/library/python:3.11"
    assert base.map_image(f"python:3.11@{DIGEST}", settings)[0] == f"registry.lab/hub/library/python:3.11@{DIGEST}"
    assert base.map_image(f"python:3.12-slim@{DIGEST}", settings)[0] == "lab/py:12"
    assert base.map_image("nvcr.io/x:1", settings) == ("nvcr.io/x:1", "")


def test_the_image_itself_is_used_when_it_is_there(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    engine.registry.add(SLIM.image)
    engine.add_base("bookworm", "3.11")
    chosen = base.choose(engine, SLIM, Config())
    assert (chosen.reference, chosen.substituted) == (SLIM.image, False)
    assert engine.calls == []


def test_a_base_of_the_same_system_and_python_stands_in(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    engine.add_base("bookworm", "3.11")
    chosen = base.choose(engine, replace(SLIM, digest=DIGEST), Config())
    assert (chosen.reference, chosen.substituted) == ("envforge/base:bookworm-py3.11", True)
    assert DIGEST not in chosen.reference and "cannot be had" in chosen.reason
    assert len(engine.calls) == 1
    assert base.choose(engine, replace(SLIM, digest=DIGEST), Config()) == chosen
    assert len(engine.calls) == 1, "the failed pull is remembered for a while"


@pytest.mark.parametrize(
    "other",
    [
        replace(SLIM, image="python:3.13-slim-trixie", system="debian:trixie"),
        replace(SLIM, image="python:3.12-slim-bookworm"),
        replace(SLIM, image="ubuntu:22.04", system="ubuntu:22.04", python_from="apt"),
    ],
)
def test_another_system_or_python_never_stands_in(tmp_path: Path, other: BaseChoice) -> None:
    engine = FakeEngine(tmp_path)
    engine.add_base("bookworm", "3.11")
    with pytest.raises(NetworkError) as caught:
        base.choose(engine, other, Config())
    assert caught.value.exit_code == 11


def test_the_error_names_the_command_that_helps(tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        base.choose(FakeEngine(tmp_path), SLIM, Config())
    assert "envforge base bootstrap --python 3.11" in caught.value.hint
    with pytest.raises(NetworkError) as caught:
        base.choose(FakeEngine(tmp_path), replace(SLIM, image="python:3.12-slim-bookworm"), Config())
    assert "no Debian release has Python 3.12" in caught.value.hint and "bootstrap --python" not in caught.value.hint


def test_a_mapped_base_is_a_substitute_and_a_mapped_registry_is_not(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    engine.registry |= {"lab/py:11", "registry.lab/library/python:3.11-slim-bookworm"}
    mapped = base.choose(engine, SLIM, Config(bases={SLIM.image: "lab/py:11"}))
    assert (mapped.reference, mapped.substituted) == ("lab/py:11", True)
    mirror = base.choose(engine, SLIM, Config(registries={"docker.io": "registry.lab"}))
    assert (mirror.reference, mirror.substituted) == ("registry.lab/library/python:3.11-slim-bookworm", False)


def test_pythons_of_debian() -> None:
    assert [base.suite_for(version) for version in ("3.9", "3.11", "3.13")] == ["bullseye", "bookworm", "trixie"]
    with pytest.raises(UsageError) as caught:
        base.suite_for("3.12")
    assert caught.value.reference == "no-debian-python"


def test_the_tar_of_a_root_depends_on_its_content_only(tmp_path: Path) -> None:
    def make(name: str, noise: str) -> bytes:
        root = tmp_path / name
        for folder in ("etc", "usr/bin", "var/log", "var/cache/apt/archives", "tmp"):
            (root / folder).mkdir(parents=True)
        (root / "etc/machine-id").write_text(noise)
        (root / "etc/resolv.conf").write_text(noise)
        (root / "var/log/x").write_text(noise)
        (root / "var/cache/apt/archives/p.deb").write_text(noise)
        (root / "usr/bin/python3.11").write_text("program")
        (root / "usr/bin/python3.11").chmod(0o755)
        import os

        os.utime(root / "usr/bin/python3.11", (1000, 1000))
        base.link_python(root, "3.11")
        target = io.BytesIO()
        base.write_rootfs(root, target)
        return target.getvalue()

    one, two = make("one", "aaa"), make("two", "bbb")
    assert one == two
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        names = set(archive.getnames())
        assert archive.getmember("usr/bin/python3.11").mode == 0o755
        assert archive.getmember("usr/local/bin/python").linkname == "/usr/bin/python3.11"
        assert archive.getmember("etc/machine-id").size == 0
    assert not any("p.deb" in name or name == "var/log/x" for name in names)
