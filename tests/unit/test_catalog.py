"""The catalogue: every entry is read, judged and rendered; together they cover what the tables know."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from envforge import resources, spec
from envforge.compat import FRAMEWORKS, load
from envforge.verdict import Verdict, judge, request_from_spec

FILES = sorted(resources.catalog().glob("*.yaml"))
NAMES = [path.stem for path in FILES]
FIRST = (
    *("jax-cpu", "tf-cpu", "torch-cpu", "torch-cu118", "torch-cu121", "torch-cu124", "torch-cu126", "torch-cu128"),
    *("tf-cuda12", "jax-cuda12", "jax-cuda13"),
)
# Framework and CUDA builds the tables know but no entry can have, each with the reason.
LEFT_OUT: dict[tuple[str, str], str] = {}


def references() -> list[str]:
    """Every name, and every name with each of its variants."""
    found = []
    for name in NAMES:
        found.append(name)
        found += [f"{name}@{variant}" for variant in spec.load(name).variants]
    return found


@cache
def verdict(reference: str) -> Verdict:
    return judge(request_from_spec(spec.load(reference)), load())


def test_there_are_at_least_60_and_the_first_ones_are_among_them() -> None:
    assert len(NAMES) >= 60
    assert set(FIRST) <= set(NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_name_is_the_file_name_and_says_what_it_is(path: Path) -> None:
    found = spec.load(path.stem)
    assert found.name == path.stem
    assert found.description
    assert found.kind == "base" or found.frameworks
    assert all(item.version for item in found.frameworks.values()), "a catalogue entry names exact versions"


@pytest.mark.parametrize("reference", references())
def test_its_own_verdict_is_good(reference: str) -> None:
    found = verdict(reference)
    assert found.verdict in ("ok", "ok-with-limits"), [item.message for item in found.conflicts]


def test_a_broken_entry_would_be_noticed() -> None:
    """Control: the same judgement refuses an entry whose Python has no wheel."""
    from dataclasses import replace

    broken = replace(request_from_spec(spec.load("torch-cu124")), python="3.14")
    assert judge(broken, load()).verdict == "conflict"


def test_every_cuda_build_the_tables_know_has_an_entry() -> None:
    tables = load()
    known = {(name, cuda) for name in FRAMEWORKS for row in tables.releases(name) for cuda in row.builds}
    have = {(item.name, item.build.cuda) for name in NAMES for item in verdict(name).chosen if item.build is not None}
    have |= {(item.name, verdict(name).cuda or "") for name in NAMES for item in verdict(name).chosen if item.cuda}
    assert sorted(known - have - set(LEFT_OUT)) == []


def test_every_framework_has_an_entry_without_a_gpu() -> None:
    cpu = {item.name for name in NAMES for item in verdict(name).chosen if item.accelerator == "cpu"}
    assert cpu >= set(FRAMEWORKS)


@pytest.mark.parametrize(
    ("together", "package"),
    [
        ({"torch", "jax"}, ""),
        ({"torch", "tensorflow"}, ""),
        ({"tensorflow", "jax"}, ""),
        ({"torch"}, "onnxruntime-gpu"),
        ({"keras", "jax"}, ""),
        ({"keras", "tensorflow"}, ""),
        ({"keras", "torch"}, ""),
    ],
)
def test_combined_entries_exist(together: set[str], package: str) -> None:
    found = [
        name
        for name in NAMES
        if set((entry := spec.load(name)).frameworks) == together
        and (not package or any(text.startswith(package) for text in entry.packages.pip))
    ]
    assert found


def test_torch_cu118_and_its_variant() -> None:
    plain, variant = spec.load("torch-cu118"), spec.load("torch-cu118@py312")
    assert plain.frameworks["torch"].version == variant.frameworks["torch"].version == "2.7.1+cu118"
    assert (plain.python, variant.python) == ("3.11", "3.12")
    assert "torchvision==0.22.1+cu118" in plain.packages.pip
    assert set(variant.packages.pip) - set(plain.packages.pip) == {"torchaudio==2.7.1+cu118"}


def test_plain_torch_entries_name_the_cuda_the_default_index_gives() -> None:
    tables, seen = load(), 0
    for name in NAMES:
        entry = spec.load(name)
        item = entry.frameworks.get("torch")
        if item is None or item.index or entry.cuda is None or entry.cuda.source != "wheels":
            continue
        assert item.version is not None
        assert tables.default_index_cuda("torch", item.version) == entry.cuda.version, name
        seen += 1
    assert seen >= 10


@pytest.mark.parametrize("reference", references())
def test_it_renders_without_a_lock_and_says_so(reference: str) -> None:
    from envforge.plan import make_plan
    from envforge.render import render
    from envforge.resolve import resolve

    rendered = render(make_plan(resolve(spec.load(reference), load()), None))
    assert "FROM " in rendered.dockerfile
    assert "unlocked" in rendered.dockerfile.lower()
