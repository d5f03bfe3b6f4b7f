"""Whole Dockerfiles of some catalogue entries, as a person gets them: a change of any byte is seen in review."""

from __future__ import annotations

from pathlib import Path

import pytest

from envforge import compat, spec
from envforge import lock as lockfile
from envforge.plan import make_plan
from envforge.render import render
from envforge.resolve import resolve

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "catalogue"
NAMES = ("jax-cpu", "tf-cpu", "torch-cu118", "torch-cu124", "mxnet-cpu")


def dockerfile(name: str) -> str:
    resolution = resolve(spec.load(name), compat.load())
    return render(make_plan(resolution, lockfile.read(name))).dockerfile


@pytest.mark.parametrize("name", NAMES)
def test_the_dockerfile_is_the_committed_one(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.Dockerfile"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(dockerfile(name), encoding="utf-8")
    assert dockerfile(name) == path.read_text(encoding="utf-8")


def test_the_goldens_differ_where_the_entries_do() -> None:
    assert len({dockerfile(name) for name in NAMES}) == len(NAMES)
