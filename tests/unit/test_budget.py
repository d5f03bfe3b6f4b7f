"""Budgets: silent within, numbers by layer, package and step when over, the largest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envforge import budget, inventory
from envforge.engine import BuildStep, Built
from envforge.errors import EngineError
from envforge.inventory import FileEntry, InstalledConda, InstalledPip, Inventory
from envforge.spec import BudgetSpec

MB = 1_000_000


def pip(name: str, *paths: str) -> InstalledPip:
    return InstalledPip(
        name=name, version="1.0", meta="m", installer="uv", license="", license_expression="", classifiers=(),
        requires=(), record=dict.fromkeys(paths),
    )  # fmt: skip


def conda(name: str, *paths: str) -> InstalledConda:
    return InstalledConda(
        name=name, version="2", build="0", subdir="", channel="", filename="", sha256="", license="", meta="m",
        record=dict.fromkeys(paths, (None, "hardlink")),
    )  # fmt: skip


def found(sizes: dict[str, int], *packages: Any) -> Inventory:
    files = {path: FileEntry(kind="file", size=size, value=None) for path, size in sizes.items()}
    return Inventory(
        prefix="/opt/env", private=True, python="3.11", site=(), files=files, apt=(), cuda=(), bytecode={},
        pip=tuple(one for one in packages if isinstance(one, InstalledPip)),
        conda=tuple(one for one in packages if isinstance(one, InstalledConda)),
    )  # fmt: skip


class Engine:
    name = "docker"

    def __init__(self, rows: list[tuple[int, str]]) -> None:
        self.rows = rows

    def history(self, image: str) -> list[tuple[int, str]]:
        return self.rows


def built(megabytes: int) -> Built:
    steps = (
        BuildStep(name="apt", seconds=20.0, cached=False),
        BuildStep(name="pip install", seconds=70.0, cached=False),
        BuildStep(name="base", seconds=99.0, cached=True),
    )
    return Built(image="sha256:1", size_bytes=megabytes * MB, steps=steps, log=Path("log"))


def over(spec: BudgetSpec, image: Built, seconds: float, engine: Any = None) -> tuple[str, ...]:
    return budget.over(spec, image, seconds, engine or Engine([]))


def test_within_the_budget_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "of_image", lambda *words, **more: pytest.fail("looked into the image"))
    assert over(BudgetSpec(size_mb=100, build_seconds=90), built(100), 90.0) == ()
    assert over(BudgetSpec(), built(10_000), 10_000.0) == ()


def test_size_by_layer_and_package(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"/a": 30 * MB, "/b": 5 * MB, "/c": 60 * MB, "/nobody": 9 * MB}
    seen = found(sizes, pip("small", "/b", "/gone"), pip("big", "/a"), conda("cuda", "/c"))
    monkeypatch.setattr(inventory, "of_image", lambda *words, **more: seen)
    engine = Engine([(0, "LABEL x"), (70 * MB, "/bin/sh -c  uv pip   install"), (155 * MB, "base")])
    lines = over(BudgetSpec(size_mb=100), built(225), 1.0, engine)
    assert lines[0] == "size 225 MB, budget 100 MB"
    assert [line.split() for line in lines[1:]] == [
        ["largest", "layers:"],
        ["155.0", "MB", "base"],
        ["70.0", "MB", "uv", "pip", "install"],
        ["largest", "packages:"],
        ["60.0", "MB", "cuda", "2"],
        ["30.0", "MB", "big", "1.0"],
        ["5.0", "MB", "small", "1.0"],
    ]


def test_the_rest_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [pip(f"p{number:02}", f"/{number}") for number in range(13)]
    monkeypatch.setattr(
        inventory, "of_image", lambda *words, **more: found({f"/{n}": (n + 1) * MB for n in range(13)}, *many)
    )
    lines = over(BudgetSpec(size_mb=1), built(2), 1.0)
    assert lines[2].split() == ["13.0", "MB", "p12", "1.0"]
    assert lines[-1].split() == ["6.0", "MB", "3", "more", "packages"]


def test_without_an_answer_from_inside_the_size_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*words: object, **more: object) -> Inventory:
        raise EngineError("inventory-impossible", "no")

    monkeypatch.setattr(inventory, "of_image", broken)
    assert over(BudgetSpec(size_mb=1), built(2), 1.0) == ("size 2 MB, budget 1 MB",)


def test_time_by_step_without_the_cached_ones() -> None:
    lines = over(BudgetSpec(build_seconds=60), built(1), 90.4)
    assert lines[0] == "build 90 s, budget 60 s"
    assert [line.split() for line in lines[1:]] == [["70.0", "s", "pip", "install"], ["20.0", "s", "apt"]]


def test_a_long_instruction_shows_its_end() -> None:
    ((size, text),) = budget.layers(Engine([(1, "RUN " + "x" * 200 + " the-end")]), "i")  # type: ignore[arg-type]
    assert (size, len(text)) == (1, 90) and text.endswith("the-end") and text.startswith("RUN x")
