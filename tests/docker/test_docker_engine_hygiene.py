"""Nothing of the building host stays in an image, and nothing of an interrupted or failed build stays in the engine."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envforge import base
from envforge.config import Config
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions
from envforge.errors import BuildError, EngineError
from tests import records

pytestmark = pytest.mark.docker

CERTIFICATE = (
    "-----BEGIN CERTIFICATE-----\n"
    + "bm90IGEgcmVhbCBjZXJ0aWZpY2F0ZQ=="
    + uuid.uuid4().hex
    + "\n-----END CERTIFICATE-----\n"
)
PASSWORD = "pw" + uuid.uuid4().hex
PROXY = f"http://proxyuser:{uuid.uuid4().hex}@127.0.0.1:9"

# Uses what the host adds, as a rendered Dockerfile does.
BUILDKIT = (
    "RUN --mount=type=bind,source=build,target=/run/envforge/host "
    'grep -c CERTIFICATE /run/envforge/host/ca.pem && test -s /run/envforge/host/index-url && test -n "$HTTP_PROXY"\n'
)
PLAIN_STAGE = "COPY build/ /run/envforge/host/\nRUN test -s /run/envforge/host/ca.pem && touch /made\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    found = DockerEngine.connect(config=Config())
    base.bootstrap(found, "3.11", note=lambda text: None)
    yield found
    found.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path / "home"))
    return tmp_path


def _digest() -> str:
    return "sha256:" + uuid.uuid4().hex * 2


def _build(engine: DockerEngine, lines: str, digest: str | None = None, **options: Any) -> Any:
    digest = digest or _digest()
    quiet = BuildOptions(progress=lambda line: None, **options)
    return engine.build(records.rendered(digest, lines=lines), records.resolution(), records.lock(digest), quiet)


def _everything_in(engine: DockerEngine, image: str) -> Iterator[tuple[str, bytes]]:
    """(place, bytes) of every file of every layer, the config and the manifest, plus the history as Docker shows it."""
    archive = io.BytesIO(b"".join(engine.export(image)))
    with tarfile.open(fileobj=archive) as outer:
        for member in outer:
            stream = outer.extractfile(member)
            if stream is None:
                continue
            content = stream.read()
            if member.name.endswith("layer.tar") or content[257:262] == b"ustar":
                yield f"{member.name} (headers)", content
            else:
                yield member.name, content
    yield "history", json.dumps(engine._api.history(image)).encode()
    yield "inspect", json.dumps(engine._api.inspect_image(image)).encode()


def _finds(engine: DockerEngine, image: str, needle: str) -> list[str]:
    return [place for place, content in _everything_in(engine, image) if needle.encode() in content]


def _host_options(folder: Path) -> dict[str, Any]:
    bundle = folder / "ca.pem"
    bundle.write_text(CERTIFICATE, encoding="utf-8")
    return {
        "ca_bundle": bundle,
        "index_url": f"https://user:{PASSWORD}@index.example/simple",
        "environment": {"HTTP_PROXY": PROXY, "http_proxy": PROXY},
    }


def test_no_host_setting_is_left_in_any_layer(engine: DockerEngine, home: Path) -> None:
    built = _build(engine, BUILDKIT, **_host_options(home))
    try:
        for needle in (CERTIFICATE.splitlines()[1], PASSWORD, "index.example", PROXY, "proxyuser"):
            assert _finds(engine, built.image, needle) == [], needle
        log = built.log.read_text(encoding="utf-8")
        assert PASSWORD not in log and PROXY.split(":")[2].split("@")[0] not in log
    finally:
        engine.remove(built.image)


def test_no_host_setting_is_left_by_a_thrown_away_stage(engine: DockerEngine, home: Path) -> None:
    """The plain form of a Dockerfile: the settings are copied into a stage of their own."""
    digest = _digest()
    text = f"FROM {records.BASE} AS packages\n{PLAIN_STAGE}" + records.rendered(digest).dockerfile.replace(
        "ENV PATH", "COPY --from=packages /made /made\nENV PATH"
    )
    rendered = records.Rendered(dockerfile=text)
    options = BuildOptions(progress=lambda line: None, **_host_options(home))
    built = engine.build(rendered, records.resolution(), records.lock(digest), options)
    try:
        assert _finds(engine, built.image, CERTIFICATE.splitlines()[1]) == []
        assert _finds(engine, built.image, PASSWORD) == []
    finally:
        engine.remove(built.image)


def test_the_search_finds_what_is_there(engine: DockerEngine, home: Path) -> None:
    """Control: the same search does see a bundle that a careless Dockerfile copies, and a careless ARG."""
    careless = f"COPY build/ca.pem /etc/ca.pem\nARG URL=https://user:{PASSWORD}@index.example\nRUN true $URL\n"
    built = _build(engine, careless, **_host_options(home))
    try:
        assert _finds(engine, built.image, CERTIFICATE.splitlines()[1])
        assert "history" in _finds(engine, built.image, PASSWORD)
    finally:
        engine.remove(built.image)


def test_a_failed_step_is_named_with_its_output(engine: DockerEngine, home: Path) -> None:
    lines = "RUN for i in $(seq 1 60); do echo line $i; done; echo broken >&2; exit 7\n"
    with pytest.raises(BuildError) as caught:
        _build(engine, lines)
    error = caught.value
    assert error.reference == "build-step-failed" and error.exit_code == 7
    assert "[3/3] RUN for i in" in error.message and "exit code: 7" in error.message
    *tail, log = error.context
    assert len(tail) == 40 and tail[-1] == "broken" and tail[0] == "line 22"
    assert "line 1\n" in Path(log.removeprefix("full log: ")).read_text(encoding="utf-8")
    assert "envforge build contract" in error.hint


@pytest.mark.parametrize(
    ("said", "reference", "kind"),
    [
        ("error: Failed to write: No space left on device (os error 28)", "disk-full", EngineError),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "hash-mismatch", BuildError),
        ("error: HTTP status server error (503 Service Unavailable) for url (x)", "index-error", BuildError),
        ("E: The repository is not signed. NO_PUBKEY A4B469963BF863CC", "apt-key-rotation", BuildError),
    ],
)
def test_the_cause_is_read_from_the_output(
    engine: DockerEngine, home: Path, said: str, reference: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        _build(engine, f"RUN echo '{said}' >&2; exit 1\n")
    assert getattr(caught.value, "reference") == reference  # noqa: B009 - two error classes


def test_a_time_limit_stops_the_build(engine: DockerEngine, home: Path) -> None:
    started = time.monotonic()
    with pytest.raises(BuildError) as caught:
        _build(engine, f"RUN sleep 300 # {uuid.uuid4().hex}\n", timeout=3)
    assert caught.value.reference == "build-timeout"
    assert time.monotonic() - started < 60


_SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, RunRequest
from tests import records
engine = DockerEngine.connect()
digest = {digest!r}
if {mode!r} == "build":
    engine.build(records.rendered(digest, lines={lines!r}), records.resolution(), records.lock(digest),
                 BuildOptions(progress=lambda line: print(line, flush=True)))
else:
    engine.run({image!r}, RunRequest(argv=("python", "-c", "import time; print('begun', flush=True); time.sleep(300)"),
               on_line=lambda line: print(line, flush=True)))
"""


def _interrupted(home: Path, **values: str) -> int:
    """Start the script, send Ctrl-C once it says it has begun, return its exit code."""
    root = str(Path(__file__).resolve().parents[2])
    defaults = {"root": root, "digest": _digest(), "lines": "", "image": "", "mode": "build"}
    text = textwrap.dedent(_SCRIPT).format(**(defaults | values))
    environment = {**os.environ, "ENVFORGE_HOME": str(home / "home"), "PYTHONPATH": root}
    child = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert child.stdout is not None
    marker = b"begun" if values["mode"] == "run" else b"RUN sleep"
    for line in child.stdout:
        if marker in line:
            break
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    return child.returncode


def _sleeping(mark: str) -> bool:
    """Whether a process whose command line holds the mark runs (the engine is on this machine)."""
    return any(
        mark.encode() in path.read_bytes()
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.parent.name != str(os.getpid()) and path.exists()
    )


def test_ctrl_c_in_a_build_leaves_nothing(engine: DockerEngine, home: Path) -> None:
    before = set(engine.stray_containers())
    digest, mark = _digest(), uuid.uuid4().hex
    code = _interrupted(home, mode="build", digest=digest, lines=f"RUN sleep 300; echo {mark}\n")
    assert code != 0
    deadline = time.monotonic() + 20
    while _sleeping(mark) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not _sleeping(mark), "the step still runs in the engine"
    assert [info for info in engine.images() if info.labels["envforge.inputs-digest"] == digest] == []
    assert set(engine.stray_containers()) <= before


def test_ctrl_c_in_a_run_leaves_nothing(engine: DockerEngine, home: Path) -> None:
    built = _build(engine, "")
    try:
        volumes = {row["Name"] for row in engine._api.volumes()["Volumes"] or ()}
        before = set(engine.stray_containers())
        assert _interrupted(home, mode="run", image=built.image) != 0
        assert set(engine.stray_containers()) <= before
        assert {row["Name"] for row in engine._api.volumes()["Volumes"] or ()} <= volumes
    finally:
        engine.remove(built.image)


def test_two_builds_at_once(engine: DockerEngine, home: Path) -> None:
    results: list[Any] = []

    def work(number: int) -> None:
        results.append(_build(engine, f"RUN sleep 1; echo {number}{uuid.uuid4().hex}\n"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    try:
        assert len({built.image for built in results}) == 2
        assert len({built.log for built in results}) == 2
    finally:
        for built in results:
            engine.remove(built.image)
