"""A second, private engine on a small disk: killed in mid-build, its disk filled. The machine's own is not touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envforge import base, docker_engine
from envforge.config import Config
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, RunRequest
from envforge.errors import EngineError
from tests import records

pytestmark = pytest.mark.docker

_SIZE_MB = 700


class PrivateEngine:
    """dockerd on a tmpfs and in a network namespace of its own.

    Without the namespace ``--bridge=none`` would delete the ``docker0`` of the engine that everybody else uses.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        program = shutil.which("dockerd")
        if program is None or os.geteuid() != 0:
            pytest.skip("starting a second engine needs dockerd and root")
        (folder / "data").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MB}m", "tmpfs", str(folder / "data")], check=True)
        self.log = (folder / "dockerd.log").open("wb")
        words = [
            "unshare",
            "--net",
            program,
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            f"--pidfile={folder}/pid",
        ]
        words += ["--bridge=none", "--iptables=false", "--ip6tables=false", "-H", self.address]
        self.child = subprocess.Popen(words, stdout=self.log, stderr=self.log)

    def connect(self) -> DockerEngine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", self.address)
            deadline = time.monotonic() + 60
            while True:
                try:
                    return DockerEngine.connect(config=Config())
                except EngineError:
                    if time.monotonic() > deadline or self.child.poll() is not None:
                        pytest.fail((self.folder / "dockerd.log").read_text("utf-8", "replace")[-2000:])
                    time.sleep(0.3)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def close(self) -> None:
        self.child.terminate()
        try:
            self.child.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
        # A killed dockerd leaves its containerd and shims behind, which keep the disk busy: our folder names them.
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self.folder).encode() in entry.read_bytes():
                    os.kill(int(entry.parent.name), signal.SIGKILL)
        for line in reversed(Path("/proc/mounts").read_text(encoding="utf-8").splitlines()):
            place = line.split()[1]
            if place.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", place], check=False)
        self.log.close()


@pytest.fixture
def private() -> Iterator[PrivateEngine]:
    # A short path: a socket's may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="efd-", ignore_cleanup_errors=True) as folder:
        found = PrivateEngine(Path(folder))
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def engine(private: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerEngine:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path / "home"))
    target = private.connect()
    source = DockerEngine.connect()
    reference = base.bootstrap(source, "3.11", note=lambda text: None).reference
    with tempfile.TemporaryFile() as tar:
        for chunk in source.export(reference):
            tar.write(chunk)
        tar.seek(0)
        target._client.images.load(tar)
    source.close()
    return target


def _build(engine: DockerEngine, lines: str) -> Any:
    digest = "sha256:" + uuid.uuid4().hex * 2
    # An index on this machine makes the build share its network: this engine has no bridge.
    quiet = BuildOptions(progress=lambda line: None, index_url="http://127.0.0.1:9/simple")
    return engine.build(records.rendered(digest, lines=lines), records.resolution(), records.lock(digest), quiet)


def test_an_engine_killed_in_mid_build(
    private: PrivateEngine, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_engine, "_check_disk", lambda info, need: None)
    timer = threading.Timer(4, private.kill)
    timer.start()
    started = time.monotonic()
    with pytest.raises(EngineError) as caught:
        _build(engine, "RUN sleep 30\n")
    timer.join()
    assert caught.value.reference == "engine-lost" and caught.value.exit_code == 6
    assert time.monotonic() - started < 60
    with pytest.raises(EngineError) as after:
        engine.inspect(records.BASE)
    assert after.value.reference == "engine-lost"


def test_an_engine_killed_in_mid_run(
    private: PrivateEngine, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = threading.Timer(3, private.kill)
    timer.start()
    with pytest.raises(EngineError) as caught:
        engine.run(records.BASE, RunRequest(argv=("sleep", "30")))
    timer.join()
    assert caught.value.reference == "engine-lost"


def test_a_small_disk_is_refused_before_and_a_full_one_is_named(
    private: PrivateEngine, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError) as caught:
        _build(engine, "")
    assert caught.value.reference == "disk-full" and "0." in caught.value.message
    monkeypatch.setattr(docker_engine, "_check_disk", lambda info, need: None)
    with pytest.raises(EngineError) as caught:
        _build(engine, f"RUN dd if=/dev/zero of=/big bs=1M count={_SIZE_MB}\n")
    assert caught.value.reference == "disk-full" and caught.value.exit_code == 6
    assert any("No space left on device" in line for line in caught.value.context)
    assert "envforge clean" in caught.value.hint
    assert engine.images() == []
