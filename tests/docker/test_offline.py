"""A conda and pip environment built from a bundle alone: the channel is closed and the engine's network is none."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from envforge import config, inventory, vendor, verify
from envforge.console import Console
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, RunRequest
from envforge.errors import BuildError
from envforge.lock import Lock, LockedBase, LockedPackage, seal
from envforge.lockers import conda
from envforge.lockers.pip import Reach, lock_tools
from envforge.plan import make_plan
from envforge.render import render
from tests import conda_channel as channel
from tests.resolutions import resolution

pytestmark = [pytest.mark.docker, pytest.mark.network]
SIX = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"


def test_a_bundle_is_all_a_build_needs(tmp_path: Path, bookworm_base: str) -> None:
    quiet = Console(stderr=io.StringIO(), stdout=io.StringIO())
    tidy = [one for one in channel.plain_python() if one.name == "tidy"]
    channel.write(tmp_path / "served", "main", [channel.real_python(), *tidy])
    settings = config.load()
    reach = Reach(index_url=settings.default_index, ca_bundle=settings.ca_bundle_path())
    folder = tmp_path / "bundle"
    with channel.served(tmp_path / "served") as base:
        wanted = resolution(name="offline-case", python=channel.PYTHON, conda=("tidy",), channels=(f"{base}/main",))
        lock = Lock(
            name=wanted.name,
            resolution_digest="",
            inputs_digest="",
            python=channel.PYTHON,
            platform=wanted.platform,
            base=LockedBase(image=wanted.base.image, digest=None, reason="made here"),
            pip=(LockedPackage(name="six", version="1.16.0", index="default", hashes=(SIX,)),),
            conda=conda.lock(wanted),
            tools={"py-rattler": conda.INSTALLER_VERSION},
            tool_packages=lock_tools(wanted, reach=reach, console=quiet),
        )
        lock = seal(lock, wanted)
        files = vendor.plan(lock, wanted, reach=reach, console=quiet)
        vendor.fill(lock, files, folder, fetch=vendor.fetcher(reach.ca_bundle), console=quiet)
    # The base of this test has Python and its installer: nothing of the first stage needs Debian's archive.
    from dataclasses import replace

    here = replace(wanted, base=replace(wanted.base, python_from="image"))
    engine = DockerEngine.connect()
    plan = make_plan(here, seal(lock, here), "buildkit", base=bookworm_base)
    sealed = seal(lock, here)
    built = engine.build(render(plan), here, sealed, BuildOptions(progress=print, offline=folder, no_cache=True))
    engine.tag(built.image, plan.repository, plan.tag)
    try:
        assert verify.compare(sealed, inventory.of_image(engine, built.image)) == ()
        program = "import six, tidy; print(six.__version__, tidy.name)"
        result = engine.run(built.image, RunRequest(argv=("python", "-c", program)))
        assert result.stdout.split() == ["1.16.0", "tidy"], result.stderr
    finally:
        engine.remove(built.image)
    # The control: without one file of the bundle the same build cannot succeed.
    (folder / "conda/noarch/tidy-1.0-pyh6_0.tar.bz2").unlink()
    with pytest.raises(BuildError):
        engine.build(render(plan), here, sealed, BuildOptions(progress=print, offline=folder, no_cache=True))
