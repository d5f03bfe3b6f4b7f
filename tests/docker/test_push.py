"""`envforge push` to a real registry: with and without login, over broken connections; and what may not leave."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envforge import base, registry
from envforge.config import Config
from envforge.docker_engine import DockerEngine
from envforge.errors import NetworkError
from tests.docker.registries import PASSWORD, USER, Registry, dropper
from tests.docker.registries import registry as serve
from tests.resolutions import resolution

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.docker
NAME = "push-case"


@dataclass(frozen=True, kw_only=True)
class Image:
    """A tiny image as a passed build leaves it."""

    engine: DockerEngine
    image: str
    tag: str
    digest: str
    home: Path

    @property
    def fixed(self) -> str:
        return self.digest[7:19]

    def record(self, **changes: Any) -> None:
        """Write a record of this image beside those there are."""
        document = {"schema": 1, "name": NAME, "engine": "docker", "image": self.image, "tag": self.tag}
        document |= {"inputs_digest": self.digest, "status": "passed", "gpu_tested": False, "checks": []} | changes
        folder = self.home / "records" / NAME
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.iterdir()))
        (folder / f"{self.fixed}-{number:03}.json").write_text(json.dumps(document), encoding="utf-8")


def tiny(labels: dict[str, str], repository: str, tag: str, engine: DockerEngine) -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        content = uuid.uuid4().bytes * 20_000
        member = tarfile.TarInfo("content")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    return engine.import_rootfs(
        buffer, repository, tag, [f"LABEL {key}={value}" for key, value in labels.items()]
    ).image


@pytest.fixture
def engine() -> Iterator[DockerEngine]:
    found = DockerEngine.connect()
    yield found
    found.close()


@pytest.fixture
def tested(engine: DockerEngine, tmp_path: Path) -> Iterator[Image]:
    digest = "sha256:" + uuid.uuid4().hex * 2
    labels = {"envforge.name": NAME, "envforge.inputs-digest": digest, "envforge.python": "3.11"}
    labels |= {"envforge.frameworks": "torch=2.6.0", "envforge.cuda": "12.4"}
    tag = f"envforge/{NAME}:{digest[7:19]}"
    image = tiny(labels, f"envforge/{NAME}", digest[7:19], engine)
    yield Image(engine=engine, image=image, tag=tag, digest=digest, home=tmp_path / "home")
    engine.remove(image)


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serve(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(scope="module")
def closed_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with serve(tmp_path_factory.mktemp("registry"), login=True) as found:
        yield found


def push(image: Image, *words: str, **env: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "envforge", "push", *words, "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(image.home), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def login(folder: Path, host: str, password: str = PASSWORD) -> str:
    """A Docker config folder that is logged in there."""
    folder.mkdir(exist_ok=True)
    packed = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": packed}}}), encoding="utf-8")
    return str(folder)


def names(engine: DockerEngine, image: str) -> tuple[str, ...]:
    return engine.inspect(image).tags


def test_a_tested_image_is_pushed_by_digest(tested: Image, open_registry: Registry) -> None:
    tested.record()
    repository = f"{open_registry.host}/ml/case"
    code, found, err = push(tested, tested.tag, "--to", repository, "--also", "stable", "latest")
    assert code == 0, err
    assert found["schema"] == 1 and found["name"] == NAME
    assert found["image"] == f"{repository}@{found['digest']}"
    wanted = [tested.fixed, "torch2.6.0-cu124-py3.11", "stable", "latest"]
    assert found["tags"] == [f"{repository}:{tag}" for tag in wanted]
    assert (found["tested_on_gpu"], found["confirmed"], found["moved"]) == (False, True, {})
    for tag in wanted:  # asked without the engine
        assert registry.resolve_digest(f"{repository}:{tag}").digest == found["digest"]
    assert "NVIDIA" in found["notice"] and "licences" in err
    assert names(tested.engine, tested.image) == (tested.tag,), "no name made for the push stays"

    code, again, err = push(tested, tested.tag, "--to", repository)
    assert (code, again["already_there"], again["digest"]) == (0, True, found["digest"]), err


def test_what_comes_back_is_the_image_that_was_tested(tested: Image, open_registry: Registry) -> None:
    tested.record(gpu_tested=True)
    code, found, err = push(tested, tested.tag, "--to", f"{open_registry.host}/team/")
    assert code == 0, err
    assert found["tested_on_gpu"] is True
    assert found["image"].startswith(f"{open_registry.host}/team/{NAME}@")
    tested.engine.pull(found["image"])
    try:
        assert tested.engine.inspect(found["image"]).image == tested.image
    finally:
        tested.engine.remove(found["image"])


@pytest.mark.parametrize(
    ("records", "reference"),
    [
        ([], "not-tested"),
        ([{"status": "not_run", "tag": None}], "not-tested"),
        ([{"image": "sha256:" + "0" * 64}], "not-tested"),
        ([{}, {"status": "failed", "checks": [{"name": "training.mlp", "outcome": "failed"}]}], "tests-failed"),
    ],
)
def test_untested_images_stay(
    tested: Image, open_registry: Registry, records: list[dict[str, Any]], reference: str
) -> None:
    for one in records:
        tested.record(**one)
    code, found, _ = push(tested, tested.tag, "--to", f"{open_registry.host}/never/{reference}")
    assert (code, found["error"]["reference"]) == (8, reference)
    assert registry.published(f"{open_registry.host}/never/{reference}:{tested.fixed}") is None


def test_moving_tags_move_and_the_fixed_one_does_not(
    tested: Image, open_registry: Registry, engine: DockerEngine
) -> None:
    tested.record()
    repository = f"{open_registry.host}/ml/moving"
    code, first, err = push(tested, tested.tag, "--to", repository, "--also", "stable")
    assert code == 0, err
    # The same lock built again gives other bytes under the same identity.
    labels = dict(engine.inspect(tested.image).labels)
    second = tiny(labels, f"envforge/{NAME}", "again", engine)
    try:
        engine.tag(second, f"envforge/{NAME}", tested.fixed)
        other = Image(engine=engine, image=second, tag=tested.tag, digest=tested.digest, home=tested.home)
        other.record()
        code, refused, _ = push(other, other.tag, "--to", repository, "--also", "stable")
        assert (code, refused["error"]["reference"]) == (11, "fixed-tag-taken")
        assert registry.resolve_digest(f"{repository}:stable").digest == first["digest"]
        code, moved, err = push(other, other.tag, "--to", repository, "--also", "stable", "--replace")
        assert code == 0, err
        assert moved["moved"]["stable"] == first["digest"] != moved["digest"]
    finally:
        engine.remove(second)


def test_login_is_needed_and_used(tested: Image, closed_registry: Registry, tmp_path: Path) -> None:
    tested.record()
    repository = f"{closed_registry.host}/private/case"
    nobody, wrong = tmp_path / "nobody", tmp_path / "wrong"
    nobody.mkdir()
    for folder in (str(nobody), login(wrong, closed_registry.host, "guess")):
        code, found, err = push(tested, tested.tag, "--to", repository, DOCKER_CONFIG=folder)
        assert (code, found["error"]["reference"]) == (11, "registry-refused"), err
        assert f"docker login {closed_registry.host}" in found["error"]["hint"]
        assert "guess" not in err and PASSWORD not in err
        assert names(tested.engine, tested.image) == (tested.tag,)
    code, found, err = push(
        tested, tested.tag, "--to", repository, DOCKER_CONFIG=login(tmp_path / "known", closed_registry.host)
    )
    assert code == 0, err
    assert found["confirmed"] is True
    assert PASSWORD not in err + json.dumps(found)


def test_dropped_connections_are_tried_again(tested: Image, open_registry: Registry) -> None:
    tested.record()
    with dropper(open_registry.host) as proxy:
        proxy.drop += [b"PUT /v2/ml/dropped/manifests/"] * 2
        code, found, err = push(tested, tested.tag, "--to", f"{proxy.host}/ml/dropped", "--policy", "fixed")
    assert code == 0, err
    assert (proxy.dropped, found["retries"]) == (2, 2)
    assert "trying again" in err
    assert registry.resolve_digest(f"{open_registry.host}/ml/dropped:{tested.fixed}").digest == found["digest"]


def test_a_connection_that_always_breaks_ends_with_its_own_error(tested: Image, open_registry: Registry) -> None:
    tested.record()
    with dropper(open_registry.host) as proxy:
        proxy.drop += [b"PUT /v2/ml/broken/manifests/"] * 50
        code, found, _ = push(tested, tested.tag, "--to", f"{proxy.host}/ml/broken", "--policy", "fixed")
    assert (code, found["error"]["reference"]) == (11, "push-interrupted")
    assert proxy.dropped == 4
    assert names(tested.engine, tested.image) == (tested.tag,)
    assert registry.published(f"{open_registry.host}/ml/broken:{tested.fixed}") is None


def test_a_registry_that_is_not_there(tested: Image) -> None:
    tested.record()
    code, found, err = push(tested, tested.tag, "--to", "127.0.0.1:9/x", "--policy", "fixed")
    assert (code, found["error"]["reference"]) == (11, "registry-unreachable"), err


# --- private bases -------------------------------------------------------------------------------------------


@pytest.fixture
def private_base(tested: Image, closed_registry: Registry, tmp_path: Path) -> Iterator[str]:
    """A base image that only logged-in users can have, and that this engine does not hold."""
    tested.record()
    folder = login(tmp_path / "publisher", closed_registry.host)
    repository = f"{closed_registry.host}/lab/{uuid.uuid4().hex[:8]}"
    code, _, err = push(
        tested, tested.tag, "--to", repository, "--policy", "fixed", "--also", "v1", DOCKER_CONFIG=folder
    )
    assert code == 0, err
    yield f"{repository}:v1"
    if tested.engine.has(f"{repository}:v1"):
        tested.engine.remove(f"{repository}:v1")


def test_a_private_base_is_pulled_with_the_users_login(
    private_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = resolution().base
    host = private_base.partition("/")[0]
    chosen = Config(bases={wanted.image: private_base})
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path / "stranger"))
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(empty))
    stranger = DockerEngine.connect()
    with pytest.raises(NetworkError) as caught:
        stranger.pull(private_base)
    assert caught.value.reference == "registry-refused" and "docker login" in caught.value.hint
    with pytest.raises(NetworkError) as caught:
        registry.resolve_digest(private_base)
    assert caught.value.reference == "registry-refused"
    stranger.close()

    monkeypatch.setenv("DOCKER_CONFIG", login(tmp_path / "member", host))
    member = DockerEngine.connect()
    found = base.choose(member, wanted, chosen)
    assert (found.reference, found.substituted) == (private_base, True)
    assert member.has(private_base)
    answer = registry.resolve_digest(wanted.image, chosen)
    assert answer.digest in "".join(member.inspect(private_base).repo_digests)
    member.close()


# --- the whole way -------------------------------------------------------------------------------------------

SPEC = """\
schema: 1
name: push-whole
python: "3.11"
base: {image: "python:3.11-slim-bookworm"}
packages: {pip: ["six==1.17.0"]}
"""


@pytest.mark.network
def test_from_a_spec_to_a_registry(
    bookworm_base: str, engine: DockerEngine, open_registry: Registry, tmp_path: Path
) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "push-whole.yaml").write_text(SPEC, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(tmp_path / "home")}
    repository = f"{open_registry.host}/ml/whole"

    def envforge(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "envforge", *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)

    def published(tag: str) -> bool:
        return registry.published(f"{repository}:{tag}") is not None

    try:
        done = envforge("build", "push-whole", "--engine", "docker", "--no-smoke", "--json")
        assert done.returncode == 0, done.stderr
        fixed = json.loads(done.stdout)["inputs_digest"][7:19]
        refused = envforge("push", "push-whole", "--to", repository)
        assert refused.returncode == 8 and "not-tested" in refused.stderr, refused.stderr
        assert not published(fixed)

        assert envforge("build", "push-whole", "--engine", "docker").returncode == 0
        pushed = envforge("push", "push-whole", "--to", repository, "--also", "stable")
        assert pushed.returncode == 0, pushed.stderr
        assert f"{repository}:{fixed} (fixed)" in pushed.stdout
        assert "not tested on a GPU" in pushed.stdout.splitlines()
        assert published(fixed) and published("stable")
        assert "licences" not in pushed.stderr, "nothing of NVIDIA is in it"
    finally:
        for info in engine.images():
            if info.labels.get("envforge.name") == "push-whole":
                engine.remove(info.image)


def test_a_name_that_was_never_built(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "push-whole.yaml").write_text(SPEC, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "envforge", "push", "push-whole", "--to", "127.0.0.1:9/x", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ENVFORGE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, json.loads(done.stdout)["error"]["reference"]) == (6, "not-built")
