"""Two builds of one lock on the real engine, from empty caches: the layers' digests are the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import inventory, reproducible, verify
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, Built
from envforge.lock import Lock, seal
from envforge.plan import make_plan
from envforge.render import render
from envforge.resolve import Resolution
from envforge.spec import HookSpec
from tests import records

pytestmark = [pytest.mark.docker, pytest.mark.network]
BASE = records.BASE


@pytest.fixture
def engine(bookworm_base: str) -> Iterator[DockerEngine]:
    found = DockerEngine.connect()
    yield found
    found.close()


def case(name: str, **changes: object) -> tuple[Resolution, Lock]:
    found = replace(records.resolution(name), **changes)  # type: ignore[arg-type]
    return found, seal(replace(records.lock("", name)), found)


def build(engine: DockerEngine, found: Resolution, lock: Lock, *, fixed: bool = True) -> Built:
    bundle = os.environ.get("SSL_CERT_FILE")
    options = BuildOptions(
        progress=print, ca_bundle=Path(bundle) if bundle else None, no_cache=True, reproducible=fixed
    )
    return engine.build(render(make_plan(found, lock, "buildkit", base=BASE)), found, lock, options)


def test_two_builds_from_empty_caches_are_the_same_bytes(engine: DockerEngine) -> None:
    found, lock = case("same-bytes", apt=("tree",))  # apt writes logs, caches and backups
    first, second = build(engine, found, lock), build(engine, found, lock)
    try:
        assert first.rewritten is not None and second.rewritten is not None
        compared = reproducible.compare(first.rewritten, second.rewritten)
        assert compared.level == "same bytes", compared.differences
        assert first.image == second.image == first.rewritten.image
        info = engine.inspect(first.image)
        assert info.layers == first.rewritten.layers
        assert info.layers[: len(engine.inspect(BASE).layers)] == engine.inspect(BASE).layers
        assert info.created.startswith("1980-01-02")
        # It is still the image of this lock, and it runs.
        seen = inventory.of_image(engine, first.image)
        assert verify.compare(lock, seen) == ()
        assert info.labels["envforge.inputs-digest"] == lock.inputs_digest and info.user == "1000:1000"
        assert not [path for path in seen.files if path.endswith(".pyc") and path.startswith("/opt/env")]
    finally:
        engine.remove(first.image)


def test_without_the_option_the_layers_differ(engine: DockerEngine) -> None:
    """The control: the clock is in every layer of an ordinary build."""
    found, lock = case("other-bytes")
    first, second = (build(engine, found, lock, fixed=False) for _ in range(2))
    try:
        assert first.rewritten is None
        base = len(engine.inspect(BASE).layers)
        mine, other = engine.inspect(first.image).layers, engine.inspect(second.image).layers
        assert mine[:base] == other[:base]
        assert mine[base] != other[base], "the packages"
        assert mine[base + 1] != other[base + 1], "the user"
    finally:
        engine.remove(first.image)
        engine.remove(second.image)


def test_a_step_that_is_not_repeatable_is_named(engine: DockerEngine) -> None:
    stamp = HookSpec(name="stamp", after="pip", command=("sh", "-c", "date +%s%N > /etc/built-at"))
    found, lock = case("stamped", hooks=(stamp,))
    first, second = build(engine, found, lock), build(engine, found, lock)
    try:
        assert first.rewritten is not None and second.rewritten is not None
        compared = reproducible.compare(first.rewritten, second.rewritten)
        assert compared.level == "same versions"
        assert [line.partition(":")[0] for line in compared.differences] == ["etc/built-at"]
    finally:
        engine.remove(first.image)
        engine.remove(second.image)
