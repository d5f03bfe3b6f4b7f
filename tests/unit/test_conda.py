"""Conda locks against a channel made here: order, virtual packages, hashes, and errors that name the cause."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from envforge.console import Console
from envforge.errors import LockError, NetworkError
from envforge.lock import LockedConda
from envforge.lockers import conda
from envforge.resolve import PipRequirement
from tests import conda_channel as channel
from tests.resolutions import cuda, framework, resolution


class Host:
    """The served channels and what was written into them."""

    def __init__(self, base: str, digests: dict[str, str]) -> None:
        self.base = base
        self.digests = digests


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    root = tmp_path_factory.mktemp("channels")
    digests = channel.write(root, "main", channel.plain_python() + channel.cuda_family() + channel.broken())
    first = [channel.Package("numpy", "1.24.0", "py311h9_0", depends=("python 3.11.*",))]
    first += [channel.Package("mkl", "2024.2", "h0_0"), channel.Package("mkl", "2024.0", "h0_0")]
    first += [
        channel.Package("pytorch", "2.0.0", "py3.11_cuda11.7_cudnn8_0", depends=("mkl", "python 3.11.*")),
        channel.Package("pytorch-cuda", "11.7", "h0_0"),
    ]
    digests |= channel.write(root, "first", first)
    with channel.served(root) as base:
        yield Host(base, digests)


def by_name(packages: tuple[LockedConda, ...]) -> dict[str, LockedConda]:
    return {one.name: one for one in packages}


def test_lock_carries_build_strings_and_the_real_sha256(host: Host) -> None:
    found = conda.lock(resolution(conda=("numpy 1.26.*", "tidy")), channels_base=host.base)
    assert [(one.name, one.version, one.build, one.subdir) for one in found] == [
        ("numpy", "1.26.4", "py311h5_0", "linux-64"),
        ("python", "3.11.9", "h4_0", "linux-64"),
        ("tidy", "1.0", "pyh6_0", "noarch"),
    ]
    for one in found:
        assert one.sha256 == host.digests[f"{one.subdir}/{one.filename}"]
        assert one.channel == "main"


@pytest.mark.parametrize(("version", "build"), [("11.8", "cuda118_py311_h2_300"), ("12.4", "cuda124_py311_h2_300")])
def test_cuda_comes_from_the_spec_not_from_this_machine(
    host: Host, version: str, build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "99.0")
    wanted = resolution(cuda=cuda(version), frameworks=(framework(),))
    found = by_name(conda.lock(wanted, channels_base=host.base))
    assert found["pytorch"].build == build
    assert found["cuda-version"].version == version
    assert conda.effective_cuda(tuple(found.values())) == version


def test_without_cuda_the_cpu_build_is_taken(host: Host) -> None:
    found = by_name(conda.lock(resolution(conda=("pytorch",)), channels_base=host.base))
    assert found["pytorch"].build == "cpu_py311_h3_0"
    assert "cuda-version" not in found


def test_both_processors_are_locked_from_one_machine(host: Host) -> None:
    wanted = resolution(conda=("numpy",), platform="linux/arm64")
    found = conda.lock(wanted, subdirs=("linux-64", "linux-aarch64"), channels_base=host.base)
    assert {one.subdir for one in found if one.name == "numpy"} == {"linux-64", "linux-aarch64"}
    assert conda.settings(wanted)["archspec"] == "aarch64"


def test_as_of_hides_later_packages(host: Host) -> None:
    now = by_name(conda.lock(resolution(conda=("numpy",)), channels_base=host.base))
    then = by_name(conda.lock(resolution(conda=("numpy",)), as_of="2024-06-01", channels_base=host.base))
    assert (now["numpy"].version, then["numpy"].version) == ("2.1.0", "1.26.4")


def test_the_first_channel_wins_even_with_an_older_version(host: Host) -> None:
    strict = by_name(conda.lock(resolution(conda=("numpy",), channels=("first", "main")), channels_base=host.base))
    assert (strict["numpy"].channel, strict["numpy"].version) == ("first", "1.24.0")
    assert strict["python"].channel == "main"
    assert conda.settings(resolution(channels=("first", "main")))["channels"] == "first,main"


def test_bc55_a_package_tied_to_a_channel_and_the_rest_in_order(host: Host) -> None:
    stream = io.StringIO()
    wanted = resolution(
        conda=("first::pytorch=2.0.0", "first::pytorch-cuda=11.7.*", "numpy"),
        channels=("main", "first"),
        cuda=cuda("11.7"),
    )
    found = by_name(conda.lock(wanted, channels_base=host.base, console=Console(stderr=stream)))
    assert found["pytorch"].channel == "first"
    assert found["numpy"].channel == "main"
    assert found["mkl"].version == "2024.0", "the bound for torch below 2.4 was not added"
    assert "mkl <2024.1" in stream.getvalue() and "iJIT" in stream.getvalue()
    assert conda.settings(wanted)["priority"] == "strict"


def test_mkl_is_not_bound_for_a_torch_that_does_not_need_it(host: Host) -> None:
    assert conda.known_bounds(["pytorch 2.4.0"]) == ()
    assert conda.known_bounds(["pytorch=2.0.1", "mkl=2024.2"]) == ()
    found = by_name(conda.lock(resolution(conda=("mkl",), channels=("first", "main")), channels_base=host.base))
    assert found["mkl"].version == "2024.2"


def test_bc51_builds_for_a_later_cuda_than_declared_are_named(host: Host) -> None:
    stream = io.StringIO()
    wanted = resolution(conda=("pytorch * cuda129*",), cuda=cuda("12.0", source="wheels"))
    found = conda.lock(wanted, channels_base=host.base, console=Console(stderr=stream))
    assert conda.effective_cuda(found) == "12.9"
    assert "pytorch 2.3.1 cuda129_py311_h2_300 is built for CUDA 12.9, the spec declares 12.0" in stream.getvalue()
    bound, limits = conda.requested(resolution(conda=("tensorflow>=2.17.0=cuda12*",), cuda=cuda("12.6")))
    assert "tensorflow>=2.17.0=cuda12*" in bound
    assert "cuda-version 12.6.*" in limits


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        (("needs-ghost",), ["ghost"]),
        (("wants-old-numpy", "wants-new-numpy"), ["wants-old-numpy", "wants-new-numpy", "numpy"]),
        (("future",), ["future", "__glibc", "2.28"]),
        (("fast-cpu",), ["fast-cpu", "__archspec"]),
        (("nowhere-to-be-found",), ["nowhere-to-be-found"]),
    ],
)
def test_conflicts_say_who_needs_what(host: Host, specs: tuple[str, ...], said: list[str]) -> None:
    with pytest.raises(LockError) as caught:
        conda.lock(resolution(conda=specs), channels_base=host.base)
    assert caught.value.reference == "conda-conflict"
    text = "\n".join(caught.value.context)
    for word in said:
        assert word in text
    assert caught.value.exit_code == 5


def test_a_channel_that_does_not_answer_is_a_network_error() -> None:
    with pytest.raises(NetworkError) as caught:
        conda.lock(resolution(conda=("numpy",)), channels_base="http://127.0.0.1:9")
    assert "127.0.0.1:9/main" in caught.value.message
    assert caught.value.exit_code == 11


def test_credentials_of_a_channel_reach_neither_lock_nor_error(host: Host) -> None:
    secret = host.base.replace("http://", "http://me:hush@") + "/main"
    found = conda.lock(resolution(conda=("numpy",), channels=(secret,)))
    assert {one.channel for one in found} == {host.base + "/main"}
    with pytest.raises(NetworkError) as caught:
        conda.lock(resolution(conda=("numpy",), channels=("http://me:hush@127.0.0.1:9/main",)))
    assert "hush" not in str(caught.value.document())


def test_duplicate_requests_are_asked_once() -> None:
    wanted, _ = conda.requested(resolution(conda=("numpy  >=1", "numpy >=1", "tidy")))
    assert wanted == ("python 3.11.*", "numpy >=1", "tidy")


def test_a_bad_spec_and_a_bad_date_are_named(host: Host) -> None:
    with pytest.raises(LockError, match="not a conda package spec"):
        conda.lock(resolution(conda=("numpy >=1,,<",)), channels_base=host.base)
    with pytest.raises(LockError, match="not a date"):
        conda.lock(resolution(conda=("numpy",)), as_of="soon", channels_base=host.base)


def test_two_locks_are_equal(host: Host, tmp_path: Path) -> None:
    del tmp_path
    wanted = resolution(conda=("pytorch",), cuda=cuda("12.4"))
    assert conda.lock(wanted, channels_base=host.base) == conda.lock(wanted, channels_base=host.base)


def test_virtual_packages_follow_the_target() -> None:
    gpu = conda.virtual_packages(resolution(cuda=cuda("12.4"), glibc="2.31"), "linux-64")
    assert (gpu["__cuda"], gpu["__glibc"]) == ("12.4", "2.31")
    assert "__cuda" not in conda.virtual_packages(resolution(), "linux-aarch64")
    assert conda.environment(resolution(cuda=cuda("11.8")))["CONDA_OVERRIDE_CUDA"] == "11.8"
    with pytest.raises(LockError, match="win-64"):
        conda.virtual_packages(resolution(), "win-64")


def test_what_the_tables_know_bounds_conda_builds_too(host: Host) -> None:
    wanted = resolution(conda=("numpy",), constraints=(PipRequirement(text="numpy<2"),))
    assert by_name(conda.lock(wanted, channels_base=host.base))["numpy"].version == "1.26.4"


def test_a_pip_package_that_conda_brings_is_named(host: Host) -> None:
    found = conda.lock(resolution(conda=("pytorch",)), channels_base=host.base)
    assert conda.clashes(found, ["six", "torch", "numpy"]) == [
        "numpy: in the pip lock and brought by conda (numpy 2.1.0)",
        "torch: in the pip lock and brought by conda (pytorch 2.3.1)",
    ]
    assert conda.clashes(found, ["six"]) == []
