"""pylock.toml (PEP 751) and hash-checked requirements.txt, read and written."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from envforge.errors import LockError
from envforge.lock import LockedPackage
from envforge.lockers import pip
from envforge.pylock import (
    Pylock,
    PylockFile,
    PylockPackage,
    Target,
    dumps,
    from_lock,
    loads,
    read_requirements,
    requirements_text,
    select,
)
from tests.fixtures_index import Index
from tests.lock_samples import quiet_console, resolution, sample_lock
from tests.wheels import sdist, wheel

A, B, C = "a" * 64, "b" * 64, "c" * 64
HEAD = 'lock-version = "1.0"\ncreated-by = "test"\n'
LINUX311 = Target(python="3.11")


def package(name: str, *files: tuple[str, str], extra: str = "") -> str:
    wheels = ", ".join(
        f'{{ url = "https://x.example/{file}", hashes = {{ sha256 = "{value}" }} }}' for file, value in files
    )
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\n{extra}wheels = [{wheels}]\n'


def refused(text: str, target: Target | None = None) -> LockError:
    with pytest.raises(LockError) as caught:
        found = loads(text)
        select(found, target or LINUX311)
    return caught.value


# -- reading ------------------------------------------------------------------------------------------


def test_a_cuda_lock_whose_wheels_carry_build_numbers_and_plain_linux_tags() -> None:
    """The accelerator shows only in the address; the builds differ by machine; 2.11.0-5 is not a version."""
    wheels = [("torch-2.11.0-4-cp312-cp312-linux_aarch64.whl", A), ("torch-2.11.0-5-cp312-cp312-linux_x86_64.whl", B)]
    condition = "python_full_version == '3.12.*' and implementation_name == 'cpython' and sys_platform == 'linux'"
    marker = f'marker = "{condition}"\n'
    text = HEAD + package("torch", *wheels, extra=marker).replace('"1.0"\nmarker', '"2.11.0"\nmarker')
    amd, arm = Target(python="3.12"), Target(python="3.12", platform="linux/arm64")
    (one,) = select(loads(text), amd)
    (other,) = select(loads(text), arm)
    assert (one.version, one.hashes) == ("2.11.0", (f"sha256:{B}",))
    assert (other.version, other.hashes) == ("2.11.0", (f"sha256:{A}",))
    assert select(loads(text), LINUX311) == ()


def test_markers_are_judged_for_the_target_and_never_for_this_machine() -> None:
    text = HEAD + package("win", ("win-1.0-py3-none-any.whl", A), extra="marker = \"sys_platform == 'win32'\"\n")
    text += package("arm", ("arm-1.0-py3-none-any.whl", A), extra="marker = \"platform_machine == 'aarch64'\"\n")
    text += package("old", ("old-1.0-py3-none-any.whl", A), extra="marker = \"python_version < '3.10'\"\n")
    text += package("more", ("more-1.0-py3-none-any.whl", A), extra="marker = \"'gpu' in extras\"\n")
    found = loads(text)
    assert select(found, LINUX311) == ()
    names = [p.name for p in select(found, Target(python="3.9", platform="linux/arm64"))]
    assert names == ["arm", "old"]


@pytest.mark.parametrize(
    ("glibc", "tag", "fits"),
    [
        ("2.36", "cp311-cp311-manylinux_2_28_x86_64", True),
        ("2.27", "cp311-cp311-manylinux_2_28_x86_64", False),
        ("2.27", "cp311-cp311-manylinux2014_x86_64", True),
        ("2.36", "cp310-abi3-manylinux1_x86_64", True),
        ("2.36", "cp312-cp312-manylinux1_x86_64", False),
        ("2.36", "py2.py3-none-any", True),
        ("2.36", "cp311-cp311-musllinux_1_2_x86_64", False),
    ],
)
def test_wheel_tags(glibc: str, tag: str, fits: bool) -> None:
    text = HEAD + package("x", (f"x-1.0-{tag}.whl", A))
    target = replace(LINUX311, glibc=glibc)
    if fits:
        assert select(loads(text), target)[0].hashes == (f"sha256:{A}",)
    else:
        assert "has no file for Python 3.11" in refused(text, target).message


def test_source_only_and_archives() -> None:
    file = f'{{ url = "https://x.example/x-1.0.tar.gz", hashes = {{ sha256 = "{C}" }} }}'
    (found,) = select(loads(HEAD + f'[[packages]]\nname = "x"\nversion = "1.0"\nsdist = {file}\n'), LINUX311)
    assert found.source_only
    (found,) = select(loads(HEAD + f'[[packages]]\nname = "x"\narchive = {file}\n'), LINUX311)
    assert found.url == "https://x.example/x-1.0.tar.gz"


@pytest.mark.parametrize(
    ("text", "reference", "words"),
    [
        ('lock-version = "2.0"\ncreated-by = "x"\n', "pylock-version", "2.0"),
        ('created-by = "x"\n', "pylock", "lock-version"),
        ('lock-version = "1.0"\n', "pylock", "created-by"),
        ("lock-version = [\n", "pylock", "not TOML"),
        (HEAD + '[[packages]]\nname = "Not_Normal"\n', "pylock", "normalised"),
        (HEAD + '[[packages]]\nversion = "1"\n', "pylock", "no name"),
        (HEAD + package("x", ("x-1.0-py3-none-any.whl", "12")), "pylock", "not a sha256"),
        (
            HEAD + '[[packages]]\nname = "x"\nwheels = [{ url = "https://x/x-1.0-py3-none-any.whl" }]\n',
            "pylock",
            "no hashes",
        ),
        (HEAD + f'[[packages]]\nname = "x"\nwheels = [{{ hashes = {{ sha256 = "{A}" }} }}]\n', "pylock", "neither url"),
        (HEAD + '[[packages]]\nname = "x"\nvcs = {}\nwheels = []\n', "pylock", "exclude each other"),
        (HEAD + '[[packages]]\nname = "x"\nvcs = {type = "git"}\n', "pylock", "no hash to check"),
        (HEAD + package("x", ("x-1.0-py3-none-any.whl", A)) * 2, "pylock", "two entries"),
        (HEAD + package("x", ("x-1.0.whl", A)), "pylock", "x-1.0"),
    ],
)
def test_bad_files(text: str, reference: str, words: str) -> None:
    error = refused(text)
    assert error.reference == reference
    assert words in error.message
    assert error.exit_code == 5


def test_a_newer_minor_version_and_unknown_keys_are_read() -> None:
    text = 'lock-version = "1.3"\ncreated-by = "x"\nsurprise = 1\n[tool.x]\ny = 1\n'
    assert loads(text).packages == ()


# -- writing ------------------------------------------------------------------------------------------


def test_round_trip() -> None:
    file = PylockFile(
        name="x-1.0+cu118-py3-none-any.whl",
        url="https://x.example/x-1.0%2Bcu118-py3-none-any.whl",
        size=3,
        upload_time="2026-01-02T03:04:05Z",
        hashes={"sha256": A},
    )
    plain = PylockFile(name="y-1.0.tar.gz", path="files/y-1.0.tar.gz", hashes={"sha256": B, "md5": "0"})
    lock = Pylock(
        created_by='te"st\\',
        requires_python="==3.11.*",
        environments=("sys_platform == 'linux'",),
        packages=(
            PylockPackage(name="x", version="1.0+cu118", index="https://x.example/simple", wheels=(file,)),
            PylockPackage(name="y", version="1.0", marker="python_version < '4'", sdist=plain),
            PylockPackage(name="z", archive=file),
        ),
    )
    assert loads(dumps(lock)) == lock
    assert tomllib.loads(dumps(lock))["packages"][0]["wheels"][0]["size"] == 3


def test_a_lock_becomes_a_pylock_that_selects_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    with (
        Index([wheel("a", "1.0", requires=["b"]), sdist("b", "1.0")]) as public,
        Index([wheel("t", "1+cu118", tag=tag)]) as lab,
    ):
        made_for = resolution("a", "t", indexes={"lab": lab.url}, index_packages={"lab": ["t"]})
        reach = pip.Reach(index_url=public.url)
        lock = sample_lock(
            made_for, *pip.lock(made_for, reach=reach, console=quiet_console()), indexes={"lab": lab.url}
        )
        places = pip.locate(lock, made_for, reach=reach, console=quiet_console())
        written = from_lock(lock, places)
        found = {p.name: (p.version, p.hashes, p.source_only) for p in select(loads(dumps(written)), LINUX311)}
        assert found == {p.name: (p.version, p.hashes, p.source_only) for p in lock.pip}
        assert {p.name: p.index for p in written.packages} == {"a": None, "b": None, "t": lab.url}
        del public.dists["b-1.0.tar.gz"]
        public.add(wheel("b", "1.0"))
        gone = pip.locate(lock, made_for, reach=reach, console=quiet_console())
    with pytest.raises(LockError) as caught:
        from_lock(lock, gone)
    assert caught.value.reference == "pylock-unplaced"


# -- requirements.txt ---------------------------------------------------------------------------------

LOCKED = (
    LockedPackage(name="numpy", version="2.4.6", index="default", hashes=(f"sha256:{A}", f"sha256:{B}")),
    LockedPackage(name="torch", version="2.7.1+cu118", index="pytorch-cu118", hashes=(f"sha256:{C}",)),
)


def test_requirements_are_written_and_read_back() -> None:
    urls = {"pytorch-cu118": "https://download.pytorch.org/whl/cu118"}
    text = requirements_text(sample_lock(resolution("torch"), *LOCKED, indexes=urls))
    found = read_requirements(text, LINUX311)
    assert found.packages == (LOCKED[0], replace(LOCKED[1], index="default"))
    assert found.extra_index_urls == (urls["pytorch-cu118"],)


def test_requirements_of_other_tools() -> None:
    text = f"""\
--index-url https://x.example/simple
-f https://x.example/flat   # a page
Zope.Interface[test]==5.0 ; python_version >= "3.8" \\
    --hash=sha256:{A} \\
    --hash sha256:{B}  # two spellings
    # via something
winonly==1.0 ; sys_platform == "win32" --hash=sha256:{C}
six @ https://x.example/six-1.0-py3-none-any.whl \\
    --hash=sha256:{C}
"""
    found = read_requirements(text, LINUX311)
    assert [(p.name, p.version, p.hashes) for p in found.packages] == [
        ("six", "", (f"sha256:{C}",)),
        ("zope-interface", "5.0", (f"sha256:{A}", f"sha256:{B}")),
    ]
    assert found.index_url == "https://x.example/simple"
    assert found.find_links == ("https://x.example/flat",)


def test_every_unpinned_line_is_named_at_once() -> None:
    text = f"a>=1 --hash=sha256:{A}\nb==1.*  --hash=sha256:{A}\nc==1\nd==1 --hash=md5:12\n-r other.txt\nsix; touch /x\n"
    with pytest.raises(LockError) as caught:
        read_requirements(text, LINUX311)
    assert caught.value.reference == "requirements-unpinned"
    assert [line.partition(": ")[0] for line in caught.value.context] == [f"requirements.txt:{n}" for n in range(1, 7)]
