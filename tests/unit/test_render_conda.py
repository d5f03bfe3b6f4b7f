"""The conda stage of a Dockerfile: installs a lock, never solves, and depends on nothing but the lock."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from envforge.lock import Lock, LockedBase, LockedConda, LockedPackage, seal
from envforge.lockers import conda
from envforge.plan import Form, make_plan
from envforge.render import render
from envforge.resolve import Resolution
from envforge.spec import SmokeSpec
from tests.resolutions import cuda, resolution


def package(name: str, subdir: str = "linux-64", version: str = "1.0") -> LockedConda:
    return LockedConda(
        name=name,
        version=version,
        build="h0_0",
        channel="conda-forge",
        subdir=subdir,
        filename=f"{name}-{version}-h0_0.conda",
        sha256="a" * 64,
    )


# BC-36 (tensorchord/envd issue 1527): packages named twice, a solve in every build, caches that do not hold.
BC36 = resolution(
    conda=("pytorch", "cudatoolkit=11.3", "rdkit", "dgl-cuda11.3", "pytorch", "cudatoolkit=11.3"),
    channels=("pytorch", "conda-forge", "dglteam"),
    cuda=cuda("11.3"),
)


def rendered(found: Resolution, form: Form = "buildkit", **changes: object) -> tuple[str, dict[str, bytes]]:
    fields: dict[str, object] = {
        "name": found.name,
        "resolution_digest": "",
        "inputs_digest": "",
        "python": found.python,
        "platform": found.platform,
        "base": LockedBase(image=found.base.image, digest=None, reason="none"),
        "pip": (LockedPackage(name="six", version="1.16.0", index="default", hashes=("sha256:" + "b" * 64,)),),
        "conda": (package("python"), package("tzdata", "noarch"), package("python", "linux-aarch64")),
    }
    made = render(make_plan(found, seal(Lock(**(fields | changes)), found), form))  # type: ignore[arg-type]
    return made.dockerfile, dict(made.files)


def test_bc36_requests_are_asked_once() -> None:
    wanted, _ = conda.requested(BC36)
    assert wanted == ("python 3.11.*", "pytorch", "cudatoolkit=11.3", "rdkit", "dgl-cuda11.3")


@pytest.mark.parametrize("form", ["buildkit", "plain"])
def test_bc36_no_solver_runs_and_only_this_platform_is_installed(form: Form) -> None:
    text, files = rendered(BC36, form)
    assert files["locks/conda.txt"].decode().splitlines() == [
        "@EXPLICIT",
        f"https://conda.anaconda.org/conda-forge/linux-64/python-1.0-h0_0.conda#sha256:{'a' * 64}",
        f"https://conda.anaconda.org/conda-forge/noarch/tzdata-1.0-h0_0.conda#sha256:{'a' * 64}",
    ]
    assert not re.search(r"\b(conda|mamba|micromamba) (install|create|env)\b", text)
    assert "CONDA_OVERRIDE_CUDA=11.3" in text
    assert " venv " not in text, "the conda prefix is the environment"


def test_bc36_smoke_and_notes_leave_the_layers_alone() -> None:
    text, files = rendered(BC36)
    other = replace(BC36, smoke=SmokeSpec(level=2, timeout=10), description="another text")
    text2, files2 = rendered(other, notes=("a remark",))
    head, _, labels = text.partition("\nLABEL ")
    head2, _, labels2 = text2.partition("\nLABEL ")
    assert head == head2 and files == files2
    assert labels != labels2, "the identity has changed, and only the label tells"
    changed = rendered(BC36, conda=(package("python", version="1.1"),))[1]
    assert changed["locks/conda.txt"] != files["locks/conda.txt"]


def test_bc36_the_same_bytes_each_time_without_times_or_places() -> None:
    assert rendered(BC36) == rendered(BC36)
    assert not re.search(r"20\d\d-\d\d-\d\dT|/tmp/(?!envforge-)|/home/(?!envforge)\w", rendered(BC36)[0])


def test_a_mirror_is_used_for_the_install() -> None:
    text, _ = rendered(replace(BC36, mirrors={"conda": "https://mirror.example/conda"}))
    assert "--host https://mirror.example/conda" in text


def test_without_conda_there_is_no_conda_stage() -> None:
    text, files = rendered(resolution(), conda=())
    assert "conda" not in text.lower().replace("condarc", "") and "locks/conda.txt" not in files


def test_snapshot_sources_and_exact_versions_reach_apt() -> None:
    from envforge.spec import AptSpec

    found = replace(BC36, apt=("tree",), apt_options=AptSpec(snapshot="2026-11-01"))
    text, _ = rendered(found, apt=(("tree", "2.1.0-1"),))
    assert "      tree=2.1.0-1 \\\n" in text
    assert "archive/debian/20261101T000000Z/ bookworm main" in text
    assert "archive/debian" not in rendered(replace(BC36, apt=("tree",)))[0]
