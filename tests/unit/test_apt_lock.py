"""Exact Debian versions: read from apt's own simulation, dated archives, and clear words when there are none."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from envforge import apt_lock
from envforge.console import Console
from envforge.engine import Engine, RunRequest, RunResult
from envforge.errors import LockError
from envforge.spec import AptSpec
from tests.resolutions import resolution

SIMULATION = """NOTE: This is only a simulation!
Inst libsndfile1 (1.2.0-1+deb12u1 Debian:12.8/stable [amd64]) []
Inst libflac12:amd64 (1.4.2+ds-2 Debian:12.8/stable [amd64])
Inst libc6 [2.36-9+deb12u8] (2.36-9+deb12u9 Debian:12.8/stable [amd64])
Conf libsndfile1 (1.2.0-1+deb12u1 Debian:12.8/stable [amd64])
"""


@dataclass
class Answers:
    """An engine that gives one answer and remembers what it was asked."""

    code: int = 0
    stdout: str = ""
    stderr: str = ""
    asked: list[RunRequest] = field(default_factory=list)

    def run(self, image: str, request: RunRequest) -> RunResult:
        del image
        self.asked.append(request)
        return RunResult(code=self.code, stdout=self.stdout, stderr=self.stderr, seconds=0.1)


def ask(engine: Answers | None, stream: io.StringIO | None = None, **changes: Any) -> tuple[tuple[str, str], ...]:
    console = Console(stderr=stream or io.StringIO())
    found = replace(resolution(), **changes)
    return apt_lock.lock(found, ["libsndfile1"], cast(Engine, engine), "debian:bookworm", console=console)


def test_everything_that_would_be_installed_is_recorded_with_its_version() -> None:
    engine = Answers(stdout=SIMULATION)
    assert ask(engine) == (
        ("libc6", "2.36-9+deb12u9"),
        ("libflac12", "1.4.2+ds-2"),
        ("libsndfile1", "1.2.0-1+deb12u1"),
    )
    assert engine.asked[0].argv[-1] == "libsndfile1" and engine.asked[0].env["SOURCES"] == ""


def test_a_snapshot_date_becomes_dated_sources() -> None:
    engine = Answers(stdout=SIMULATION)
    ask(engine, apt_options=AptSpec(snapshot="2026-11-01"))
    lines = engine.asked[0].env["SOURCES"].splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("/archive/debian/20261101T000000Z/ bookworm main")
    assert "jammy-security" in apt_lock.sources("ubuntu:22.04", "2026-11-01")[2]


@pytest.mark.parametrize(("system", "date"), [("alpine:3.20", "2026-11-01"), ("debian:bookworm", "yesterday")])
def test_what_has_no_dated_archive_is_refused(system: str, date: str) -> None:
    with pytest.raises(LockError) as caught:
        apt_lock.sources(system, date)
    assert caught.value.reference == "apt-snapshot"


def test_a_package_that_does_not_exist_is_an_error_at_lock_time() -> None:
    with pytest.raises(LockError) as caught:
        ask(Answers(code=100, stderr="E: Unable to locate package libsndfil1\n"))
    assert caught.value.reference == "apt-unknown" and "libsndfil1" in caught.value.message


def test_without_an_engine_or_archive_versions_stay_open_and_it_is_said() -> None:
    stream = io.StringIO()
    assert ask(None, stream) == ()
    assert "no Docker engine" in stream.getvalue()
    stream = io.StringIO()
    assert ask(Answers(code=100, stderr="E: Failed to fetch\n"), stream) == ()
    assert "gives no answer" in stream.getvalue()
