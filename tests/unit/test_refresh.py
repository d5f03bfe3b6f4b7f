"""`refresh`: a candidate beside the lock, what moved in words, and taking it over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envforge import lock as lockfile
from envforge import refresh
from envforge.errors import LockError
from envforge.lock import Lock, LockedPackage
from tests import lock_samples


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def package(name: str, version: str) -> LockedPackage:
    return LockedPackage(name=name, version=version, hashes=("sha256:" + "0" * 64,), index="pypi")


def lock(*packages: LockedPackage) -> Lock:
    """A sealed lock of these, as its files give it back."""
    made = lock_samples.sample_lock(lock_samples.resolution("six"), *packages)
    return lockfile.with_current_templates(lockfile.loads(lockfile.dumps(made)))


def before_lock() -> Lock:
    return lock(package("six", "1.16.0"))


def newer() -> Lock:
    return lock(package("six", "99.1"))


def result(status: str = "passed", size: int = 200, seconds: float = 1.0) -> dict[str, Any]:
    checks = [{"name": "visibility.import", "outcome": "passed", "seconds": seconds}]
    return {"status": status, "reason": "" if status == "passed" else "why", "size_bytes": size, "checks": checks}


def test_what_moved_is_told_in_words() -> None:
    old = before_lock()
    before = result(size=1_000_000) | {"checks": [*result()["checks"], {"name": "gone.check", "outcome": "passed"}]}
    found = refresh.moved(old, newer(), before, result(size=3_000_000, seconds=4.0))
    lines = "\n".join(refresh.text(found))
    name = "six"
    assert f"{name}: {old.pip[0].version} -> 99.1" in lines
    assert "size 1.0 MB -> 3.0 MB (+2.0 MB)" in lines
    assert "check gone.check: passed -> gone" in lines
    assert "time visibility.import: 1.00 s -> 4.00 s" in lines


def test_nothing_moved_is_said_and_small_times_are_noise() -> None:
    old = before_lock()
    found = refresh.moved(old, old, result(), result(seconds=1.05))
    assert not found["moved"]
    assert found["times"] == []
    assert refresh.text(found)[-1].strip() == "nothing moved"


def test_cuda_libraries_stand_apart() -> None:
    old = before_lock()
    found = refresh.moved(old, lock(*old.pip, package("nvidia-cublas-cu12", "12.4.5.8")), None, result())
    assert [row["name"] for row in found["cuda_libraries"]] == ["nvidia-cublas-cu12"]
    assert found["packages"] == []


class Candidate:
    """Makes a candidate and proves it as told."""

    def __init__(self, lock: Lock, status: str = "passed") -> None:
        self.lock, self.status = lock, status
        self.proved: list[Mapping[str, bytes]] = []

    def make(self, root: Path) -> Lock:
        lockfile.write(self.lock.name, self.lock, root=root)
        return lockfile.read_folder(lockfile.folder(self.lock.name, root))

    def prove(self, files: Mapping[str, bytes]) -> dict[str, Any]:
        self.proved.append(files)
        return result(self.status)

    def run(self, folder: Path) -> dict[str, Any]:
        return refresh.candidate(self.lock.name, folder, make=self.make, prove=self.prove)


def test_the_projects_lock_is_untouched_until_accepted(tmp_path: Path) -> None:
    old = before_lock()
    place = lockfile.write(old.name, old)
    kept = {path.name: path.read_bytes() for path in place.iterdir()}
    one = Candidate(newer())
    found = one.run(tmp_path / "new")
    assert found["moved"]
    assert one.proved and one.proved[0] != kept  # the candidate was built, not the old lock
    assert {path.name: path.read_bytes() for path in place.iterdir()} == kept
    refresh.accept(old.name, tmp_path / "new")
    accepted = lockfile.read(old.name)
    assert accepted is not None and accepted.pip[0].version == "99.1"


def test_a_candidate_that_failed_cannot_be_accepted(tmp_path: Path) -> None:
    old = before_lock()
    place = lockfile.write(old.name, old)
    kept = {path.name: path.read_bytes() for path in place.iterdir()}
    Candidate(newer(), "failed").run(tmp_path / "new")
    with pytest.raises(LockError) as caught:
        refresh.accept(old.name, tmp_path / "new")
    assert caught.value.reference == "refresh-failed"
    assert {path.name: path.read_bytes() for path in place.iterdir()} == kept


def test_only_what_was_shown_can_be_accepted(tmp_path: Path) -> None:
    old = before_lock()
    lockfile.write(old.name, old)
    one = Candidate(newer())
    one.run(tmp_path / "new")
    path = refresh.outcome_path(tmp_path / "new", old.name)
    shown = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(shown | {"old_digest": "sha256:another"}), encoding="utf-8")
    with pytest.raises(LockError) as caught:
        refresh.accept(old.name, tmp_path / "new")
    assert caught.value.reference == "refresh-changed"


def test_accepting_nothing_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(LockError) as caught:
        refresh.accept("never", tmp_path)
    assert caught.value.reference == "refresh-missing"
    assert caught.value.hint == "envforge refresh never"


def test_a_candidate_that_cannot_be_made_leaves_no_old_verdict(tmp_path: Path) -> None:
    old = before_lock()
    lockfile.write(old.name, old)
    one = Candidate(newer())
    one.run(tmp_path / "new")

    def broken(root: Path) -> Lock:
        raise LockError("lock-conflict", "no versions fit")

    with pytest.raises(LockError, match="no versions fit"):
        refresh.candidate(old.name, tmp_path / "new", make=broken, prove=one.prove)
    assert not refresh.outcome_path(tmp_path / "new", old.name).exists()
