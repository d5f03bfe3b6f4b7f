"""A conda image on a real engine: built from an explicit lock of a served channel, verified, and tampered with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import inventory, verify
from envforge.docker_engine import DockerEngine
from envforge.engine import BuildOptions, RunRequest
from envforge.errors import BuildError
from envforge.lock import Lock, LockedBase, LockedPackage, seal
from envforge.lockers import conda
from envforge.plan import make_plan
from envforge.render import render
from envforge.resolve import Resolution
from tests import conda_channel as channel
from tests.resolutions import cuda, framework, resolution

pytestmark = [pytest.mark.docker, pytest.mark.network]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SITE = f"lib/python{PYTHON}/site-packages"
# The gateway of the engine's default bridge: where a container reaches a server of this host.
GATEWAY = "172.17.0.1"
SIX = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"


def framework_packages() -> list[channel.Package]:
    """A framework-shaped package that computes, its CUDA runtime, and numpy's metadata as conda carries it."""
    code = b"import types\n__version__ = '2.3.1'\nversion = types.SimpleNamespace(cuda='12.4')\n\n\ndef dot(a, b):\n"
    code += b"    return sum(x * y for x, y in zip(a, b))\n"
    info = f"{SITE}/torch-2.3.1.dist-info"
    torch = {
        f"{SITE}/torch/__init__.py": code,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: torch\nVersion: 2.3.1\n",
        f"{info}/INSTALLER": b"conda\n",
        f"{info}/RECORD": b"torch/__init__.py,,\ntorch-2.3.1.dist-info/METADATA,,\n",
    }
    depends = (f"python {PYTHON}.*", "__cuda", "cuda-version 12.4.*", "cuda-cudart")
    return [
        channel.Package("pytorch", "2.3.1", "cuda124_py311_h2_300", depends=depends, files=torch),
        channel.Package("cuda-version", "12.4", "h0_3", subdir="noarch", noarch="generic"),
        channel.Package(
            "cuda-cudart",
            "12.4.1",
            "h1_0",
            depends=("cuda-version 12.4.*",),
            files={"lib/libcudart.so.12.4.1": b"\x7fELF the runtime"},
            links={"lib/libcudart.so.12": "libcudart.so.12.4.1"},
        ),
        channel.Package(
            "tidy",
            "1.0",
            "pyh6_0",
            depends=("python >=3.8",),
            files={"site-packages/tidy/__init__.py": b"name = 'tidy'\n"},
            subdir="noarch",
            noarch="python",
        ),
    ]


class Made:
    """The image with what it was made from."""

    def __init__(self, engine: DockerEngine, wanted: Resolution, lock: Lock, image: str) -> None:
        self.engine, self.resolution, self.lock, self.image = engine, wanted, lock, image
        self.info = engine.inspect(image)

    def differences(self, image: str) -> set[tuple[str, str]]:
        info = self.engine.inspect(image)
        labels = {"envforge.name": self.lock.name, "envforge.inputs-digest": self.lock.inputs_digest}
        found = inventory.of_image(self.engine, image, info=info)
        compared = verify.compare(self.lock, found, labels=info.labels, expected_labels=labels)
        return {(one.kind, one.path) for one in compared}


@pytest.fixture(scope="module", params=["buildkit", "plain"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bookworm_base: str
) -> Iterator[Made]:
    root = tmp_path_factory.mktemp("channel")
    channel.write(root, "main", [channel.real_python(), *framework_packages()])
    engine = DockerEngine.connect()
    with channel.served(root, host="0.0.0.0") as base:
        url = base.replace("127.0.0.1", GATEWAY) + "/main"
        wanted = resolution(
            name=f"conda-case-{request.param}",
            python=PYTHON,
            channels=(url,),
            conda=("tidy",),
            cuda=cuda("12.4"),
            frameworks=(framework(),),
        )
        lock = Lock(
            name=wanted.name,
            resolution_digest="",
            inputs_digest="",
            python=PYTHON,
            platform=wanted.platform,
            base=LockedBase(image=wanted.base.image, digest=None, reason="made here"),
            pip=(LockedPackage(name="six", version="1.16.0", index="default", hashes=(SIX,)),),
            conda=conda.lock(wanted),
            conda_settings=conda.settings(wanted),
        )
        lock = seal(lock, wanted)
        plan = make_plan(wanted, lock, request.param, base=bookworm_base)
        bundle = os.environ.get("SSL_CERT_FILE")
        options = BuildOptions(
            progress=print,
            ca_bundle=Path(bundle) if bundle else None,
            index_url=os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL"),
        )
        try:
            built = engine.build(render(plan), wanted, lock, options)
        except BuildError as error:
            pytest.fail("\n".join([error.message, *error.context]))
    # A name keeps it from being taken for a left-over while the tests run.
    engine.tag(built.image, plan.repository, plan.tag)
    found = Made(engine, wanted, lock, built.image)
    yield found
    engine.remove(built.image)


def test_the_image_is_what_the_lock_says_and_computes(made: Made) -> None:
    assert made.differences(made.image) == set()
    program = (
        "import torch, tidy, six; print(torch.version.cuda, torch.dot([1, 2], [3, 4]), six.__version__, tidy.name)"
    )
    result = made.engine.run(made.image, RunRequest(argv=("python", "-c", program)))
    assert (result.code, result.stdout.split()) == (0, ["12.4", "11", "1.16.0", "tidy"]), result.stderr
    found = inventory.of_image(made.engine, made.image)
    assert {one.name for one in found.conda} == {"python", "pytorch", "cuda-version", "cuda-cudart", "tidy"}
    assert [(one.library, one.owner) for one in found.cuda] == [("libcudart", "conda:cuda-cudart")]


def test_only_the_prefix_is_carried(made: Made) -> None:
    program = "import os; print([files for top in ('/run/envforge', '/root/.cache/rattler') "
    program += "for _, _, files in os.walk(top) if files])"
    result = made.engine.run(made.image, RunRequest(argv=("python", "-c", program), user="0"))
    assert result.stdout.strip() == "[]", result.stdout
    program = "import glob; print(open(glob.glob('/opt/env/conda-meta/tidy*')[0]).read())"
    meta = made.engine.run(made.image, RunRequest(argv=("python", "-c", program)))
    assert "/run/envforge" not in meta.stdout and '"sha256"' in meta.stdout, meta.stderr


TAMPERINGS = {
    "changed": (
        f"echo '# x' >> /opt/env/{SITE}/torch/__init__.py",
        "file-changed",
        f"/opt/env/{SITE}/torch/__init__.py",
    ),
    "standard library": (
        f"echo '# x' >> /opt/env/lib/python{PYTHON}/json/__init__.py",
        "file-changed",
        f"/opt/env/lib/python{PYTHON}/json/__init__.py",
    ),
    "removed": (f"rm /opt/env/{SITE}/tidy/__init__.py", "file-removed", f"/opt/env/{SITE}/tidy/__init__.py"),
    "added": (f"touch /opt/env/{SITE}/evil.pth", "file-added", f"/opt/env/{SITE}/evil.pth"),
    "pip file": (f"echo '# x' >> /opt/env/{SITE}/six.py", "file-changed", f"/opt/env/{SITE}/six.py"),
    "second cudart": (
        "mkdir -p /usr/local/cuda/lib64 && echo x > /usr/local/cuda/lib64/libcudart.so.11.0",
        "cuda-copy",
        "/usr/local/cuda/lib64/libcudart.so.11.0",
    ),
    "driver inside": ("echo x > /usr/lib/libcuda.so.1", "cuda-driver", "/usr/lib/libcuda.so.1"),
    "conda record": (
        'sed -i \'s/"build": "h1_0"/"build": "h2_0"/\' /opt/env/conda-meta/cuda-cudart-12.4.1-h1_0.json',
        "package-version",
        "/opt/env/conda-meta/cuda-cudart-12.4.1-h1_0.json",
    ),
    "pip version": (
        f"sed -i s/1.16.0/1.17.0/ /opt/env/{SITE}/six-1.16.0.dist-info/METADATA",
        "package-version",
        f"/opt/env/{SITE}/six-1.16.0.dist-info",
    ),
    "pip over conda": (
        f"printf 'torch/__init__.py,sha256=%s,1\\n' AAAA > /opt/env/{SITE}/torch-2.3.1.dist-info/RECORD",
        "file-changed",
        f"/opt/env/{SITE}/torch-2.3.1.dist-info/RECORD",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_caught_with_the_file_named(made: Made, name: str) -> None:
    import docker

    command, kind, path = TAMPERINGS[name]
    client = docker.from_env()
    container = client.containers.run(
        made.image, ["/bin/sh", "-c", command], user="0", detach=True, network_mode="none"
    )
    try:
        assert container.wait()["StatusCode"] == 0, container.logs()
        image = container.commit(conf={"User": "1000:1000"})
    finally:
        container.remove(force=True)
    try:
        assert (kind, path) in made.differences(image.id)
    finally:
        client.images.remove(image.id, force=True, noprune=True)
        client.close()


def test_an_edited_label_is_caught(made: Made) -> None:
    import io

    import docker

    client = docker.from_env()
    text = f"FROM {made.image}\nLABEL envforge.inputs-digest=sha256:{'0' * 64}\n"
    image, _ = client.images.build(fileobj=io.BytesIO(text.encode()))
    try:
        assert made.differences(image.id) == {("label-changed", "envforge.inputs-digest")}
    finally:
        client.images.remove(image.id, force=True, noprune=True)
        client.close()


def test_a_lock_of_another_build_is_caught(made: Made) -> None:
    other = tuple(replace(one, build="h9_0") if one.name == "tidy" else one for one in made.lock.conda)
    found = inventory.of_image(made.engine, made.image, hashing=False)
    kinds = {(one.kind, one.package) for one in verify.compare(replace(made.lock, conda=other), found)}
    assert ("package-version", "tidy") in kinds
