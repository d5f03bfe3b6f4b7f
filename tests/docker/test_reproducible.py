"""Two builds of one lock on the real engine, from empty caches: the layers' digests are the same."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from envforge import base, inventory, reproducible, verify
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, Built, EngineInfo, ImageInfo
from envforge.lock import Lock, seal
from envforge.plan import make_plan
from envforge.render import render
from envforge.resolve import Resolution
from envforge.spec import HookSpec
from tests import podman, records

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
        below = len(engine.inspect(BASE).layers)
        mine, other = engine.inspect(first.image).layers, engine.inspect(second.image).layers
        assert mine[:below] == other[:below]
        assert mine[below] != other[below], "the packages"
        assert mine[below + 1] != other[below + 1], "the user"
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


class _Catcher:
    """Takes the place of an engine when a base is made: keeps the tar."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def info(self) -> EngineInfo:
        return EngineInfo(name="docker", version="1", flavour="docker", buildkit=True, platform="linux/amd64")

    def bases(self) -> list[ImageInfo]:
        return []

    def import_rootfs(self, tar: IO[bytes], repository: str, tag: str, changes: Sequence[str]) -> ImageInfo:
        with self.target.open("wb") as stream:
            shutil.copyfileobj(tar, stream)
        return ImageInfo(image=tag, tags=(), labels={}, env={}, user="", size_bytes=1, created="")


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_a_bootstrapped_base_is_the_same_bytes_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        base.bootstrap(_Catcher(tmp_path / name), "3.11", note=print)
    with tarfile.open(tmp_path / "one") as one, tarfile.open(tmp_path / "two") as two:
        differing = [
            (a.name, a.mtime, b.mtime)
            for a, b in zip(one.getmembers(), two.getmembers(), strict=False)
            if a.get_info() != b.get_info() or (a.isreg() and one.extractfile(a).read() != two.extractfile(b).read())  # type: ignore[union-attr]
        ]
        assert differing == []
        shadow = one.extractfile("etc/shadow")
        assert shadow is not None
        days = {line.split(b":")[2] for line in shadow.read().splitlines()}
        assert days <= {b"", b"0"}, "the day of making is in no account"
    assert filecmp.cmp(tmp_path / "one", tmp_path / "two", shallow=False)


@pytest.fixture
def podman_engine(
    engine: DockerEngine,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[DockerEngine]:
    """Podman, with Docker's base inside."""
    if podman.program() is None:
        required = {*request.config.getoption("--require"), *os.environ.get("ENVFORGE_TEST_REQUIRE", "").split()}
        assert "podman" not in required, "Podman is required for this run and is not installed"
        pytest.skip("no podman here (run with --require podman to insist)")
    with podman.service(tmp_path_factory.mktemp("pm")) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        found = DockerEngine.connect()
        with tempfile.TemporaryFile() as spool:
            for block in engine.export(BASE):
                spool.write(block)
            spool.seek(0)
            found._load(spool)
        yield found
        found.close()


def plain(engine: DockerEngine) -> Built:
    """A build in the form without mounts, and without a network."""
    (own,) = [tag for info in engine.bases() for tag in info.tags if "py3.11" in tag]
    text = records.rendered("sha256:" + "7" * 64, lines="RUN /usr/sbin/useradd someone\n", base=own)
    options = BuildOptions(progress=print, no_cache=True, reproducible=True)
    return engine.build(text, records.resolution(), records.lock("sha256:" + "7" * 64), options)


def test_podman_and_docker_give_the_same_files(engine: DockerEngine, podman_engine: DockerEngine) -> None:
    engine._info = replace(engine.info(), buildkit=False)
    made = [plain(podman_engine), plain(podman_engine), plain(engine), plain(engine)]
    try:
        found = [one.rewritten for one in made if one.rewritten is not None]
        assert len(found) == 4
        assert reproducible.compare(found[0], found[1]).level == "same bytes"
        assert reproducible.compare(found[2], found[3]).level == "same bytes"
        across = reproducible.compare(found[0], found[2])
        assert across.level in ("same bytes", "same files"), across.differences
        assert found[0].layers == found[2].layers, (
            "the layers are the same bytes; the configuration is the engine's own"
        )
    finally:
        engine.remove(made[2].image)
        podman_engine.remove(made[0].image)


@pytest.mark.nightly
@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_jax_built_twice_is_the_same_bytes(engine: DockerEngine, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    words = (
        "build",
        "jax-cpu",
        "--engine",
        "docker",
        "--locked",
        "--no-cache",
        "--no-smoke",
        "--reproducible",
        "--json",
    )
    done = subprocess.run(
        [sys.executable, "-m", "envforge", *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "ENVFORGE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    try:
        proof = document["reproducible"]
        assert (proof["level"], proof["differences"]) == ("same bytes", [])
        assert proof["compared_with"] == "a second build from empty caches"
        assert engine.inspect(document["image"]).layers == tuple(proof["layers"])
        print(document["seconds"], document["size_bytes"])
    finally:
        if not engine.inspect(document["image"]).tags:  # a tag of before may stand on the very same bytes
            engine.remove(document["image"])
