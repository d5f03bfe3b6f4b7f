"""diff: what changed is named with its direction; equal sides are the same; locks and images can be mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import cli, difference, lock
from envforge.difference import Side
from envforge.lock import Lock, LockedBase, LockedConda, LockedPackage


def side(**changes: object) -> Side:
    fields: dict[str, object] = {
        "name": "one",
        "source": "image",
        "python": "3.11.2",
        "base": "debian:bookworm",
        "packages": {("pip", "torch"): "2.9.0", ("apt", "libc6"): "2.36-9"},
        "cuda": {"libcudart": "12.4 (pip:nvidia-cuda-runtime-cu12)"},
        "size_bytes": 1000,
        "tests": {"visibility.import": "passed"},
    }
    return Side(**(fields | changes))  # type: ignore[arg-type]


def test_equal_sides_are_the_same() -> None:
    found = difference.compare(side(), side(name="two"))
    assert found["status"] == "same"
    assert found["packages"] == found["cuda_libraries"] == found["tests"] == found["fields"] == []


def test_versions_are_compared_as_versions() -> None:
    new = {("pip", "torch"): "2.10.0", ("pip", "extra"): "1", ("apt", "libc6"): "2.36-9"}
    rows = difference.compare(side(), side(packages=new))["packages"]
    assert {(one["name"], one["change"]) for one in rows} == {("torch", "upgraded"), ("extra", "added")}
    rows = difference.compare(side(packages=new), side())["packages"]
    assert {(one["name"], one["change"]) for one in rows} == {("torch", "downgraded"), ("extra", "removed")}


def test_another_build_of_the_same_version_is_named() -> None:
    a = side(packages={("conda", "numpy"): "1.26.4 py311_0"})
    b = side(packages={("conda", "numpy"): "1.26.4 py311_1"})
    (row,) = difference.compare(a, b)["packages"]
    assert (row["change"], row["a"], row["b"]) == ("rebuilt", "1.26.4 py311_0", "1.26.4 py311_1")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"cuda": {}}, "cuda_libraries"),
        ({"tests": {"visibility.import": "failed"}}, "tests"),
        ({"python": "3.12.1"}, "fields"),
        ({"base": "ubuntu:22.04"}, "fields"),
    ],
)
def test_each_kind_of_difference_counts(changes: dict[str, object], key: str) -> None:
    found = difference.compare(side(), side(**changes))
    assert found["status"] == "different" and len(found[key]) == 1


def test_size_is_told_and_does_not_count() -> None:
    found = difference.compare(side(), side(size_bytes=1500))
    assert found["size"] == {"a": 1000, "b": 1500, "change": 500} and found["status"] == "same"


def test_unknown_tests_are_not_compared() -> None:
    found = difference.compare(side(), side(tests={}))
    assert found["tests"] == [] and found["tests_known"] is False


def locked(name: str, version: str, build: str = "0") -> Lock:
    conda = LockedConda(
        name="cuda-version", version="12.4", build=build, channel="c", subdir="noarch", filename="f", sha256="0" * 64
    )
    return Lock(
        name=name,
        resolution_digest="",
        inputs_digest="sha256:" + "0" * 64,
        python="3.11",
        platform="linux/amd64",
        base=LockedBase(image="debian:bookworm", digest=None, reason="none"),
        pip=(LockedPackage(name="torch", version=version, index="default", hashes=("sha256:" + "1" * 64,)),),
        conda=(conda,),
    )


def test_a_lock_against_an_image_leaves_the_base_out() -> None:
    image = side(packages={("pip", "torch"): "2.6.0", ("conda", "cuda-version"): "12.4 0", ("apt", "libc6"): "1"})
    assert difference.compare(difference.of_lock(locked("x", "2.6.0")), image)["status"] == "same"
    found = difference.compare(difference.of_lock(locked("x", "2.5.0")), image)
    assert [one["name"] for one in found["packages"]] == ["torch"]


def test_command_on_two_lock_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def put(name: str, found: Lock) -> str:
        folder = tmp_path / name
        folder.mkdir()
        for file, content in lock.dumps(found).items():
            (folder / file).write_bytes(content)
        return str(folder)

    a = put("a", replace(locked("a", "2.6.0"), conda=()))
    b = put("b", replace(locked("b", "2.10.0"), conda=()))
    assert cli.main(["diff", a, b, "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1 and document["packages"][0]["change"] == "upgraded"
    assert cli.main(["diff", a, a]) == 0
    assert "no difference" in capsys.readouterr().out
