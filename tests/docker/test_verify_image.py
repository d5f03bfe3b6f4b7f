"""Exact Debian versions and a pip environment on a real engine: locked, installed as locked, verified."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import apt_lock, inventory, verify
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions
from envforge.errors import BuildError, LockError
from envforge.lock import Lock, LockedBase, LockedPackage, seal
from envforge.plan import make_plan
from envforge.render import render
from tests.resolutions import resolution

pytestmark = [pytest.mark.docker, pytest.mark.network]
SIX = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"


def build(engine: DockerEngine, lock: Lock, base: str, *, apt: tuple[str, ...]) -> str:
    """The image of a lock; the test removes it."""
    found = resolution(name=lock.name, apt=apt)
    found = replace(found, base=replace(found.base, python_from="image"))
    sealed = seal(lock, found)
    bundle = os.environ.get("SSL_CERT_FILE")
    options = BuildOptions(progress=print, ca_bundle=Path(bundle) if bundle else None)
    plan = make_plan(found, sealed, "buildkit", base=base)
    image = engine.build(render(plan), found, sealed, options).image
    engine.tag(image, plan.repository, plan.tag)
    return image


def lock(name: str, **changes: object) -> Lock:
    fields: dict[str, object] = {
        "name": name,
        "resolution_digest": "",
        "inputs_digest": "",
        "python": "3.11",
        "platform": "linux/amd64",
        "base": LockedBase(image="debian:bookworm", digest=None, reason="made here"),
        "pip": (LockedPackage(name="six", version="1.16.0", index="default", hashes=(SIX,)),),
    }
    return Lock(**(fields | changes))  # type: ignore[arg-type]


def test_debian_packages_are_locked_installed_and_verified(bookworm_base: str) -> None:
    engine = DockerEngine.connect()
    versions = apt_lock.simulate(engine, bookworm_base, ["tree"])
    assert "tree" in dict(versions)
    image = build(engine, lock("apt-case", apt=versions), bookworm_base, apt=("tree",))
    try:
        found = inventory.of_image(engine, image)
        assert verify.compare(lock("apt-case", apt=versions), found) == ()
        other = tuple((name, version + "~other" if name == "tree" else version) for name, version in versions)
        (one,) = verify.compare(lock("apt-case", apt=other), found)
        assert (one.kind, one.package) == ("apt-version", "tree")
        assert [one.name for one in found.pip if one.name == "six"] == ["six"]
    finally:
        engine.remove(image)


def test_a_version_that_is_gone_stops_the_build_with_its_name(bookworm_base: str) -> None:
    engine = DockerEngine.connect()
    with pytest.raises(BuildError) as caught:
        build(engine, lock("apt-gone", apt=(("tree", "0.0-1"),)), bookworm_base, apt=("tree",))
    text = "\n".join([caught.value.message, *caught.value.context])
    assert "tree" in text and "0.0-1" in text


def test_an_unknown_debian_package_is_named_at_lock_time(bookworm_base: str) -> None:
    with pytest.raises(LockError) as caught:
        apt_lock.simulate(DockerEngine.connect(), bookworm_base, ["surely-no-such-package"])
    assert caught.value.reference == "apt-unknown" and "surely-no-such-package" in caught.value.message
