"""Inside an environment: which shared objects lack a library, a symbol version or a symbol. Standard library only.

Runs beside ``probe.py`` and ``elf.py``, handed in as modules ``envforge_probe`` and ``envforge_elf`` (see
``audit.probe_program``); nothing is loaded or executed, only read.
"""

# ruff: noqa: PTH110, PTH112, PTH113, PTH118, PTH119, PTH120, PTH123, PTH202, PTH207
from __future__ import annotations

import itertools
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "envforge_elf" not in sys.modules:
    from envforge import elf, probe  # in this process (the tests)
else:
    elf, probe = sys.modules["envforge_elf"], sys.modules["envforge_probe"]

# Libraries of the NVIDIA driver: the host puts them in, an image must not carry them.
DRIVER = re.compile(r"^lib(cuda|nvidia-[a-z0-9-]+|nvcuvid|nvoptix|cudadebugger)\.so(\.\d+)*$")
BLAS_FILE = re.compile(
    r"^lib(mkl_[a-z0-9_]+|iomp5|armpl[a-z0-9_]*|essl[a-z0-9_]*|sci_[a-z0-9_]+|acml[a-z_]*)\.so(\.\d+)*$"
)
BLAS_TEXT = (
    (b"Intel(R) oneAPI Math Kernel Library", "Intel oneMKL"),
    (b"Intel(R) Math Kernel Library", "Intel MKL"),
    (b"armplversion", "Arm Performance Libraries"),
)
DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")


def system_folders() -> list[str]:
    """Where the dynamic linker looks by itself: LD_LIBRARY_PATH, ld.so.conf, the defaults."""
    found = [one for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    found += _conf("/etc/ld.so.conf", 0)
    for machine in ("x86_64-linux-gnu", "aarch64-linux-gnu"):
        found += ["/lib/" + machine, "/usr/lib/" + machine]
    found += DEFAULT_FOLDERS
    return [one for one in dict.fromkeys(found) if os.path.isdir(one)]


def _conf(path: str, depth: int) -> list[str]:
    import glob

    found: list[str] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [line.split("#")[0].strip() for line in stream]
    except OSError:
        return found
    for line in lines:
        if line.startswith("include ") and depth < 4:
            for one in sorted(glob.glob(os.path.join("/etc", line.split(None, 1)[1]))):
                found += _conf(one, depth + 1)
        elif line:
            found.append(line)
    return found


class World:
    """Every object by path, read once; finds libraries as the dynamic linker would."""

    def __init__(self, objects: list[str], folders: list[str]) -> None:
        self.folders = folders
        self.facts: dict[str, Any] = {}
        self.broken: list[list[str]] = []
        self._defined: dict[str, frozenset[str]] = {}
        self.names: dict[str, list[str]] = {}
        for path in objects:
            one = self.read(path)
            if one is not None and one["dynamic"]:
                for name in {os.path.basename(path), one["soname"]} - {""}:
                    self.names.setdefault(name, []).append(path)

    def read(self, path: str) -> Any:
        """Facts without symbols, None for what is not readable ELF."""
        if path not in self.facts:
            try:
                self.facts[path] = elf.facts(path)
            except (elf.NotElf, OSError) as problem:
                self.facts[path] = None
                self.broken.append([path, str(problem)])
        return self.facts[path]

    def defined(self, path: str) -> frozenset[str]:
        """Symbols a library defines for others."""
        if path not in self._defined:
            with elf.Elf(path) as one:
                self._defined[path] = frozenset(one.symbols()[1])
        return self._defined[path]

    def find(self, name: str, origin: str) -> tuple[str, str]:
        """(path or "", how): how is rpath, system, preloaded, driver or missing."""
        one = self.facts.get(origin) or {"search": []}
        here = os.path.dirname(origin)
        for folder in one["search"]:
            folder = folder.replace("${ORIGIN}", here).replace("$ORIGIN", here)
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                return os.path.realpath(path), "rpath"
        for folder in self.folders:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                return os.path.realpath(path), "system"
        if name in self.names:
            return os.path.realpath(self.names[name][0]), "preloaded"
        return "", "driver" if DRIVER.match(name) else "missing"

    def closure(self, path: str) -> tuple[list[str], bool]:
        """Every library that is loaded with ``path`` (itself first), and whether all were found."""
        found, pending, complete = [path], [path], True
        while pending:
            current = pending.pop()
            one = self.read(current)
            for name in one["needed"] if one else ():
                target, _ = self.find(name, current)
                if not target:
                    complete = False
                elif target not in found:
                    found.append(target)
                    pending.append(target)
        return found, complete


def scope(symbol: str) -> str:
    """The qualified name of a mangled C++ symbol without its parameters ("" when it is not a nested name)."""
    match = re.match(r"_ZNK?(?:[A-Z][a-z])?", symbol)
    if not match:
        match = re.match(r"_Z(?=\d)", symbol)
        if not match:
            return ""
    rest, parts = symbol[match.end() :], []
    while True:
        number = re.match(r"\d+", rest)
        if not number:
            break
        length = int(number.group())
        parts.append(rest[number.end() : number.end() + length])
        rest = rest[number.end() + length :]
    special = re.match(r"[CD]\d", rest)
    return "::".join(parts) + ("::" + special.group() if special else "")


def other_abi(symbol: str, defined: Any) -> str:
    """A defined symbol that is the same function for the other std::string, "" without one."""
    modern = "cxx11" in symbol
    name = scope(symbol)
    if not name or not (modern or "Ss" in symbol):
        return ""
    for one in defined:
        # A cheap test first: there are hundreds of thousands of symbols.
        flavoured = "Ss" in one if modern else "cxx11" in one
        if flavoured and ("cxx11" in one) != modern and scope(one) == name:
            return str(one)
    return ""


def _undefined(world: World, path: str, interpreter: list[str], everywhere: set[str]) -> list[list[str]]:
    """[symbol, symbol of the other C++ ABI or ""] of strong symbols nobody defines."""
    libraries, complete = world.closure(path)
    with elf.Elf(path) as one:
        undefined = [name for name, weak in one.symbols()[0].items() if not weak]
    if not complete or not undefined:
        return []
    # Sets are only asked, never joined: a framework exports hundreds of thousands of names.
    tables = [world.defined(library) for library in [*libraries[1:], *interpreter]]
    left = [name for name in undefined if name not in everywhere and not any(name in table for table in tables)]
    # Symbols of the other string type first: they say why the rest is missing.
    left.sort(key=lambda name: ("cxx11" not in name, name))
    candidates = itertools.chain(everywhere, *tables)
    flavoured = [one for one in candidates if "cxx11" in one or "Ss" in one] if left else []
    return [[name, other_abi(name, flavoured) if number < 50 else ""] for number, name in enumerate(left)]


def analyse(objects: list[str], folders: list[str], executable: str, symbols: bool = True) -> dict[str, Any]:
    """What is wrong with each object: lists of [path, …] by kind."""
    world = World(objects, folders)
    rows: dict[str, list[list[Any]]] = {"missing": [], "versions": [], "undefined": [], "machine": [], "blas": []}
    interpreter = world.closure(os.path.realpath(executable))[0] if os.path.exists(executable) else []
    machine = (world.read(interpreter[0]) or {}).get("machine") if interpreter else None
    good = []
    for path in objects:
        one = world.facts.get(path)
        if one is None:
            continue
        if machine is not None and one["machine"] != machine:
            rows["machine"].append([path, one["machine"], machine])
            continue
        if one["dynamic"]:
            good.append(path)
            _libraries(world, path, one, rows)
        _blas(path, rows)
    if symbols:
        everywhere: set[str] = set()
        for path in good:
            everywhere |= world.defined(path)
        for path in good:
            found = _undefined(world, path, interpreter, everywhere)
            if found:
                rows["undefined"].append([path, len(found), found[:20]])
    return dict(rows, broken=world.broken, objects=len(objects))


def _libraries(world: World, path: str, one: Any, rows: dict[str, list[list[Any]]]) -> None:
    for name in one["needed"]:
        target, how = world.find(name, path)
        if how == "missing":
            rows["missing"].append([path, name])
            continue
        offered = (world.read(target) or {}).get("offers") if target else None
        wanted = one["versions"].get(name, [])
        lacking = [version for version in wanted if offered and version not in offered]
        if lacking:
            rows["versions"].append([path, name, target, lacking])


def _blas(path: str, rows: dict[str, list[list[Any]]]) -> None:
    name = os.path.basename(path)
    if BLAS_FILE.match(name):
        rows["blas"].append([path, "file name " + name])
    elif os.path.getsize(path) > 1 << 20 and not probe.CUDA_LIBRARY.match(name):
        with elf.Elf(path) as one:
            for text, maker in BLAS_TEXT:
                if one.contains(text):
                    rows["blas"].append([path, maker + " inside"])
                    break


def main(options: dict[str, Any]) -> None:
    """Gather, analyse and print."""
    prefix = options.get("prefix") or probe.prefix_of(sys.executable)
    roots = [prefix] if probe.is_private(prefix) else probe.site_folders(prefix)
    files = probe.files_of(roots, False)
    found = analyse(probe.shared_objects(files), system_folders(), sys.executable, bool(options.get("symbols", True)))
    probe.emit(dict(found, prefix=prefix))
