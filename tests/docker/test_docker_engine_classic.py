"""The classic builder (engines without BuildKit), and the commands that look at an engine."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import base, cli
from envforge.config import Config
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions
from envforge.errors import BuildError
from tests import records

pytestmark = pytest.mark.docker


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path))
    found = DockerEngine.connect(config=Config())
    base.bootstrap(found, "3.11", note=lambda text: None)
    yield found
    found.close()


@pytest.fixture
def classic(engine: DockerEngine) -> Iterator[DockerEngine]:
    """The same engine, asked in the old way. What a failed build leaves in its cache is removed afterwards."""
    engine._info = replace(engine.info(), buildkit=False)

    def dangling() -> set[str]:
        rows = engine._api.images(filters={"dangling": True, "label": base.LABEL})
        return {row["Id"] for row in rows if "envforge.inputs-digest" not in row["Labels"]}

    before = dangling()
    yield engine
    for image in dangling() - before:
        engine.remove(image)


def test_steps_and_result_of_the_classic_builder(classic: DockerEngine) -> None:
    digest = "sha256:" + uuid.uuid4().hex * 2
    said: list[str] = []
    built = classic.build(
        records.rendered(digest, lines=f"RUN echo {digest}\n"),
        records.resolution(),
        records.lock(digest),
        BuildOptions(progress=said.append),
    )
    try:
        assert [step.name.split("]")[0] for step in built.steps] == [f"[{n}/5" for n in range(1, 6)]
        assert any("RUN echo" in line for line in said)
        assert digest in built.log.read_text(encoding="utf-8")
        assert classic.inspect(built.image).labels["envforge.inputs-digest"] == digest
        # The builder's own containers of this build are gone; other builds on this engine are not ours to count.
        left = [row for row in classic._api.containers(all=True) if digest in str(row["Command"])]
        assert left == []
    finally:
        classic.remove(built.image)


def test_a_failed_step_of_the_classic_builder(classic: DockerEngine) -> None:
    digest = "sha256:" + uuid.uuid4().hex * 2
    with pytest.raises(BuildError) as caught:
        classic.build(
            records.rendered(digest, lines="RUN echo seen; exit 9\n"),
            records.resolution(),
            records.lock(digest),
            BuildOptions(progress=lambda line: None),
        )
    assert "RUN echo seen" in caught.value.message and "9" in caught.value.message
    assert "seen" in caught.value.context
    assert classic.find(digest) is None


def test_inspect_and_clean_see_what_was_built(engine: DockerEngine, capsys: pytest.CaptureFixture[str]) -> None:
    digest = "sha256:" + uuid.uuid4().hex * 2
    name = f"contract-{uuid.uuid4().hex[:8]}"
    rendered = records.rendered(digest)
    rendered = replace(
        rendered, dockerfile=rendered.dockerfile.replace('envforge.name="contract"', f'envforge.name="{name}"')
    )
    built = engine.build(rendered, records.resolution(), records.lock(digest), BuildOptions(progress=lambda line: None))
    engine.tag(built.image, f"envforge/{name}", digest[7:19])
    assert cli.main(["inspect", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["image"], document["name"], document["inputs_digest"]) == (built.image, name, digest)
    assert document["status"] is None, "no record was written, so nothing is claimed"
    assert cli.main(["clean", "images", "--name", name, "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["kind"] == "images" and engine.has(built.image)
    assert cli.main(["clean", "images", "--name", name, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] is True
    assert not engine.has(built.image)
    assert cli.main(["inspect", name, "--json"]) == 6
    assert json.loads(capsys.readouterr().out)["error"]["reference"] == "image-not-found"


def test_base_list(engine: DockerEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["base", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert records.BASE in [row["reference"] for row in document["made"]]
