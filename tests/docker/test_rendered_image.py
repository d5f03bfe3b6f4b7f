"""Rendered Dockerfiles built for real, in both forms: values, owners, caches, hooks, and what must not be inside."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from envforge import compat, spec
from envforge.build_context import CA_NAMES
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, RunRequest
from envforge.lock import Lock, LockedBase, LockedPackage, seal
from envforge.plan import Form, make_plan
from envforge.render import render
from envforge.resolve import resolve
from envforge.sources import with_code, with_files

pytestmark = [pytest.mark.docker, pytest.mark.network]

SIX = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"
MARK = "envforge-rendered-image-test-mark"
TEXT = """
schema: 1
name: rendered
packages: {pip: ["six==1.16.0"]}
env: {ODD: 'a "b" $HOME \\ c', PLAIN: x}
user: {name: app, uid: 1234, gid: 567}
workdir: /srv/project
files: [{source: src, target: /srv/project/src/}]
hooks:
  - {name: literal, command: ["sh", "-c", 'test "$1" = ''$HOME''', "x", "$HOME"], after: pip}
  - {name: as-user, command: ["sh", "-c", "id -u > /srv/project/who"], after: files, user: user}
"""


def bundle(folder: Path) -> Path:
    """The CA bundle of this host with a mark in it that must not be found in any image."""
    named = next((os.environ[name] for name in CA_NAMES if os.environ.get(name)), "/etc/ssl/certs/ca-certificates.crt")
    path = folder / "ca.pem"
    path.write_bytes(f"# {MARK}\n".encode() + Path(named).read_bytes())
    return path


def build(folder: Path, form: Form, base: str, *, no_cache: bool = False, hooks: bool = True) -> str:
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "main.py").write_text("print('own code')\n", encoding="utf-8")
    found = spec.loads(TEXT if hooks else TEXT[: TEXT.index("hooks:")], source="rendered", folder=folder)
    resolution = resolve(found, compat.load())
    made = Lock(
        name=resolution.name,
        resolution_digest="",
        inputs_digest="",
        python=resolution.python,
        platform=resolution.platform,
        base=LockedBase(image=resolution.base.image, digest=None, reason="none known"),
        pip=(LockedPackage(name="six", version="1.16.0", index="default", hashes=(SIX,)),),
    )
    lock = with_code(seal(made, resolution), resolution)
    rendered = with_files(render(make_plan(resolution, lock, form, base=base)), resolution.files)
    options = BuildOptions(progress=lambda _line: None, ca_bundle=bundle(folder), no_cache=no_cache)
    return DockerEngine.connect().build(rendered, resolution, lock, options).image


@pytest.fixture(scope="module", params=["buildkit", "plain"])
def image(
    request: pytest.FixtureRequest, bookworm_base: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    made = build(tmp_path_factory.mktemp("rendered"), request.param, bookworm_base)
    yield made
    DockerEngine.connect().remove(made)


def inside(image: str, program: str, *, user: str | None = None, read_only: bool = True) -> str:
    request = RunRequest(argv=("sh", "-c", program), user=user, read_only=read_only)
    result = DockerEngine.connect().run(image, request)
    assert result.code == 0, result.stdout + result.stderr
    return result.stdout


def test_values_arrive_as_they_were_written(image: str) -> None:
    assert inside(image, 'printf "%s|%s" "$ODD" "$PLAIN"') == 'a "b" $HOME \\ c|x'


def test_packages_user_and_own_code_are_there(image: str) -> None:
    assert inside(image, "python -c 'import six, sys; print(six.__version__, sys.prefix)'") == "1.16.0 /opt/env\n"
    assert inside(image, "python /srv/project/src/main.py && id -u && id -g") == "own code\n1234\n567\n"
    config = docker.from_env().api.inspect_image(image)["Config"]
    assert (config["WorkingDir"], config["User"]) == ("/srv/project", "1234:567")
    assert inside(image, "cat /srv/project/who") == "1234\n"


def test_the_user_can_write_where_it_works(image: str) -> None:
    """BC-38, checked as the image's user."""
    program = "touch /srv/project/a /srv/project/src/b $HOME/c && stat -c %u:%g /srv/project $HOME /srv/project/src"
    assert inside(image, program, read_only=False) == "1234:567\n" * 3
    refused = DockerEngine.connect().run(image, RunRequest(argv=("sh", "-c", "touch /opt/env/x"), read_only=False))
    assert refused.code != 0  # the environment itself stays root's


def test_caches_are_writable_for_any_user_with_a_read_only_root(image: str) -> None:
    program = (
        'for folder in "$XDG_CACHE_HOME" "$MPLCONFIGDIR" "$NUMBA_CACHE_DIR"; do mkdir -p "$folder/x"; done; echo ok'
    )
    assert inside(image, program, user="4321:4321") == "ok\n"


def test_neither_installer_nor_host_settings_are_in_any_layer(image: str) -> None:
    found = set()
    blob = io.BytesIO(b"".join(docker.from_env().api.get_image(image)))
    with tarfile.open(fileobj=blob) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member) if member.isfile() else None
            data = stream.read() if stream is not None else b""
            assert MARK.encode() not in data, member.name
            if member.name.endswith("layer.tar"):
                with tarfile.open(fileobj=io.BytesIO(data)) as layer:
                    found |= {item.name for item in layer.getmembers() if item.isfile()}
    assert "opt/env/bin/python" in found or any(name.startswith("opt/env/") for name in found)
    assert not [name for name in found if name.startswith("run/envforge") or name.endswith("bin/uv")]


def test_two_builds_of_one_lock_hold_the_same_files(bookworm_base: str, tmp_path: Path) -> None:
    program = "cd /opt/env && find . -type f -print0 | sort -z | xargs -0 sha256sum"
    made = [build(tmp_path, "buildkit", bookworm_base, no_cache=True, hooks=False) for _ in range(2)]
    try:
        first, second = (inside(one, program) for one in made)
        assert "six.py" in first and first == second
    finally:
        for one in set(made):
            DockerEngine.connect().remove(one)
