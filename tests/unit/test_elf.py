"""The ELF reader against readelf's account of real libraries, and against damaged files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from envforge import elf, process

SAMPLES = sorted(
    {Path(one).resolve() for pattern in ("libstdc++.so.6*", "libc.so.6", "libm.so.6", "libz.so.1*", "libexpat.so.1*")
     for root in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib")
     for one in Path(root).glob(pattern)}
)  # fmt: skip


def readelf(*words: str | Path) -> str:
    done = process.run(["readelf", "-W", *words], env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    assert done.ok, done.tail()
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    assert shutil.which("readelf") and shutil.which("gcc"), "binutils and gcc are needed to check the reader"
    assert SAMPLES


@pytest.mark.parametrize("path", SAMPLES, ids=lambda one: one.name)
def test_needed_soname_and_versions_as_readelf_says(path: Path) -> None:
    found = elf.facts(str(path), symbols=True)
    dynamic = readelf("-d", path)
    assert found["needed"] == re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert [found["soname"]] == re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    versions = readelf("-V", path)
    for library, names in found["versions"].items():
        for name in names:
            assert f"Name: {name}" in versions, (library, name)
    assert sum(map(len, found["versions"].values())) == len(
        set(re.findall(r"File: (\S+)", versions))
        and re.findall(r"Name: (\S+)  Flags: \S+(?: \| \S+)?  Version: ", versions)
    )


@pytest.mark.parametrize("path", SAMPLES, ids=lambda one: one.name)
@pytest.mark.parametrize("sections", [True, False], ids=["sections", "hash-only"])
def test_symbols_as_readelf_says(path: Path, sections: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sections:
        monkeypatch.setattr(elf.Elf, "_section_symbols", lambda self: 0)
    found = elf.facts(str(path), symbols=True)
    undefined, defined = set(), set()
    for line in readelf("--dyn-syms", path).splitlines():
        words = line.split()
        if len(words) >= 8 and words[0].rstrip(":").isdigit() and words[4] in ("GLOBAL", "WEAK", "UNIQUE"):
            (undefined if words[6] == "UND" else defined).add(words[7].split("@")[0])
    assert set(found["undefined"]) == undefined
    assert set(found["defined"]) == defined
    assert len(defined) > 10


def compile_library(folder: Path, name: str, source: str, *flags: str) -> Path:
    """A shared library out of C text."""
    (folder / f"{name}.c").write_text(source)
    target = folder / f"lib{name}.so"
    done = process.run(["gcc", "-shared", "-fPIC", "-o", target, folder / f"{name}.c", *flags])
    assert done.ok, done.tail()
    return target


def test_rpath_needed_and_weak_symbols_of_a_fresh_library(tmp_path: Path) -> None:
    compile_library(tmp_path, "one", "int one(void) { return 1; }\n", "-Wl,-soname,libone.so.1")
    source = "int one(void); __attribute__((weak)) int maybe(void);\n"
    source += "int two(void) { return one() + (maybe ? maybe() : 0); }\n"
    two = compile_library(tmp_path, "two", source, f"-L{tmp_path}", "-lone", "-Wl,-rpath,$ORIGIN/../lib:/opt/x")
    found = elf.facts(str(two), symbols=True)
    assert found["needed"][0] == "libone.so.1"
    assert found["search"] == ["$ORIGIN/../lib", "/opt/x"]
    assert found["undefined"]["one"] is False and found["undefined"]["maybe"] is True
    assert "two" in found["defined"]
    with elf.Elf(str(two)) as one:
        assert one.contains(b"libone.so.1") and not one.contains(b"libthree")


def test_an_executable_without_exports_has_only_real_symbols(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text('int puts(const char *s); int main(void) { return puts("x"); }\n')
    done = process.run(["gcc", "-o", tmp_path / "main", tmp_path / "main.c", "-Wl,--hash-style=gnu"])
    assert done.ok, done.tail()
    found = elf.facts(str(tmp_path / "main"), symbols=True)
    assert "puts" in found["undefined"]
    assert all(re.fullmatch(r"[A-Za-z_][\w.]*", name) for name in found["undefined"])
    assert found["interpreter"].startswith("/lib")


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF", b"\x7fELF\x01\x01" + b"\0" * 100], ids=repr)
def test_what_is_not_elf_is_said_to_be_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(elf.NotElf, match=r"x\.so"):
        elf.facts(str(path), symbols=True)


def test_every_truncation_and_damage_ends_in_our_error(tmp_path: Path) -> None:
    whole = compile_library(tmp_path, "cut", "int cut(void) { return 1; }\n").read_bytes()
    path = tmp_path / "damaged.so"
    ended = 0
    for length in range(1, len(whole), max(1, len(whole) // 200)):
        path.write_bytes(whole[:length])
        try:
            elf.facts(str(path), symbols=True)
        except elf.NotElf:
            ended += 1
    assert ended > 5
    for position in range(0, 2000, 7):
        path.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        try:
            elf.facts(str(path), symbols=True)
        except elf.NotElf:
            ended += 1
    assert ended > 10
