"""The installer of explicit locks: what it links, what it refuses, and that a folder is enough."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envforge.lock import Lock, LockedBase, LockedConda, dumps
from envforge.lockers import conda, conda_install
from tests import conda_channel as channel
from tests.resolutions import cuda, framework, resolution


def explicit(packages: tuple[LockedConda, ...], subdirs: tuple[str, ...] = ("linux-64", "noarch")) -> str:
    """The text of the explicit files of a lock, one after the other."""
    lock = Lock(
        name="case",
        resolution_digest="",
        inputs_digest="",
        python="3.11",
        platform="linux/amd64",
        base=LockedBase(image="debian:bookworm", digest=None, reason="none"),
        pip=(),
        conda=packages,
    )
    files = dumps(lock)
    return "".join(files[f"conda.{one}.txt"].decode() for one in subdirs if f"conda.{one}.txt" in files)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("channels")
    channel.write(root, "main", channel.plain_python() + channel.cuda_family())
    with channel.served(root) as base:
        yield root, base


@pytest.fixture(scope="module")
def packages(site: tuple[Path, str]) -> tuple[LockedConda, ...]:
    wanted = resolution(cuda=cuda("12.4"), frameworks=(framework(),), conda=("tidy",))
    return conda.lock(wanted, channels_base=site[1])


def test_files_land_and_the_noarch_package_goes_to_site_packages(
    site: tuple[Path, str], packages: tuple[LockedConda, ...], tmp_path: Path
) -> None:
    count = conda_install.install(explicit(packages), tmp_path / "env", host=site[1], cache=tmp_path / "cache")
    assert count == len(packages)
    assert (tmp_path / "env/lib/python3.11/site-packages/torch/__init__.py").read_text() == "cuda = '12.4'\n"
    assert (tmp_path / "env/lib/python3.11/site-packages/tidy/__init__.py").is_file()
    assert (tmp_path / "env/lib/libcudart.so.12").readlink() == Path("libcudart.so.12.4.1")
    for path in (tmp_path / "env/conda-meta").glob("*.json"):
        text = path.read_text()
        assert site[1] not in text and str(tmp_path) not in text, f"{path.name} names this machine"
        assert json.loads(text)["url"].startswith("https://conda.anaconda.org/main/")


def test_a_changed_file_of_the_channel_is_refused(
    site: tuple[Path, str], packages: tuple[LockedConda, ...], tmp_path: Path
) -> None:
    bad = tuple(
        replace(one, sha256=hashlib.sha256(b"other").hexdigest()) if one.name == "numpy" else one for one in packages
    )
    with pytest.raises(Exception, match="numpy"):
        conda_install.install(explicit(bad), tmp_path / "env", host=site[1], cache=tmp_path / "cache")


def test_a_folder_is_enough(site: tuple[Path, str], packages: tuple[LockedConda, ...], tmp_path: Path) -> None:
    for one in packages:
        folder = tmp_path / "bundle" / "conda" / one.subdir
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(site[0] / "main" / one.subdir / one.filename, folder)
    text = explicit(packages)
    conda_install.install(text, tmp_path / "env", folder=str(tmp_path / "bundle"), cache=tmp_path / "c1")
    assert (tmp_path / "env/lib/libcudart.so.12.4.1").is_file()
    (tmp_path / "bundle/conda/linux-64" / next(o.filename for o in packages if o.name == "numpy")).unlink()
    with pytest.raises(Exception, match="numpy"):
        conda_install.install(text, tmp_path / "env2", folder=str(tmp_path / "bundle"), cache=tmp_path / "c2")


def test_the_command_line_of_the_builder_stage(
    site: tuple[Path, str], packages: tuple[LockedConda, ...], tmp_path: Path
) -> None:
    from envforge import process

    (tmp_path / "lock.txt").write_text(explicit(packages))
    words = [sys.executable, conda_install.__file__, tmp_path / "lock.txt", tmp_path / "env", "--folder", ""]
    words += ["--host", site[1], "--cache", tmp_path / "cache", "--platform", "linux-64"]
    done = process.run(words)
    assert done.ok and "conda packages in" in done.stdout, done.tail()
    words[3], words[-5] = tmp_path / "other", "http://u:hush@127.0.0.1:9"
    words[-3] = tmp_path / "cache2"
    failed = process.run(words)
    assert failed.code == 1 and "conda packages:" in failed.stderr and "hush" not in failed.stderr


def test_lines_without_a_sha256_are_refused() -> None:
    with pytest.raises(ValueError, match="line 2"):
        conda_install.parse("@EXPLICIT\nhttps://conda.anaconda.org/main/noarch/a-1-0.conda\n")
    with pytest.raises(ValueError, match="line 1"):
        conda_install.parse("https://conda.anaconda.org/main/noarch/a-1-0.conda#sha256:" + "0" * 64)
