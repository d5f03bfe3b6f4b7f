"""The pip locker against local indexes: one index per package, the target alone decides, hard files."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from envforge.errors import LockError
from envforge.lock import LockedPackage
from envforge.lockers import pip
from envforge.resolve import BaseChoice, CudaChoice, PipRequirement
from tests import lock_fixtures
from tests.fixtures_index import Index
from tests.lock_fixtures import LINUX, NVIDIA, TORCH, bound, hash_of, lock, refused
from tests.lock_samples import quiet_console, resolution, sample_lock
from tests.wheels import Dist, sdist, wheel

public, pytorch, clean_uv = lock_fixtures.public, lock_fixtures.pytorch, lock_fixtures.clean_uv
pytestmark = pytest.mark.usefixtures("clean_uv")


# -- one index per package ----------------------------------------------------------------------------


def test_every_package_has_one_index_and_the_hash_of_that_index(public: Index, pytorch: Index) -> None:
    found = lock(public, TORCH, **bound(pytorch))
    assert {name: (p.version, p.index) for name, p in found.items()} == {
        "filelock": ("3.0", "default"),  # 9.0 on the other index is not looked at
        "nvidia-nccl-cu11": ("2.21.5", "pytorch-cu118"),  # bound although only torch asks for it
        "torch": ("2.7.1+cu118", "pytorch-cu118"),
    }
    theirs = hash_of(pytorch, "nvidia_nccl_cu11-2.21.5-py3-none-manylinux2014_x86_64.whl")
    assert found["nvidia-nccl-cu11"].hashes == (theirs,)
    assert found["nvidia-nccl-cu11"].via == ("torch",)
    assert found["torch"].via == ("spec",)
    assert not [path for path in pytorch.requests if "filelock" in path]


def test_without_patterns_the_default_index_serves_the_rest(public: Index, pytorch: Index) -> None:
    """Control for the test above: nothing but the patterns binds nvidia-* to the other index."""
    found = lock(public, TORCH, **bound(pytorch, "torch"))
    assert found["nvidia-nccl-cu11"].index == "default"
    assert found["nvidia-nccl-cu11"].hashes == (
        hash_of(public, "nvidia_nccl_cu11-2.21.5-py3-none-manylinux2014_x86_64.whl"),
    )


def test_dependency_confusion_a_private_name_never_comes_from_the_public_index(public: Index) -> None:
    """An attacker publishes a higher version, and a source archive, of a lab's private names."""
    public.add(wheel("acme-core", "99.0"), sdist("acme-data", "99.0"))
    private = [
        wheel("acme-lib", "1.0", requires=["acme-core>=1", "acme-data"]),
        wheel("acme-core", "1.0"),
        wheel("acme-data", "1.0"),
    ]
    with Index(private) as lab:
        found = lock(public, "acme-lib", indexes={"lab": lab.url}, index_packages={"lab": ["acme-*"]})
    assert {(p.name, p.version, p.index) for p in found.values()} == {
        ("acme-core", "1.0", "lab"),
        ("acme-data", "1.0", "lab"),
        ("acme-lib", "1.0", "lab"),
    }


def test_a_bound_package_missing_from_its_index_is_not_taken_from_elsewhere(public: Index, pytorch: Index) -> None:
    public.add(wheel("torchvision", "0.22.1+cu118", tag=LINUX))
    wanted = PipRequirement(text="torchvision==0.22.1+cu118", index="pytorch-cu118")
    error = refused(LockError, public, wanted, **bound(pytorch))
    assert error.reference == "lock-not-found"
    assert "torchvision" in error.message
    assert "pytorch-cu118" in error.message


def test_find_links_pages(public: Index) -> None:
    with Index([wheel("jaxlib", "0.4.25+cuda12.cudnn89", tag=LINUX)]) as flat:
        found = lock(
            public,
            PipRequirement(text="jaxlib==0.4.25+cuda12.cudnn89", index="jax"),
            indexes={"jax": flat.flat_url},
            find_links=("jax",),
        )
        assert found["jaxlib"].version == "0.4.25+cuda12.cudnn89"
        assert found["jaxlib"].hashes == (hash_of(flat, next(iter(flat.dists))),)


def test_an_undeclared_index_is_named(public: Index) -> None:
    error = refused(LockError, public, TORCH)
    assert error.reference == "lock-index-unknown"
    assert "pytorch-cu118" in error.message


# -- the target decides -------------------------------------------------------------------------------

TARGETS = [
    ("linux/amd64", "2.36", "3.11", "x86_64-manylinux_2_36"),
    ("linux/amd64", "2.35", "3.12", "x86_64-manylinux_2_35"),
    ("linux/amd64", "2.29", "3.12", "x86_64-manylinux_2_28"),
    ("linux/amd64", "2.41", "3.13", "x86_64-manylinux_2_40"),
    ("linux/arm64", "2.31", "3.9", "aarch64-manylinux_2_31"),
]


@pytest.mark.parametrize(("platform", "glibc", "python", "expected"), TARGETS)
def test_platform_names(platform: str, glibc: str, python: str, expected: str) -> None:
    assert pip.platform_of(resolution(platform=platform, glibc=glibc, python=python)) == expected


@pytest.mark.parametrize(
    ("platform", "glibc"), [("linux/amd64", "2.12"), ("linux/s390x", "2.36"), ("linux/amd64", "musl")]
)
def test_platforms_without_wheels(platform: str, glibc: str) -> None:
    with pytest.raises(LockError) as caught:
        pip.platform_of(resolution(platform=platform, glibc=glibc))
    assert caught.value.reference == "lock-platform"


def many_platforms() -> list[Dist]:
    return [
        wheel("a", "1.0", tag=tag, requires=["old; python_version < '3.12'", "new; python_version >= '3.12'"])
        for python in ("cp39", "cp311", "cp312")
        for tag in (
            f"{python}-{python}-manylinux_2_17_x86_64",
            f"{python}-{python}-manylinux_2_39_x86_64",
            f"{python}-{python}-manylinux_2_28_aarch64",
            f"{python}-{python}-win_amd64",
            f"{python}-{python}-macosx_11_0_arm64",
        )
    ] + [wheel("old", "1.0"), wheel("new", "1.0")]


@pytest.mark.parametrize(
    ("changes", "tags", "dependency"),
    [
        ({}, {"cp311-cp311-manylinux_2_17_x86_64"}, "old"),
        ({"glibc": "2.39"}, {"cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_39_x86_64"}, "old"),
        ({"python": "3.12"}, {"cp312-cp312-manylinux_2_17_x86_64"}, "new"),
        ({"python": "3.9", "platform": "linux/arm64"}, {"cp39-cp39-manylinux_2_28_aarch64"}, "old"),
    ],
)
def test_only_files_for_the_target_are_allowed(changes: dict[str, str], tags: set[str], dependency: str) -> None:
    with Index(many_platforms()) as index:
        found = lock(index, "a", **changes)
        assert set(found["a"].hashes) == {hash_of(index, f"a-1.0-{tag}.whl") for tag in tags}
        assert set(found) == {"a", dependency}


def test_constraints_bound_what_others_bring_and_add_nothing(public: Index) -> None:
    dists = [
        wheel("jax", "1.0", requires=["cudnn>=8"]),
        wheel("cudnn", "8.9"),
        wheel("cudnn", "9.1"),
        wheel("idle", "1.0"),
    ]
    public.add(*dists)
    assert lock(public, "jax")["cudnn"].version == "9.1"  # the control
    found = lock(public, "jax", constraints=["cudnn<9", "idle<2"])
    assert found["cudnn"].version == "8.9"
    assert "idle" not in found
    error = refused(LockError, public, "jax", constraints=["cudnn<8"])
    assert error.reference in ("lock-impossible", "lock-no-version")
    assert "cudnn<8" in " ".join(error.context)


def test_extras_and_markers() -> None:
    dists = [
        wheel("jax", "1.0", extras={"cuda12": ["plugin", "winstuff; sys_platform == 'win32'"], "tpu": ["libtpu"]}),
        wheel("plugin", "1.0"),
        wheel("libtpu", "1.0"),
        wheel("winstuff", "1.0"),
    ]
    with Index(dists) as index:
        assert set(lock(index, "jax[cuda12]")) == {"jax", "plugin"}
        assert set(lock(index, "jax", "libtpu; platform_machine == 'aarch64'")) == {"jax"}


def test_both_spellings_of_an_extra_give_one_lock() -> None:
    dists = [wheel("jax", "0.4.25", extras={"cuda12_pip": ["jaxlib==0.4.25+cuda12.cudnn89"]})]
    dists.append(wheel("jaxlib", "0.4.25+cuda12.cudnn89", tag=LINUX))
    with Index(dists) as index:
        found = lock(index, "jax[cuda12_pip]==0.4.25")
        assert set(found) == {"jax", "jaxlib"}
        assert lock(index, "jax[cuda12-pip]==0.4.25") == found


def test_this_machine_has_no_say(public: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, configuration files and projects around us: the same lock with and without them."""
    plain = lock(public, "filelock")
    with Index([wheel("filelock", "66.0")]) as evil:
        for name in ("UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS", "PIP_FIND_LINKS"):
            monkeypatch.setenv(name, evil.url)
        monkeypatch.setenv("UV_PRERELEASE", "allow")
        monkeypatch.setenv("UV_CONSTRAINT", str(tmp_path / "none.txt"))
        monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
        monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "nowhere"))
        (tmp_path / "uv.toml").write_text(f'[[index]]\nurl = "{evil.url}"\n')
        (tmp_path / "pyproject.toml").write_text(
            '[project]\nname = "around"\nversion = "0"\n[tool.uv]\nconstraint-dependencies = ["filelock<1"]\n'
            '[tool.uv.workspace]\nmembers = ["*"]\n'
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert lock(public, "filelock") == plain
        assert evil.requests == []


def test_the_answer_is_the_same_for_another_interpreter(public: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    words = pip._arguments(resolution(), pip._Attempt(bindings={}), None, ())
    assert words[words.index("--python") + 1] == sys.executable
    assert words[words.index("--python-version") + 1] == "3.11"
    other = pip._arguments(resolution(python="3.9"), pip._Attempt(bindings={}), None, ())
    assert other[other.index("--python-version") + 1] == "3.9"


# -- dates, pins, upgrades ----------------------------------------------------------------------------


def test_as_of_a_day(pytorch: Index) -> None:
    with Index([wheel("filelock", "1.0"), wheel("filelock", "2.0"), wheel("filelock", "3.0")]) as index:
        for version, day in (("1.0", "2026-01-01"), ("2.0", "2026-02-01"), ("3.0", "2026-03-01")):
            index.uploaded[f"filelock-{version}-py3-none-any.whl"] = f"{day}T23:30:00Z"
        assert lock(index, "filelock")["filelock"].version == "3.0"
        assert lock(index, "filelock", as_of="2026-02-01")["filelock"].version == "2.0"  # that day still counts
        assert lock(index, "filelock", as_of="2026-01-31")["filelock"].version == "1.0"
        error = refused(LockError, index, "filelock", as_of="2025-12-31")
        assert error.reference == "lock-as-of"
        console = quiet_console()
        index.add(wheel("nvidia-nccl-cu11", "2.0", tag=NVIDIA))
        index.uploaded["nvidia_nccl_cu11-2.0-py3-none-manylinux2014_x86_64.whl"] = "2026-01-01T00:00:00Z"
        found = lock(index, TORCH, as_of="2026-02-01", console=console, **bound(pytorch))
        assert found["torch"].version == "2.7.1+cu118"
        assert "index pytorch-cu118 gives no upload times: torch" in console.stderr.getvalue()  # type: ignore[attr-defined]


def test_a_date_that_is_none() -> None:
    assert pip.as_of_time("2026-02-28") == "2026-03-01T00:00:00Z"
    with pytest.raises(LockError):
        pip.as_of_time("last week")


def test_upgrade_moves_only_what_it_must() -> None:
    old = [wheel("a", "1.0", requires=["c>=1"]), wheel("b", "1.0"), wheel("c", "1.0")]
    new = [wheel("a", "2.0", requires=["c>=2"]), wheel("b", "2.0"), wheel("c", "2.0"), wheel("c", "3.0")]

    def versions(found: dict[str, LockedPackage]) -> dict[str, str]:
        return {name: package.version for name, package in found.items()}

    with Index(old) as index:
        before = sample_lock(resolution("a", "b"), *lock(index, "a", "b").values())
        index.add(*new)
    with Index(old + new) as index:
        assert versions(lock(index, "a", "b", previous=before)) == {"a": "1.0", "b": "1.0", "c": "1.0"}
        assert versions(lock(index, "a", "b", previous=before, upgrade=["B"])) == {"a": "1.0", "b": "2.0", "c": "1.0"}
        moved = versions(lock(index, "a", "b", previous=before, upgrade=["a"]))
        assert moved["b"] == "1.0"
        assert moved["a"] == "2.0"
        assert versions(lock(index, "a", "b")) == {"a": "2.0", "b": "2.0", "c": "3.0"}


def test_a_pin_withdrawn_since_moves_instead_of_failing() -> None:
    with Index([wheel("a", "1.0")]) as index:
        before = sample_lock(resolution("a"), *lock(index, "a").values())
    with Index([wheel("a", "2.0")]) as index:
        assert lock(index, "a", previous=before)["a"].version == "2.0"


# -- hard files ---------------------------------------------------------------------------------------


def test_source_only_packages_are_named_before_the_build(public: Index) -> None:
    public.add(sdist("flash-attn", "2.8.0", requires=["filelock"]))
    console = quiet_console()
    found = lock(public, "flash-attn", console=console)
    assert found["flash-attn"].source_only
    assert found["flash-attn"].hashes == (hash_of(public, "flash_attn-2.8.0.tar.gz"),)
    assert not found["filelock"].source_only
    told = console.stderr.getvalue()  # type: ignore[attr-defined]
    assert "flash-attn 2.8.0 has no wheel for linux/amd64 and Python 3.11" in told
    assert "compiler" in told


def test_what_has_wheels_for_other_pythons_is_not_compiled(public: Index) -> None:
    """The control: the same release without any Linux wheel is source-only and locked as such."""
    public.add(sdist("num", "1.0"), wheel("num", "1.0", tag="cp39-cp39-manylinux_2_17_x86_64"))
    error = refused(LockError, public, "num<2")
    assert error.reference == "lock-no-wheel"
    assert "num 1.0 has no wheel for Python 3.11 on linux/amd64" in error.message
    assert error.context == ("the spec asks for num<2",)
    del public.dists["num-1.0-cp39-cp39-manylinux_2_17_x86_64.whl"]
    public.add(wheel("num", "1.0", tag="cp39-cp39-win_amd64"))
    assert lock(public, "num<2")["num"].source_only


def test_a_source_only_package_does_not_open_the_door_for_others(public: Index) -> None:
    public.add(sdist("srconly", "1.0", requires=["c"]), wheel("c", "1.0"), sdist("c", "2.0"))
    found = lock(public, "srconly", "c")
    assert (found["c"].version, found["c"].source_only) == ("1.0", False)


def test_source_archives_are_left_out_where_there_is_a_wheel(public: Index) -> None:
    public.add(sdist("filelock", "3.0"))
    assert lock(public, "filelock")["filelock"].hashes == (hash_of(public, "filelock-3.0-py3-none-any.whl"),)


def test_a_wheel_for_another_platform_only(public: Index) -> None:
    public.add(wheel("winonly", "1.0", tag="cp311-cp311-win_amd64"))
    error = refused(LockError, public, "winonly")
    assert error.reference == "lock-no-wheel"
    assert "winonly has no wheel for Python 3.11 on linux/amd64" in error.message
    assert any("win_amd64" in line for line in error.context)


def test_yanked_files(public: Index) -> None:
    public.add(wheel("cv", "1.0"), wheel("cv", "2.0"))
    public.yanked["cv-2.0-py3-none-any.whl"] = "Release deprecated"
    assert lock(public, "cv")["cv"].version == "1.0"
    console = quiet_console()
    found = lock(public, "cv==2.0", console=console)
    assert found["cv"].yanked == "Release deprecated"
    assert "Release deprecated" in console.stderr.getvalue()  # type: ignore[attr-defined]
    error = refused(LockError, public, "cv>1.5")
    assert error.reference == "lock-yanked"


def test_version_control_has_no_hash(public: Index) -> None:
    error = refused(LockError, public, "submitit @ git+https://github.com/facebookincubator/submitit")
    assert error.reference == "lock-vcs"
    assert "submitit" in error.message


def test_an_archive_by_address_is_locked_by_hash(public: Index) -> None:
    url = f"{public.root}/files/filelock-3.0-py3-none-any.whl"
    found = lock(public, f"filelock @ {url}")
    assert found["filelock"].url == url
    assert found["filelock"].hashes == (hash_of(public, "filelock-3.0-py3-none-any.whl"),)


def cuda(version: str) -> CudaChoice:
    return CudaChoice(version=version, tag="cu126", source="wheels", toolchain="none", compat=False, cudnn=None)


@pytest.mark.parametrize(
    ("version", "nvidia", "image", "flagged"),
    [
        ("2.6.0+cu126", False, "python:3.12-slim", True),
        ("2.6.0+cu124", True, "python:3.12-slim", False),
        ("2.6.0+cu126", False, "nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04", False),
        ("2.0.1+cu118", False, "python:3.10-slim", False),  # the libraries are inside the wheel
        ("2.6.0+cpu", False, "python:3.12-slim", False),
    ],
)
def test_a_cuda_wheel_that_forgot_its_libraries(version: str, nvidia: bool, image: str, flagged: bool) -> None:
    base = BaseChoice(image=image, digest=None, system="debian:bookworm", glibc="2.36", python_from="image")
    asked = replace(resolution(), base=base, cuda=cuda("12.6"))
    found = [LockedPackage(name="torch", version=version, index="pytorch", hashes=("sha256:" + "0" * 64,))]
    if nvidia:
        found.append(replace(found[0], name="nvidia-cusparselt-cu12", version="0.6.2"))
    warnings = pip.cuda_library_warnings(asked, found)
    assert bool(warnings) is flagged
    assert all("libcusparseLt" in text for text in warnings)
