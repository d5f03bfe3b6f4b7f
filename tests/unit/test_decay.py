"""Decay: each kind with a control that is still alive."""

from __future__ import annotations

import json
from datetime import date

import pytest

from envforge import cli, compat, decay

NOW = date(2026, 12, 1)


@pytest.fixture(scope="module")
def tables() -> compat.Tables:
    return compat.load()


def test_a_month_ends_after_its_last_day() -> None:
    assert not decay.ended("2026-10", date(2026, 10, 31))
    assert decay.ended("2026-10", date(2026, 11, 1))
    assert decay.ended("2026-10", date(2027, 1, 1))


@pytest.mark.parametrize(
    ("image", "kinds"),
    [
        ("nvidia/cuda:latest", ["base-withdrawn"]),
        ("nvidia/cuda:12.4-runtime-ubuntu22.04", ["base-withdrawn"]),
        ("ubuntu:20.04", ["base-ended"]),
        ("ubuntu:22.04", []),
        ("python:3.11-slim-bookworm", []),
        ("registry.lab/own:1", []),
    ],
)
def test_bases(tables: compat.Tables, image: str, kinds: list[str]) -> None:
    assert [one.kind for one in decay.of_base(tables, "x", image, NOW)] == kinds


def test_the_end_of_a_system_depends_on_the_day(tables: compat.Tables) -> None:
    assert decay.of_base(tables, "x", "ubuntu:20.04", date(2025, 5, 31)) == []
    assert decay.of_base(tables, "x", "ubuntu:20.04", date(2025, 6, 1))[0].since == "2025-05"


def test_python(tables: compat.Tables) -> None:
    (found,) = decay.of_python(tables, "x", "3.9", NOW)
    assert (found.kind, found.since) == ("python-ended", "2025-10")
    assert decay.of_python(tables, "x", "3.12.4", NOW) == []


def test_withdrawn_releases(tables: compat.Tables) -> None:
    packages = [("torchvision", "0.15.0+cu118", None), ("own", "1", ""), ("torchvision", "0.15.1", None)]
    found = decay.of_packages(tables, "x", packages)
    assert [one.message.split(":")[0] for one in found] == [
        "torchvision 0.15.0+cu118 was withdrawn",
        "own 1 was withdrawn",
    ]
    assert "0.15.1" in found[0].hint


def test_drivers(tables: compat.Tables) -> None:
    assert decay.of_driver(tables, "h", "450.80.02", NOW)[0].since == "2023-07"
    assert decay.of_driver(tables, "h", "410.48", NOW)[0].since is None
    for alive_or_unknown in ("580.65", "455.23", "999.1"):
        assert decay.of_driver(tables, "h", alive_or_unknown, NOW) == []


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["decay", "jax-cpu", "--on", "2026-12-01", "--json", "--strict"]
    assert cli.main(line) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert cli.main([*line, "--driver", "450.80.02"]) == 10
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert set(found) == {"name", "kind", "severity", "message", "hint", "since"}


def test_a_name_without_a_lock_is_not_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert cli.main(["decay", "no-such-environment", "--json"]) != 0
    assert "error" in json.loads(capsys.readouterr().out)
