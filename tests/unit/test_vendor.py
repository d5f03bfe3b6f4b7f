"""A bundle holds every locked file, refuses a wrong one, resumes, and is enough to install from."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import vendor
from envforge.console import Console
from envforge.errors import LockError, NetworkError
from envforge.lock import Lock, LockedBase, LockedPackage
from envforge.lockers import conda, conda_install
from envforge.lockers import pip as pip_locker
from envforge.pylock import PylockFile
from tests import conda_channel as channel
from tests import tiny_wheels
from tests.resolutions import resolution

QUIET = Console(stderr=io.StringIO(), stdout=io.StringIO())


class Made:
    """Served files and a lock over them."""

    def __init__(self, root: Path, base: str) -> None:
        self.root, self.base = root, base
        self.wheel = tiny_wheels.wheel(root / "files", "good", "1.0", {"good.py": b"x = 1\n"})
        self.resolution = resolution(conda=("tidy",))
        self.conda = conda.lock(self.resolution, channels_base=base)
        self.lock = Lock(
            name="case",
            resolution_digest="",
            inputs_digest="sha256:" + "1" * 64,
            python="3.11",
            platform="linux/amd64",
            base=LockedBase(image="debian:bookworm", digest=None, reason=""),
            pip=(LockedPackage(name="good", version="1.0", index="default", hashes=(tiny_wheels.sha256(self.wheel),)),),
            conda=self.conda,
        )

    def wanted(self, monkeypatch: pytest.MonkeyPatch) -> tuple[vendor.Wanted, ...]:
        digest = tiny_wheels.sha256(self.wheel)
        file = PylockFile(
            name=self.wheel.name,
            url=f"{self.base}/files/{self.wheel.name}",
            hashes={"sha256": digest.removeprefix("sha256:")},
        )
        monkeypatch.setattr(pip_locker, "locate", lambda *words, **more: {digest: file})
        monkeypatch.setattr(vendor, "_rattler", lambda *words: ())
        return vendor.plan(self.lock, self.resolution, console=QUIET, conda_base=self.base)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    root = tmp_path / "served"
    channel.write(root, "main", channel.plain_python())
    with channel.served(root) as base:
        yield Made(root, base)


def test_every_file_lands_and_a_second_run_fetches_nothing(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = made.wanted(monkeypatch)
    folder = tmp_path / "bundle"
    first = vendor.fill(made.lock, wanted, folder, fetch=vendor.fetcher(), console=QUIET)
    assert first.fetched == 3 and first.size_bytes > 0
    assert {one.path for one in first.files} == {
        "good-1.0-py3-none-any.whl",
        "conda/linux-64/python-3.11.9-h4_0.tar.bz2",
        "conda/noarch/tidy-1.0-pyh6_0.tar.bz2",
    }
    assert vendor.fill(made.lock, wanted, folder, fetch=vendor.fetcher(), console=QUIET).fetched == 0
    vendor.check(folder, made.lock)
    document = json.loads((folder / "manifest.json").read_text())
    assert document["inputs_digest"] == made.lock.inputs_digest and made.base not in json.dumps(document)


def test_the_bundle_alone_installs_both_parts(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = made.wanted(monkeypatch)
    folder = tmp_path / "bundle"
    vendor.fill(made.lock, wanted, folder, fetch=vendor.fetcher(), console=QUIET)
    shutil.rmtree(made.root)  # nothing is left to fetch from
    lines = [f"{conda.package_url(one)}#sha256:{one.sha256}" for one in made.conda]
    text = "\n".join(["@EXPLICIT", *lines]) + "\n"
    conda_install.install(text, tmp_path / "env", folder=str(folder), cache=tmp_path / "cache")
    assert (tmp_path / "env/lib/python3.11/site-packages/tidy/__init__.py").is_file()
    python = tiny_wheels.prefix(tmp_path / "venv", [folder / "good-1.0-py3-none-any.whl"])
    assert python.exists()


def test_a_replaced_file_is_refused_and_does_not_stay(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = made.wanted(monkeypatch)
    made.wheel.write_bytes(b"another file")
    folder = tmp_path / "bundle"
    with pytest.raises(LockError) as caught:
        vendor.fill(made.lock, wanted, folder, fetch=vendor.fetcher(), console=QUIET)
    assert caught.value.reference == "hash-mismatch"
    assert "good-1.0" in caught.value.message
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert "good-1.0-py3-none-any.whl" not in left and not any(name.endswith(".part") for name in left)
    assert vendor.MANIFEST not in left
    with pytest.raises(LockError, match="not a complete bundle"):
        vendor.check(folder, made.lock)


def test_a_withdrawn_file_is_named(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_locker, "locate", lambda *words, **more: {})
    monkeypatch.setattr(vendor, "_rattler", lambda *words: ())
    with pytest.raises(LockError) as caught:
        vendor.plan(made.lock, made.resolution, console=QUIET, conda_base=made.base)
    assert caught.value.reference == "file-withdrawn"
    assert caught.value.context == ("good 1.0: no file of the lock is on its index any more",)


def test_a_missing_file_on_the_channel_is_a_network_error_without_credentials(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = next(one for one in made.wanted(monkeypatch) if one.package == "tidy")
    url = one.url.replace("http://", "http://me:hush@").replace("tidy", "gone")
    with pytest.raises(NetworkError) as caught:
        vendor.fill(made.lock, [replace(one, url=url)], tmp_path / "b", fetch=vendor.fetcher(), console=QUIET)
    assert "hush" not in str(caught.value.document())
    assert "gone" in caught.value.message


@pytest.mark.parametrize("damage", ["change", "remove", "other lock", "outside"])
def test_a_bundle_that_does_not_fit_is_refused(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = tmp_path / "bundle"
    vendor.fill(made.lock, made.wanted(monkeypatch), folder, fetch=vendor.fetcher(), console=QUIET)
    lock = made.lock
    if damage == "change":
        (folder / "good-1.0-py3-none-any.whl").write_bytes(b"x")
    elif damage == "remove":
        (folder / "conda/noarch/tidy-1.0-pyh6_0.tar.bz2").unlink()
    elif damage == "other lock":
        lock = replace(lock, pip=(replace(lock.pip[0], name="else", hashes=("sha256:" + "2" * 64,)),))
    else:
        (tmp_path / "secret").write_text("x")
        document = json.loads((folder / "manifest.json").read_text())
        document["files"][0]["path"] = "../secret"
        (folder / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(LockError) as caught:
        vendor.check(folder, lock)
    assert caught.value.reference == "bundle-incomplete"
    said = {"change": "changed since", "remove": "missing", "other lock": "else 1.0: not in", "outside": "../secret"}
    assert any(said[damage] in line for line in caught.value.context)
