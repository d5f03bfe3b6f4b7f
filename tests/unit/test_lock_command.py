"""The lock command, and the locks that are shipped."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envforge import cli, compat, resources
from envforge import lock as lockfile
from envforge.commands import lock as command
from envforge.console import Console
from envforge.errors import NetworkError
from envforge.lock import LockedBase, LockedPackage
from envforge.resolve import resolve
from envforge.spec import load
from tests.fixtures_index import Index
from tests.lock_samples import quiet_console, resolution, sample_lock
from tests.wheels import wheel

DIGEST = "sha256:" + "d" * 64
SHIPPED = sorted(path.parent.name for path in resources.shipped("lockfiles").glob("*/envforge.lock.yaml"))


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An own project folder, uv cache and installer hashes; no registry answers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.delenv("UV_INDEX_URL", raising=False)
    monkeypatch.setattr(command, "_asked_digest", lambda image, console: (None, "not asked"))


def make(index: Index, monkeypatch: pytest.MonkeyPatch, *requirements: str, **options: Any) -> lockfile.Lock:
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    return command.make_lock(resolution(*requirements), console=options.pop("console", quiet_console()), **options)


def envforge(*words: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    console = Console(json_mode=True, stdout=out, stderr=io.StringIO())
    parser = cli.build_parser("lock")
    args = parser.parse_args(list(words))
    return command.run(args, console), json.loads(out.getvalue())


def test_a_lock_is_written_whole_and_a_failed_one_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Index([wheel("a", "1.0")]) as index:
        console = quiet_console()
        made = make(index, monkeypatch, "a", console=console)
        assert lockfile.read("sample") == made
        assert lockfile.status(made, resolution("a")).verdict == "ok"
        # This index has no uv: said, and the version is still recorded.
        assert made.tool_packages == ()
        assert set(made.tools) == {"uv"}
        assert "installer is pinned by version only" in console.stderr.getvalue()  # type: ignore[attr-defined]
        before = {path.name: path.read_bytes() for path in Path("lockfiles/sample").iterdir()}
        index.status = 500
        with pytest.raises(NetworkError):
            make(index, monkeypatch, "a>=1", upgrade=["a"])
        assert {path.name: path.read_bytes() for path in Path("lockfiles/sample").iterdir()} == before
        assert [path.name for path in Path("lockfiles").iterdir()] == ["sample"]
        assert index.url not in "".join(content.decode() for content in before.values())


def test_ctrl_c_in_mid_lock_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, scratch = tmp_path / "project", tmp_path / "scratch"
    place.mkdir()
    scratch.mkdir()
    (place / "mine.yaml").write_text(
        (resources.catalog() / "jax-cpu.yaml").read_text(encoding="utf-8").replace("jax-cpu", "mine"), encoding="utf-8"
    )
    config = place / "config.yaml"
    config.write_text("schema: 1\nregistries: {docker.io: '127.0.0.1:9'}\n", encoding="utf-8")
    with Index([wheel("jax", "0.10.2")]) as index:
        index.stall = 60
        env = {**os.environ, "UV_DEFAULT_INDEX": index.url, "TMPDIR": str(scratch), "ENVFORGE_CONFIG": str(config)}
        words = [sys.executable, "-m", "envforge", "lock", "mine.yaml"]
        root = str(Path(command.__file__).parents[2])
        child = subprocess.Popen(words, cwd=place, env={**env, "PYTHONPATH": root}, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while not index.requests and time.monotonic() < deadline:
            time.sleep(0.05)
        assert index.requests, "the index was never asked"
        started = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=30)
    assert child.returncode == 130, told
    assert time.monotonic() - started < 10
    assert sorted(path.name for path in place.iterdir()) == ["config.yaml", "mine.yaml"]
    assert not list(scratch.glob("envforge-*"))


def test_locking_again_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Index([wheel("a", "1.0", requires=["b"]), wheel("b", "1.0")]) as index:
        first = lockfile.dumps(make(index, monkeypatch, "a"))
        assert lockfile.dumps(make(index, monkeypatch, "a")) == first
        assert lockfile.dumps(make(index, monkeypatch, "a", keep=False)) == first


def test_the_installer_is_locked_by_hash_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    from envforge.lockers.pip import uv_version

    tag = "py3-none-manylinux_2_17_x86_64"
    with Index([wheel("a", "1.0"), wheel("uv", uv_version(), tag=tag)]) as index:
        made = make(index, monkeypatch, "a")
        assert [package.name for package in made.tool_packages] == ["uv"]
        assert b"uv==" in lockfile.dumps(made)["tools.txt"]
        index.requests.clear()
        assert make(index, monkeypatch, "a").tool_packages == made.tool_packages
        assert not [path for path in index.requests if "/uv" in path]


@pytest.mark.parametrize("where", ["config", "spec"])
def test_mirrors_are_used_and_never_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    lab = "https://lab.example/simple"
    with Index([wheel("a", "1.0")]) as index, Index([wheel("t", "1.0+lab")]) as other:
        mirrors = {"pip": index.url, "lab": other.url} if where == "spec" else {}
        if where == "config":
            config = f"schema: 1\ndefault_index: {index.url}\nindexes: {{lab: '{other.url}'}}\n"
            Path("envforge.config.yaml").write_text(config, encoding="utf-8")
        made_for = resolution("a", "t", indexes={"lab": lab}, index_packages={"lab": ["t"]}, mirrors=mirrors)
        made = command.make_lock(made_for, console=quiet_console())
        assert {package.name: package.index for package in made.pip} == {"a": "default", "t": "lab"}
        assert made.indexes == {"lab": lab}
        written = b"".join(path.read_bytes() for path in Path("lockfiles/sample").iterdir()).decode()
        assert "127.0.0.1" not in written


def test_a_moved_base_tag_is_reported_and_the_old_digest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sample_lock(resolution("a"), base=LockedBase(image="python:3.11-slim-bookworm", digest=DIGEST, reason="r"))
    other = "sha256:" + "e" * 64
    monkeypatch.setattr(command, "_asked_digest", lambda image, console: (other, "now"))
    console = quiet_console()
    assert command._base(resolution("a"), before, console) == before.base
    assert "now names sha256:eeee" in console.stderr.getvalue()  # type: ignore[attr-defined]
    assert command._base(resolution("a"), None, quiet_console()).digest == other


def test_moves_in_words() -> None:
    def package(name: str, version: str, index: str = "default", mark: str = "1") -> LockedPackage:
        return LockedPackage(name=name, version=version, index=index, hashes=("sha256:" + mark * 64,))

    old = [package("a", "1"), package("b", "1"), package("c", "1"), package("d", "1"), package("e", "1")]
    new = [
        package("a", "2"),
        package("c", "1", "lab"),
        package("d", "1", mark="2"),
        package("e", "1"),
        package("f", "1"),
    ]
    assert command.moves(old, new) == (
        "a 1 -> 2",
        "b 1 removed",
        "c 1: index default -> lab",
        "d 1: its files changed on the index",
        "f 1 added",
    )


# -- --check --------------------------------------------------------------------------------------------


def test_check_needs_no_network_and_exits_5_when_stale() -> None:
    code, document = envforge("jax-cpu", "--check")
    assert (code, document["status"], document["changes"]) == (0, "ok", [])
    # The same name with another requirement, written as a project's own spec.
    Path("envs").mkdir()
    text = (resources.catalog() / "jax-cpu.yaml").read_text(encoding="utf-8").replace("jax-cpu", "mine")
    Path("envs/mine.yaml").write_text(text, encoding="utf-8")
    code, document = envforge("envs/mine.yaml", "--check")
    assert (code, document["status"], document["hint"]) == (5, "missing", "envforge lock mine")
    resolved = resolve(load("envs/mine.yaml"), compat.load())
    lockfile.write("mine", sample_lock(resolved))
    assert envforge("envs/mine.yaml", "--check")[0] == 0
    Path("envs/mine.yaml").write_text(text + "env: {A: '1'}\n", encoding="utf-8")
    code, document = envforge("envs/mine.yaml", "--check")
    assert (code, document["status"], document["changes"]) == (5, "stale", ["env.A: 1 added"])


# -- what is shipped --------------------------------------------------------------------------------------


def test_at_least_thirty_locks_are_shipped_and_the_named_ones_are_there() -> None:
    assert len(SHIPPED) >= 30
    wanted = {"jax-cpu", "jax-cpu@py312", "jax-cpu@py313", "tf-cpu", "torch-cpu", "torch-cu118", "torch-cu118@py312"}
    wanted |= {"torch-cu121", "torch-cu124", "torch-cu126", "torch-cu128", "tf-cuda12", "jax-cuda12", "jax-cuda13"}
    assert wanted <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_locks_fit_their_specs(name: str) -> None:
    folder = resources.shipped("lockfiles") / name
    found = lockfile.read_folder(folder)
    state = lockfile.status(found, resolve(load(name), compat.load()))
    assert (state.verdict, state.changes) == ("ok", ()), "run tools/transcribe_locks.py and tools/lock_catalogue.py"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sum(map(len, files.values())) < 300_000
    assert {key: files[key] for key in files if lockfile.is_generated(key)} == lockfile.dumps(found)
    assert {package.index for package in found.pip} - {"default"} == set(found.indexes)
    if any("not rebuilt here" in note for note in found.notes):
        assert {"sources.md", "source.yaml"} & set(files)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_locks_hold_every_requirement_and_bound(name: str) -> None:
    """Judged by `packaging`, not by the solver: what is asked for is there, and no bound is crossed."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    from envforge.pylock import Target

    found = lockfile.read_folder(resources.shipped("lockfiles") / name)
    asked = resolve(load(name), compat.load())
    markers = Target(python=found.python, platform=found.platform).markers()
    versions = {package.name: package.version for package in found.pip}
    for wanted, needed in [*((r, True) for r in asked.requirements), *((c, False) for c in asked.constraints)]:
        requirement = Requirement(wanted.text)
        key = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate(markers):
            continue
        assert key in versions or not needed, wanted.text
        if key in versions:
            assert requirement.specifier.contains(versions[key], prereleases=True), (wanted.text, versions[key])


def test_transcribed_digests_are_the_ones_of_the_source_file() -> None:
    import yaml

    data = yaml.safe_load(Path(__file__).parents[2].joinpath("tools/transcribed_wheels.yaml").read_text())
    rows = {row["file"]: row["sha256"] for row in data["wheels"]}
    for name, python in (("torch-cu118", "cp311"), ("torch-cu118@py312", "cp312")):
        found = lockfile.read_folder(resources.shipped("lockfiles") / name)
        own = {package.name: package for package in found.pip if package.index == "pytorch-cu118"}
        assert set(own) == {"torch", "torchvision"} | ({"torchaudio"} if python == "cp312" else set())
        for package in own.values():
            file = f"{package.name}-{package.version}-{python}-{python}-manylinux_2_28_x86_64.whl"
            assert package.hashes == (f"sha256:{rows[file]}",)
        cuda = {package.name: package.version for package in found.pip if package.name.startswith("nvidia-")}
        assert cuda["nvidia-cudnn-cu11"] == "9.1.0.70"
        assert len(cuda) == 11
