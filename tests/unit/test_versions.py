"""Our fast version code against the packaging library, which defines what is right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envforge.versions import (
    is_prerelease,
    key,
    major,
    parse_range,
    parse_requirement,
    series,
    split_local,
)

numbers = st.integers(min_value=0, max_value=30)
releases = st.lists(numbers, min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
suffixes = st.sampled_from(["", "a1", "b2", "rc1", ".post1", ".dev3", "rc1.dev2", ".post1.dev4", "a1.post2"])
versions = st.builds(lambda release, suffix: release + suffix, releases, suffixes)


@given(versions, versions)
def test_order_is_that_of_the_standard(first: str, second: str) -> None:
    assert (key(first) < key(second)) == (Version(first) < Version(second))
    assert (key(first) == key(second)) == (Version(first) == Version(second))


@given(versions)
def test_prereleases(text: str) -> None:
    assert is_prerelease(text) == Version(text).is_prerelease


@given(st.lists(st.tuples(st.sampled_from([">=", "<=", "<", ">", "==", "!="]), releases), max_size=3), releases)
def test_bounds_hold_what_the_standard_says(clauses: list[tuple[str, str]], version: str) -> None:
    text = ",".join(operator + bound for operator, bound in clauses)
    assert (version in parse_range(text)) == (version in SpecifierSet(text))


@given(st.sampled_from(["~=1.4", "~=2.4.1", "==1.*", "==2.4.*", "~=1.19.2"]), releases)
def test_compatible_and_prefix_bounds(text: str, version: str) -> None:
    assert (version in parse_range(text)) == (version in SpecifierSet(text))


@given(releases, releases, releases)
def test_meeting_two_bounds_is_being_in_both(low: str, high: str, version: str) -> None:
    first, second = parse_range(f">={low}"), parse_range(f"<{high}")
    met = first.meet(second)
    assert (version in met) == (version in first and version in second)
    if met.empty:
        assert version not in met


@pytest.mark.parametrize("text", ["", "one", "1.x", "1..2", "1.2+", "+cu118", "1.2 3"])
def test_no_versions(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        key(text)


def test_local_labels_do_not_count() -> None:
    assert key("2.0.1+cu118") == key("2.0.1")
    assert split_local("2.0.1+CU118") == ("2.0.1", "cu118")
    assert split_local("2.0.1") == ("2.0.1", None)


def test_parts() -> None:
    assert (series("12.4.1"), major("12.4.1")) == ("12.4", "12")


@pytest.mark.parametrize(
    ("text", "name", "extras", "pinned", "local"),
    [
        ("torch==2.0.1+cu118", "torch", (), "2.0.1", "cu118"),
        ("jax[cuda12_pip]==0.4.25", "jax", ("cuda12-pip",), "0.4.25", None),
        ("Onnx_Runtime.GPU >= 1.18, <2", "onnx-runtime-gpu", (), None, None),
        ("numpy", "numpy", (), None, None),
        ("x @ https://example.org/x-1-py3-none-any.whl", "x", (), None, None),
        ('numpy<2 ; python_version < "3.12"', "numpy", (), None, None),
        ("numpy==1.26.*", "numpy", (), None, None),
    ],
)
def test_requirements(text: str, name: str, extras: tuple[str, ...], pinned: str | None, local: str | None) -> None:
    found = parse_requirement(text)
    assert (found.name, found.extras, found.pinned, found.local) == (name, extras, pinned, local)


@pytest.mark.parametrize("text", ["", "==1", "a b", "numpy=>1", "-r other.txt"])
def test_no_requirements(text: str) -> None:
    with pytest.raises(ValueError):
        parse_requirement(text)
