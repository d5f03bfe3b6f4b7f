"""Reads what the dynamic linker reads of an ELF file: needed libraries, search paths, symbols and their versions.

Standard library only and without imports from envforge: this text also runs inside images (see ``probe.py``).
Python 3.8 or newer.
"""

# ruff: noqa: PTH123, UP031
from __future__ import annotations

import mmap
import struct
from typing import Any

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
DT_GNU_HASH, DT_VERSYM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD
WEAK, SHT_DYNSYM = 2, 11


class NotElf(Exception):
    """The file is not an ELF file this reader understands (64 bit, little or big endian)."""


class Elf:
    """One file's dynamic part. Use as a context manager or call :meth:`close`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stream = open(path, "rb")  # noqa: SIM115 - closed by close()
        try:
            self._data = mmap.mmap(self._stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (ValueError, OSError) as problem:
            self._stream.close()
            raise NotElf("%s: %s" % (path, problem)) from problem
        try:
            self._read()
        except (struct.error, IndexError, ValueError) as problem:
            self.close()
            raise NotElf("%s: %s" % (path, problem)) from problem
        except NotElf:
            self.close()
            raise

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._data.close()
        self._stream.close()

    def _read(self) -> None:
        data = self._data
        if data[:4] != b"\x7fELF":
            raise NotElf("%s: no ELF header" % self.path)
        if data[4] != 2:
            raise NotElf("%s: not 64 bit" % self.path)
        self._order = "<" if data[5] == 1 else ">"
        self.type, self.machine = struct.unpack_from(self._order + "HH", data, 16)
        (offset,) = struct.unpack_from(self._order + "Q", data, 32)
        size, count = struct.unpack_from(self._order + "HH", data, 54)
        self._loads = []
        dynamic = None
        self.interpreter = ""
        for number in range(count):
            kind, _, start, address, _, length, _, _ = struct.unpack_from(
                self._order + "IIQQQQQQ", data, offset + number * size
            )
            if kind == PT_LOAD:
                self._loads.append((address, start, length))
            elif kind == PT_DYNAMIC:
                dynamic = (start, length)
            elif kind == PT_INTERP:
                self.interpreter = data[start : start + length].rstrip(b"\0").decode("utf-8", "replace")
        self.dynamic = dynamic is not None
        self._dynsym = self._section_symbols()
        self._tags: dict[int, list[int]] = {}
        if dynamic is not None:
            start, length = dynamic
            for tag, value in struct.iter_unpack(self._order + "qQ", data[start : start + length - length % 16]):
                if tag == 0:
                    break
                self._tags.setdefault(tag, []).append(value)
        self._strings = b""
        if DT_STRTAB in self._tags:
            start = self._place(self._tags[DT_STRTAB][0])
            self._strings = data[start : start + self._tags.get(DT_STRSZ, [0])[0]]

    def _section_symbols(self) -> int:
        """Number of dynamic symbols by the section table; 0 where it was stripped away."""
        (offset,) = struct.unpack_from(self._order + "Q", self._data, 40)
        size, count = struct.unpack_from(self._order + "HH", self._data, 58)
        for number in range(count if offset else 0):
            position = offset + number * size
            if position + 64 > len(self._data):
                return 0
            (kind,) = struct.unpack_from(self._order + "I", self._data, position + 4)
            if kind == SHT_DYNSYM:
                (length,) = struct.unpack_from(self._order + "Q", self._data, position + 32)
                return int(length // 24)
        return 0

    def _place(self, address: int) -> int:
        """Position in the file of a virtual address."""
        for base, start, length in self._loads:
            if base <= address < base + length:
                return int(start + address - base)
        raise NotElf("%s: address %#x is in no segment" % (self.path, address))

    def _text(self, offset: int) -> str:
        if not 0 <= offset < len(self._strings):
            raise NotElf("%s: a name lies outside the string table" % self.path)
        end = self._strings.find(b"\0", offset)
        return self._strings[offset : end if end >= 0 else None].decode("utf-8", "replace")

    @property
    def needed(self) -> list[str]:
        """Names of the libraries it asks for, in order."""
        return [self._text(one) for one in self._tags.get(DT_NEEDED, [])]

    @property
    def soname(self) -> str:
        """Its own name, "" without one."""
        return self._text(self._tags[DT_SONAME][0]) if DT_SONAME in self._tags else ""

    @property
    def search(self) -> list[str]:
        """RUNPATH, or RPATH when there is none: folders with ``$ORIGIN`` as written."""
        for tag in (DT_RUNPATH, DT_RPATH):
            if tag in self._tags:
                return [one for one in self._text(self._tags[tag][0]).split(":") if one]
        return []

    def versions_needed(self) -> dict[str, list[str]]:
        """library -> symbol versions asked of it (``GLIBC_2.34``, ``GLIBCXX_3.4.30``, ``CXXABI_1.3.13``)."""
        found: dict[str, list[str]] = {}
        for library, name, _ in self._needs():
            found.setdefault(library, []).append(name)
        return {library: sorted(set(names)) for library, names in found.items()}

    def _needs(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = []
        if DT_VERNEED not in self._tags:
            return found
        position = self._place(self._tags[DT_VERNEED][0])
        for _ in range(self._tags.get(DT_VERNEEDNUM, [0])[0]):
            _, count, name, first, following = struct.unpack_from(self._order + "HHIII", self._data, position)
            inner = position + first
            for _ in range(count):
                _, _, index, version, step = struct.unpack_from(self._order + "IHHII", self._data, inner)
                found.append((self._text(name), self._text(version), index & 0x7FFF))
                inner += step
            position += following
        return found

    def versions_defined(self) -> list[str]:
        """Symbol versions it offers (its own name, which is the first, left out)."""
        found = []
        if DT_VERDEF in self._tags:
            position = self._place(self._tags[DT_VERDEF][0])
            for _ in range(self._tags.get(DT_VERDEFNUM, [0])[0]):
                fields = struct.unpack_from(self._order + "HHHHIII", self._data, position)
                flags, first, following = fields[1], fields[5], fields[6]
                (name,) = struct.unpack_from(self._order + "I", self._data, position + first)
                if not flags & 1:
                    found.append(self._text(name))
                position += following
        return found

    def _symbol_count(self) -> int:
        if self._dynsym:
            return self._dynsym
        if DT_HASH in self._tags:
            start = self._place(self._tags[DT_HASH][0])
            return int(struct.unpack_from(self._order + "II", self._data, start)[1])
        if DT_GNU_HASH not in self._tags:
            return 0
        start = self._place(self._tags[DT_GNU_HASH][0])
        buckets, first, bloom, _ = struct.unpack_from(self._order + "IIII", self._data, start)
        table = start + 16 + bloom * 8
        last = max(struct.unpack_from("%s%dI" % (self._order, buckets), self._data, table), default=0)
        if last < first:
            return self._undefined_only(first)
        chain = table + buckets * 4
        while True:
            (value,) = struct.unpack_from(self._order + "I", self._data, chain + (last - first) * 4)
            last += 1
            if value & 1:
                return int(last)

    def _undefined_only(self, first: int) -> int:
        """Nothing is exported: the hash does not tell the number; symbols end where the strings begin."""
        symbols, strings = self._tags[DT_SYMTAB][0], self._tags[DT_STRTAB][0]
        return (strings - symbols) // 24 if strings > symbols else first

    def symbols(self) -> tuple[dict[str, bool], list[str]]:
        """(undefined name -> whether it is only weak, names it defines for others)."""
        undefined: dict[str, bool] = {}
        defined: list[str] = []
        count = self._symbol_count()
        if not count or DT_SYMTAB not in self._tags:
            return undefined, defined
        start = self._place(self._tags[DT_SYMTAB][0])
        strings = self._strings
        for name, info, _, section, _, _ in struct.iter_unpack(
            self._order + "IBBHQQ", self._data[start : start + count * 24]
        ):
            bind = info >> 4
            if not name or bind == 0:
                continue
            text = strings[name : strings.find(b"\0", name)].decode("utf-8", "replace")
            if section == 0:
                undefined[text] = undefined.get(text, True) and bind == WEAK
            else:
                defined.append(text)
        return undefined, defined

    def contains(self, needle: bytes) -> bool:
        """Whether these bytes stand anywhere in the file."""
        return self._data.find(needle) >= 0


def facts(path: str, symbols: bool = False) -> dict[str, Any]:
    """All of it as plain values; raises :class:`NotElf`."""
    with Elf(path) as one:
        undefined, defined = one.symbols() if symbols else ({}, [])
        return {
            "path": path,
            "machine": one.machine,
            "dynamic": one.dynamic,
            "interpreter": one.interpreter,
            "soname": one.soname,
            "needed": one.needed,
            "search": one.search,
            "versions": one.versions_needed(),
            "offers": one.versions_defined(),
            "undefined": undefined,
            "defined": defined,
        }
