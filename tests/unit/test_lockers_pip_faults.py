"""The pip locker when an index misbehaves or wants credentials; and what the lock is worth at install time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envforge import process
from envforge.errors import LockError, NetworkError
from envforge.lock import dumps
from envforge.lockers import pip
from tests import lock_fixtures
from tests.fixtures_index import Index
from tests.lock_fixtures import TORCH, bound, lock, refused
from tests.lock_samples import quiet_console, resolution, sample_lock
from tests.wheels import sdist, wheel

public, pytorch, clean_uv = lock_fixtures.public, lock_fixtures.pytorch, lock_fixtures.clean_uv
pytestmark = pytest.mark.usefixtures("clean_uv")


# -- what the index does --------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["default", "pytorch-cu118"])
def test_a_broken_index_is_named(public: Index, pytorch: Index, broken: str) -> None:
    (public if broken == "default" else pytorch).status = 500
    error = refused(NetworkError, public, "filelock", TORCH, **bound(pytorch))
    assert error.exit_code == 11
    assert error.reference == "index-error"
    assert "HTTP 500" in error.message
    assert ("pytorch-cu118" if broken != "default" else "default package index") in error.message


def test_an_index_that_stalls_and_one_that_is_gone(public: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
    public.stall = 20
    assert refused(NetworkError, public, "filelock").reference == "index-timeout"
    gone = resolution("filelock")
    with pytest.raises(NetworkError) as caught:
        pip.lock(gone, index_url="http://127.0.0.1:9/simple", console=quiet_console())
    assert caught.value.reference == "index-unreachable"


def test_conflicts_say_who_needs_what(public: Index) -> None:
    public.add(wheel("a", "1", requires=["c>2"]), wheel("b", "1", requires=["c<2"]), wheel("c", "1"), wheel("c", "3"))
    error = refused(LockError, public, "a", "b")
    assert error.reference == "lock-impossible"
    told = " ".join(error.context)
    assert "b depends on c<2" in told
    assert "a depends on c>2" in told
    assert "the spec asks for a and b" in told
    assert pip.PROJECT not in told


def test_names_and_versions_that_do_not_exist(public: Index) -> None:
    assert refused(LockError, public, "nothere").reference == "lock-not-found"
    error = refused(LockError, public, "filelock==77")
    assert error.reference == "lock-no-version"
    assert "filelock==77 is not on the default package index" in error.message


def test_html_indexes_work_too(public: Index) -> None:
    public.html_only = True
    assert lock(public, "filelock")["filelock"].version == "3.0"


# -- credentials ----------------------------------------------------------------------------------------


def test_credentials_reach_the_index_and_nothing_else(
    public: Index, pytorch: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytorch.credentials = ("reader", "s3cret-word")
    error = refused(NetworkError, public, TORCH, **bound(pytorch))
    assert error.reference == "index-credentials"
    assert "UV_INDEX_PYTORCH_CU118_PASSWORD" in error.hint
    monkeypatch.setenv("UV_INDEX_PYTORCH_CU118_USERNAME", "reader")
    monkeypatch.setenv("UV_INDEX_PYTORCH_CU118_PASSWORD", "s3cret-word")
    seen: list[str] = []
    real = process.run

    def spy(argv: Any, **options: Any) -> process.Outcome:
        outcome = real(argv, **options)
        seen.extend([*map(str, argv), *outcome.argv, outcome.stdout, outcome.stderr])
        return outcome

    monkeypatch.setattr(process, "run", spy)
    console = quiet_console()
    found = lock(public, TORCH, console=console, **bound(pytorch))
    assert found["torch"].index == "pytorch-cu118"
    written = b"".join(dumps(sample_lock(resolution(TORCH, **bound(pytorch)), *found.values())).values())
    told = console.stderr.getvalue()  # type: ignore[attr-defined]
    assert seen
    assert "s3cret-word" not in " ".join([*seen, written.decode(), told])
    monkeypatch.setenv("UV_INDEX_PYTORCH_CU118_PASSWORD", "wrong-word")
    error = refused(NetworkError, public, TORCH, **bound(pytorch))
    assert error.reference == "index-credentials"
    assert "wrong-word" not in str(error.document())


def test_credentials_of_the_default_index_stay_in_the_environment(public: Index) -> None:
    public.credentials = ("reader", "s3cret-word")
    address = public.url.replace("http://", "http://reader:s3cret-word@")
    found = pip.lock(resolution("filelock"), index_url=address, console=quiet_console())
    assert "s3cret-word" not in repr(found)
    _, secrets = pip.environment(address, source={})
    assert "s3cret-word" in secrets


def test_netrc(public: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public.credentials = ("reader", "s3cret-word")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login reader password s3cret-word\n")
    netrc.chmod(0o600)
    assert refused(NetworkError, public, "filelock").reference == "index-credentials"
    monkeypatch.setenv("NETRC", str(netrc))
    assert set(lock(public, "filelock")) == {"filelock"}


def test_credentials_in_a_spec_are_refused(public: Index) -> None:
    error = refused(LockError, public, "filelock", indexes={"lab": "https://me:word@lab.example/simple"})
    assert error.reference == "index-credentials-in-spec"
    assert "me:word" not in str(error.document())


# -- the lock installs, and a changed file does not -------------------------------------------------------


def install(index: Index, files: dict[str, bytes], folder: Path) -> subprocess.CompletedProcess[str]:
    import uv

    (folder / "pip.txt").write_bytes(files["pip.default.txt"])
    words = ["pip", "install", "--no-config", "--no-deps", "--require-hashes", "--target", str(folder / "site")]
    env, _ = pip.environment(index.url)
    return subprocess.run(
        [uv.find_uv_bin(), *words, "--python", sys.executable, "-r", str(folder / "pip.txt")],
        capture_output=True,
        text=True,
        env={**env, "UV_CACHE_DIR": str(folder / "cache")},
    )


def test_the_lock_installs_with_hash_checking_and_a_tampered_file_is_refused(tmp_path: Path) -> None:
    dists = [wheel("a", "1.0", requires=["b"]), wheel("b", "1.0+cu118"), sdist("c", "1.0")]
    with Index(dists) as index:
        made_for = resolution("a", "c")
        made = pip.lock(made_for, index_url=index.url, console=quiet_console())
        files = dumps(sample_lock(made_for, *made))
        good, bad = tmp_path / "good", tmp_path / "bad"
        good.mkdir()
        bad.mkdir()
        done = install(index, files, good)
        assert done.returncode == 0, done.stderr
        assert sorted(path.name for path in (good / "site").glob("*.dist-info")) == [
            "a-1.0.dist-info",
            "b-1.0+cu118.dist-info",
            "c-1.0.dist-info",
        ]
        index.tampered.add("b-1.0+cu118-py3-none-any.whl")
        refused_ = install(index, files, bad)
        assert refused_.returncode != 0
        assert "hash" in refused_.stderr.lower()
        assert not (bad / "site" / "b").exists()
