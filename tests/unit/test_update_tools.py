"""The updaters, on saved answers of the package index: new rows, withdrawn ones, and answers not to be believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAVED = ROOT / "tests" / "cases" / "update"
sys.path.insert(0, str(ROOT / "tools"))

import update_common as common  # noqa: E402
import update_frameworks  # noqa: E402
import update_kernels  # noqa: E402
import update_packages  # noqa: E402

from envforge import tables  # noqa: E402


def saved(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SAVED / f"{name}.json").read_text())
    return found


def metadata(file: Mapping[str, Any]) -> str | None:
    name, version = file["filename"].split("-")[:2]
    path = SAVED / f"{name}-{version}.METADATA"
    return path.read_text() if path.is_file() else None


def torch_table(*versions: str) -> dict[str, Any]:
    """The shipped rows of these versions."""
    return {"releases": [row for row in deepcopy(tables.read("torch"))["releases"] if row["version"] in versions]}


def test_a_new_release_becomes_a_row_of_what_metadata_proves() -> None:
    old = torch_table("2.13.0", "2.14.0", "2.14.1")
    new = update_frameworks.refresh("torch", old, saved("torch"), metadata)
    assert [row["version"] for row in new["releases"]] == ["2.13.0", "2.14.0", "2.14.1", "2.15.0"]
    row = new["releases"][-1]
    assert row["python"] == ["3.11", "3.13"]  # what the saved answer holds
    assert row["glibc"] == {"amd64": "2.28", "arm64": "2.28"}
    assert row["default"] == {"amd64": "13.2", "arm64": "13.2"}
    build = row["builds"][0]
    assert (build["cuda"], build["cudnn"], build["low"]) == ("13.2", "9.26.0.51", "kernels")
    assert row["source"] == ["PyPI metadata of torch 2.15.0"]
    assert len(old["releases"]) == 3, "the table given is not changed"


def test_a_known_release_is_left_alone() -> None:
    old = torch_table("2.13.0", "2.14.0", "2.14.1", "2.15.0")
    assert update_frameworks.refresh("torch", old, saved("torch"), metadata) == old


def test_a_withdrawn_release_is_marked_with_its_reason() -> None:
    answer = saved("torch")
    for file in answer["files"]:
        if "-2.14.0-" in file["filename"]:
            file["yanked"] = "broken wheel"
    new = update_frameworks.refresh("torch", torch_table("2.14.0", "2.15.0"), answer, metadata)
    assert [row.get("yanked") for row in new["releases"]] == ["broken wheel", None]
    # Control: one file that stands keeps the release.
    answer["files"][next(i for i, f in enumerate(answer["files"]) if "-2.14.0-" in f["filename"])]["yanked"] = False
    kept = update_frameworks.refresh("torch", torch_table("2.14.0", "2.15.0"), answer, metadata)
    assert "yanked" not in kept["releases"][0]


def test_a_short_answer_is_not_believed() -> None:
    everything = {"releases": list(tables.read("torch")["releases"])}
    with pytest.raises(common.Distrusted, match="known releases are not in the answer"):
        update_frameworks.refresh("torch", everything, saved("torch"), metadata)


def test_a_release_without_metadata_or_linux_wheels_is_not_believed() -> None:
    with pytest.raises(common.Distrusted, match="no metadata"):
        update_frameworks.refresh("torch", torch_table("2.14.1"), saved("torch"), lambda file: None)
    answer = saved("torch")
    answer["files"] = [{"filename": "torch-2.15.0-cp311-none-macosx_11_0_arm64.whl", "url": "u"}]
    with pytest.raises(common.Distrusted, match="no Linux wheel"):
        update_frameworks.refresh("torch", torch_table("2.14.1"), answer, lambda file: "Metadata-Version: 2.1\n")


def test_a_new_package_row_stands_behind_its_siblings() -> None:
    rows = [row for row in tables.read("packages")["packages"] if row["name"] in ("onnxruntime", "tf2onnx")]
    old = {"packages": [row for row in rows if row["version"] in ("1.30.0", "1.31.0", "1.31.1", "1.17.0")]}
    new = update_packages.refresh("onnxruntime", old, saved("onnxruntime"), metadata)["packages"]
    names = [(row["name"], row["version"]) for row in new]
    place = names.index(("onnxruntime", "1.32.0"))
    assert names[place - 1] == ("onnxruntime", "1.31.1")
    assert new[place]["needs"]["numpy"] == [">=1.21.6"] and new[place]["python"] == ["3.11", "3.13"]
    assert "opset" not in new[place] and "max_opset" not in new[place]


def test_an_unknown_package_needs_a_first_row_by_hand() -> None:
    with pytest.raises(common.Distrusted, match="by hand"):
        update_packages.refresh("six", {"packages": []}, saved("onnxruntime"), metadata)


def test_an_answer_that_is_no_file_list_is_not_believed() -> None:
    with pytest.raises(common.Distrusted, match="did not answer"):
        common.project("torch", get=lambda url, headers: b'{"message": "hello"}', index="https://index.test")


def test_relative_file_addresses_are_made_whole() -> None:
    body = json.dumps({"files": [{"filename": "a-1-py3-none-any.whl", "url": "../../files/a.whl"}]}).encode()
    asked: list[str] = []

    def get(url: str, headers: Mapping[str, str]) -> bytes:
        asked.append(url)
        return body

    found = common.project("a", get=get, index="https://index.test/simple")
    assert asked == ["https://index.test/simple/a/"]
    assert found["files"][0]["url"] == "https://index.test/files/a.whl"


def test_pre_releases_and_source_files_are_no_releases() -> None:
    names = ["a-1.0-py3-none-any.whl", "a-1.1rc1-py3-none-any.whl", "a-1.2.tar.gz", "a-0.9-py3-none-any.whl"]
    assert list(common.releases({"files": [{"filename": name} for name in names]})) == ["0.9", "1.0"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy (>=1.26,<3)", {"numpy": [">=1.26,<3"]}),
        ("numpy>=1.26 ; python_version >= '3.9'", {"numpy": [">=1.26"]}),
        ("onnx ; extra == 'all'", {}),
        ("cuda-toolkit[cublas,cudart]==13.2.2", {"cuda-toolkit[cublas,cudart]": ["==13.2.2"]}),
        ("filelock", {"filelock": [""]}),
    ],
)
def test_requirements_of_metadata(line: str, expected: dict[str, list[str]]) -> None:
    assert common.requirements(f"Metadata-Version: 2.1\nRequires-Dist: {line}\n") == expected


def test_lowest_glibc_of_old_and_new_tags() -> None:
    names = [
        "a-1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
        "a-1-cp39-cp39-manylinux2014_x86_64.whl",
    ]
    assert common.glibc([{"filename": name} for name in names]) == {"amd64": "2.17"}


def test_report_writes_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("a: 1\n")
    assert common.report(path, "a: 2\n", write=False) and path.read_text() == "a: 1\n"
    assert "-a: 1" in capsys.readouterr().out
    assert common.report(path, "a: 2\n", write=True) and path.read_text() == "a: 2\n"
    assert not common.report(path, "a: 2\n", write=True)


def test_rows_that_break_a_table_are_refused() -> None:
    table = deepcopy(dict(tables.read("torch")))
    assert common.table_text("torch", table) == (common.DATA / "torch.yaml").read_text(encoding="utf-8")
    del table["releases"][0]["source"]
    with pytest.raises(common.Distrusted, match="no source"):
        common.table_text("torch", table)


PROBE = {
    "version": "2.15.0",
    "arch_list": ["sm_75", "sm_80", "sm_90a", "sm_100f", "compute_120"],
    "fatbins": {},
    "libraries": {"cuda": "13.2 (torch/version.py)"},
    "command": "python tools/probe_wheel.py torch==2.15.0",
    "date": "2026-12-01",
}


def test_measured_kernels_replace_those_of_low_confidence() -> None:
    old = torch_table("2.15.0")
    build = old["releases"][0]["builds"][0]
    build.pop("kernels", None)
    build["low"] = "kernels"
    row = update_kernels.apply("torch", old, [PROBE])["releases"][0]
    assert row["builds"][0]["kernels"] == ["7.5", "8.0", "9.0", "10.0"]
    assert row["builds"][0]["ptx"] == ["12.0"] and "low" not in row["builds"][0]
    assert row["source"][-1] == "measured: python tools/probe_wheel.py torch==2.15.0"
    again = update_kernels.apply("torch", {"releases": [row]}, [PROBE])["releases"][0]
    assert again == row, "a second run adds nothing"


def test_the_library_that_computes_counts_where_no_list_is_compiled_in() -> None:
    main_library = {"sass": ["8.0", "9.0", "10.0"], "ptx": [], "images": 900}
    helper = {"sass": ["7.5"], "ptx": ["12.0"], "images": 3}
    probe = PROBE | {"arch_list": [], "fatbins": {"libtorch_cuda.so": main_library, "libtorch_nvshmem.so": helper}}
    old = torch_table("2.15.0")
    old["releases"][0]["builds"][0]["ptx"] = ["12.0"]
    build = update_kernels.apply("torch", old, [probe])["releases"][0]["builds"][0]
    assert build["kernels"] == ["8.0", "9.0", "10.0"]
    assert "ptx" not in build, "what was measured to be absent goes"
    main_library["ptx"] = ["10.0"]
    assert update_kernels.apply("torch", old, [probe])["releases"][0]["builds"][0]["ptx"] == ["10.0"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arch_list": []}, "not believed"),
        ({"version": "9.9.9"}, "has no row"),
        ({"libraries": {"cuda": "11.8 (torch/version.py)"}}, "has no row"),
        ({"libraries": {"cuda": "unknown"}}, "no CUDA version"),
    ],
)
def test_probes_that_do_not_fit_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(common.Distrusted, match=said):
        update_kernels.apply("torch", torch_table("2.15.0"), [PROBE | change])


def test_series_of_pins_and_ranges() -> None:
    assert update_kernels.cuda_series("12.4 (torch/version.py)") == "12.4"
    assert update_kernels.cuda_series("==12.8.90 (nvidia-cuda-runtime-cu12)") == "12.8"
    assert update_kernels.cuda_series("<13.0,>=12.5.82 (nvidia-cuda-runtime-cu12)") == "12.5"
