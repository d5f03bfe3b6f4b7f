"""A conda image built twice: the explicit lock gives the same bytes, and the rewritten image still is what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envforge import inventory, reproducible, verify
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, RunRequest
from envforge.lock import Lock, LockedBase, LockedPackage, seal
from envforge.lockers import conda
from envforge.plan import make_plan
from envforge.render import render
from tests import conda_channel as channel
from tests.docker.test_conda_image import GATEWAY, PYTHON, SIX, framework_packages
from tests.resolutions import cuda, framework, resolution

pytestmark = [pytest.mark.docker, pytest.mark.network]


def test_two_conda_builds_are_the_same_bytes(tmp_path: Path, bookworm_base: str) -> None:
    channel.write(tmp_path, "main", [channel.real_python(), *framework_packages()])
    engine = DockerEngine.connect()
    bundle = os.environ.get("SSL_CERT_FILE")
    options = BuildOptions(progress=print, ca_bundle=Path(bundle) if bundle else None, no_cache=True, reproducible=True)
    with channel.served(tmp_path, host="0.0.0.0") as base:
        url = base.replace("127.0.0.1", GATEWAY) + "/main"
        wanted = resolution(
            name="conda-twice", python=PYTHON, channels=(url,), conda=("tidy",), cuda=cuda("12.4"),
            frameworks=(framework(),),
        )  # fmt: skip
        lock = Lock(
            name=wanted.name, resolution_digest="", inputs_digest="", python=PYTHON, platform=wanted.platform,
            base=LockedBase(image=wanted.base.image, digest=None, reason="made here"),
            pip=(LockedPackage(name="six", version="1.16.0", index="default", hashes=(SIX,)),),
            conda=conda.lock(wanted), conda_settings=conda.settings(wanted),
        )  # fmt: skip
        lock = seal(lock, wanted)
        rendered = render(make_plan(wanted, lock, "buildkit", base=bookworm_base))
        first, second = (engine.build(rendered, wanted, lock, options) for _ in range(2))
    try:
        assert first.rewritten is not None and second.rewritten is not None
        compared = reproducible.compare(first.rewritten, second.rewritten)
        assert compared.level == "same bytes", compared.differences
        assert verify.compare(lock, inventory.of_image(engine, first.image)) == ()
        result = engine.run(first.image, RunRequest(argv=("python", "-c", "import tidy; print(tidy.name)")))
        assert (result.code, result.stdout) == (0, "tidy\n"), result.stderr[-2000:]
    finally:
        engine.remove(first.image)
        if second.image != first.image:
            engine.remove(second.image)
        engine.close()
