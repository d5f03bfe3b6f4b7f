"""``envforge check`` as people and programs meet it: exit codes, the JSON document, flags and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envforge.cli import main

Capture = pytest.CaptureFixture[str]


def ask(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["check", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_catalogue_entry_on_a_host(capsys: Capture) -> None:
    code, found = ask(capsys, "torch-cu118", "--driver", "535.104.05", "--gpu", "A100")
    assert code == 0
    assert found["verdict"] in ("ok", "ok-with-limits")
    assert found["driver"]["answer"] == "native"
    assert found["driver"]["floor"] == "520.61.05"
    assert found["driver"]["minor_version_floor"] == "450.80.02"
    assert found["gpus"] == [{"model": "NVIDIA A100", "capability": "8.0", "answer": "kernels"}]


def test_a_conflict_prints_the_whole_document_and_exits_4(capsys: Capture) -> None:
    code, found = ask(capsys, "--framework", "torch=2.0.1+cu118", "--cuda", "11.8", "--python", "3.12")
    assert code == 4
    assert found["verdict"] == "conflict" and "error" not in found
    wanted = {"schema", "name", "verdict", "python", "cuda", "frameworks", "driver", "gpus", "findings", "nearest"}
    assert wanted <= set(found)
    changes = [change for near in found["nearest"] for change in near["changes"]]
    assert "Python 3.11" in changes and "torch 2.2.0+cu118" in changes
    assert all(near["verdict"] != "conflict" for near in found["nearest"])
    assert {"reference", "severity", "message", "hint"} == set(found["findings"][0])


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--framework", "torch=2.6.0", "--gpu", "RTX5090"], 4, "CUDA 12.8 build"),
        (["--framework", "torch=2.11.0", "--gpu", "P100"], 4, "CUDA 12.6"),
        (["--framework", "tensorflow=2.15", "--cuda", "11.8"], 4, "tensorflow 2.14.1"),
        (
            ["--framework", "tensorflow=2.5.0", "--cuda", "11.2", "--cudnn", "8.1", "--driver", "550.144.03"],
            0,
            "native",
        ),
        (["--framework", "torch==2.3.1+cu118", "--driver", "470.57.02", "--gpu", "A100"], 0, "minor-version"),
        (["--framework", "jax[cuda11]=0.4.38"], 4, "ended with jax 0.4.25"),
        (["--framework", "torch=2.99"], 0, "unverified"),
        (["--framework", "rocm"], 4, "AMD ROCm is not supported"),
        (["--framework", "torch=2.8.0", "--platform", "linux/arm64", "--gpu", "GH200"], 4, "pytorch-cu129"),
        (["--package", "onnxruntime-gpu==1.18.0", "--cuda", "12.1", "--cudnn", "8"], 4, "CUDA 11 build"),
        (["--framework", "torch=2.7.1", "--base", "ubuntu18.04"], 4, "glibc 2.28"),
    ],
)
def test_questions_without_a_file(capsys: Capture, words: list[str], code: int, text: str) -> None:
    assert main(["check", *words]) == code
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["torch-cu118", "--framework", "torch=2.6.0"],
        ["torch-cu118", "--cuda", "12.4"],
        ["--framework", "torch=2.6.0", "--framework", "pytorch=2.7.0"],
        ["--framework", "=2"],
        ["--framework", "torch=2.6.0", "--cudnn", "9"],
        ["--framework", "torch=2.6.0", "--cuda", "twelve"],
    ],
)
def test_flags_that_make_no_sense(capsys: Capture, words: list[str]) -> None:
    code, found = ask(capsys, *words)
    assert code == 2 and found["error"]["exit_code"] == 2


def test_an_unknown_name(capsys: Capture) -> None:
    code, found = ask(capsys, "no-such-entry")
    assert code == 3 and found["error"]["exit_code"] == 3


def test_a_spec_file(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "env.yaml"
    path.write_text(
        "schema: 1\nname: mine\npython: '3.11'\ncuda: {version: '12.4'}\nframeworks:\n  torch: {version: '2.6.0'}\n"
        "targets: {drivers: ['535.104.05'], gpus: ['A100', 'RTX 5090']}\n",
        encoding="utf-8",
    )
    code, found = ask(capsys, str(path))
    assert code == 4
    assert [row["answer"] for row in found["gpus"]] == ["kernels", "none"]
    assert found["driver"]["answer"] == "minor-version"


def test_the_human_form_says_who_needs_what_and_what_works(capsys: Capture) -> None:
    assert main(["check", "--framework", "torch=2.6.0", "--cuda", "12.4", "--gpu", "RTX 5090"]) == 4
    out = capsys.readouterr().out
    assert out.startswith("conflict") and "nearest that works" in out and "\x1b" not in out


def test_only_what_was_asked_for_is_imported() -> None:
    """Start-up time: a verdict needs no YAML tables, no Docker, no network library."""
    import subprocess
    import sys

    code = (
        "import sys; from envforge.cli import main\n"
        "main(['check','--framework','torch=2.6.0','--cuda','12.4','-q']);"
        "print([m for m in ('docker','requests','rich','jinja2','rattler','pydantic') if m in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_every_target_driver_counts(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "env.yaml"
    text = "schema: 1\nname: mine\npython: '3.11'\ncuda: {version: '12.6'}\n"
    text += "frameworks:\n  torch: {version: '2.9.0'}\ntargets: "
    path.write_text(text + "{drivers: ['470.57.02', '580.65.06'], gpus: [T4]}\n", encoding="utf-8")
    code, found = ask(capsys, str(path))
    assert (code, found["driver"]["given"]) == (4, "470.57.02")
    path.write_text(text + "{drivers: ['580.65.06', '595.58.03'], gpus: [V100]}\n", encoding="utf-8")
    code, found = ask(capsys, str(path))
    assert code == 4 and found["findings"][0]["reference"] == "driver-dropped-gpu"
    path.write_text(text + "{drivers: ['560.35.03', '580.65.06'], gpus: [V100]}\n", encoding="utf-8")
    assert ask(capsys, str(path))[0] == 0
