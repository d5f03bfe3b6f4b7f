"""The local engine installs an explicit conda lock: online, from a bundle, and verify agrees with it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import inventory, vendor, verify
from envforge.console import Console
from envforge.engine import BuildOptions, RunRequest
from envforge.errors import BuildError
from envforge.local_engine import LocalEngine, machine_platform
from envforge.lock import Lock, LockedBase, seal
from envforge.lockers import conda
from envforge.plan import Rendered
from envforge.resolve import Resolution
from tests import conda_channel as channel
from tests.resolutions import resolution

EMPTY = Rendered(dockerfile="", files={})
QUIET = Console(stderr=io.StringIO(), stdout=io.StringIO())


class Made:
    """A served channel with a real Python, and a lock over it."""

    def __init__(self, root: Path, base: str) -> None:
        self.root, self.base = root, base
        self.resolution: Resolution = resolution(
            name="conda-local",
            python=channel.PYTHON,
            platform=machine_platform(),
            conda=("tidy",),
            channels=(base + "/main",),
        )
        subdir = conda.SUBDIRS[self.resolution.platform]
        lock = Lock(
            name="conda-local",
            resolution_digest="",
            inputs_digest="",
            python=channel.PYTHON,
            platform=self.resolution.platform,
            base=LockedBase(image="debian:bookworm", digest=None, reason="none"),
            pip=(),
            conda=conda.lock(self.resolution, subdirs=(subdir,)),
        )
        self.lock = seal(lock, self.resolution)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    root = tmp_path_factory.mktemp("local")
    subdir = conda.SUBDIRS[machine_platform()]
    python = replace(channel.real_python(), subdir=subdir)
    tidy = [
        replace(one, entry_points=("tidy-run = tidy:main",), depends=("python >=3.8", "placed"))
        for one in channel.plain_python()
        if one.name == "tidy"
    ]
    # A file that names its own prefix, as many conda packages have: it is rewritten when installed.
    old = "/opt/placehold_placehold_placehold_placehold_placehold"
    placed = channel.Package(
        "placed", "1.0", files={"etc/where": f"home={old}/share\n".encode()}, subdir=subdir, placeholder=old
    )
    channel.write(root / "served", "main", [python, placed, *tidy])
    with channel.served(root / "served") as base:
        yield Made(root, base)


def test_build_run_verify_and_tamper(made: Made, tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "prefixes")
    built = engine.build(EMPTY, made.resolution, made.lock, BuildOptions())
    program = "import sys, tidy; print(tidy.name, sys.prefix)"
    result = engine.run(built.image, RunRequest(argv=("python", "-c", program)))
    assert result.stdout.split() == ["tidy", built.image], result.stderr
    found = inventory.of_image(engine, built.image)
    assert verify.compare(made.lock, found) == ()
    prefix = Path(built.image)
    assert (prefix / "etc/where").read_text() == f"home={prefix}/share\n"
    assert (prefix / "bin/tidy-run").is_file()
    for path, owner in ((prefix / "etc/where", "placed"), (prefix / "bin/tidy-run", "tidy")):
        before = path.read_bytes()
        path.write_bytes(before + b"# changed\n")
        (one,) = verify.compare(made.lock, inventory.of_image(engine, built.image))
        assert (one.kind, one.path, one.package) == ("file-changed", str(path), f"conda:{owner}")
        path.write_bytes(before)
    path = Path(built.image) / "lib" / f"python{channel.PYTHON}" / "json/__init__.py"
    path.write_text(path.read_text() + "# changed\n")
    (one,) = verify.compare(made.lock, inventory.of_image(engine, built.image))
    assert (one.kind, one.path, one.package) == ("file-changed", str(path), "conda:python")


def test_a_bundle_is_enough(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "_rattler", lambda *words: ())
    folder = tmp_path / "bundle"
    wanted = vendor.plan(made.lock, made.resolution, console=QUIET)
    vendor.fill(made.lock, wanted, folder, fetch=vendor.fetcher(), console=QUIET)
    # A channel that cannot be reached: whatever is installed came out of the folder.
    gone = tuple(replace(one, channel="http://127.0.0.1:9/main") for one in made.lock.conda)
    lock = replace(made.lock, conda=gone)
    engine = LocalEngine(tmp_path / "prefixes")
    built = engine.build(EMPTY, made.resolution, lock, BuildOptions(offline=folder))
    assert (Path(built.image) / "lib" / f"python{channel.PYTHON}" / "site-packages/tidy/__init__.py").is_file()


def test_a_wrong_file_stops_the_build_and_leaves_nothing(made: Made, tmp_path: Path) -> None:
    bad = tuple(replace(one, sha256="0" * 64) if one.name == "tidy" else one for one in made.lock.conda)
    engine = LocalEngine(tmp_path / "prefixes")
    with pytest.raises(BuildError) as caught:
        engine.build(EMPTY, made.resolution, replace(made.lock, conda=bad), BuildOptions())
    assert caught.value.reference == "conda-install"
    assert any("tidy" in line for line in caught.value.context)
    assert list((tmp_path / "prefixes").iterdir()) == []
