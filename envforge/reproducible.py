"""Two builds of one lock, byte for byte: a built image rewritten so that nothing of the moment of building is left.

Engines write the clock into every layer (times of files and folders, of the image and its history), and no engine
before BuildKit 0.13 can leave that out. So the finished image is taken out as an archive, the layers above the base
are written again with one fixed time, without logs and without bytecode nobody claims, and it is put back.

How equal two builds are has three names: ``same versions`` (what the lock promises), ``same files`` (paths, contents,
modes, owners, links), ``same bytes`` (every layer and the image's configuration).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal

from envforge.errors import EngineError

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.engine import BuildOptions, Built, Engine
    from envforge.lock import Lock
    from envforge.plan import Rendered
    from envforge.resolve import Resolution

Level = Literal["same bytes", "same files", "same versions", "different versions"]
# 1980-01-02: zip files, wheels among them, know no time before 1980, in any time zone.
EPOCH = 315_619_200
_CREATED = "1980-01-02T00:00:00Z"
# Written by tools as they run; nothing reads them to work.
_LEFT_OUT = re.compile(
    r"var/log/.*[^/]|var/cache/ldconfig/aux-cache|var/cache/debconf/.*-old|var/lib/dpkg/.*-old"
    r"|var/cache/apt/(?:pkgcache|srcpkgcache)\.bin|root/\.cache/.*|etc/(?:passwd|group|shadow|gshadow|subuid|subgid)-"
)
# Engines mount their own over these; where the base has none, an empty file stays behind.
_MOUNTED = {"etc/hosts", "etc/hostname", "etc/resolv.conf", "run/.containerenv", ".dockerenv"}
_VERSION = re.compile(r"(?:.*/)?([^/]+)\.dist-info/METADATA|(?:.*/)?conda-meta/([^/]+)\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewritten:
    """``image``: digest of the configuration (the id under Docker's own image store). ``layers``: digests of the
    layer tars, the base's first. ``files``: path -> one line of what it is, above the base.
    """

    image: str
    layers: tuple[str, ...]
    files: Mapping[str, str]

    @property
    def files_digest(self) -> str:
        """One digest over all files above the base."""
        text = "\n".join(f"{path}\0{value}" for path, value in sorted(self.files.items()))
        return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def versions(self) -> tuple[str, ...]:
        """``name-version`` of every installed package, sorted."""
        found = {match[1] or match[2] for path in self.files if (match := _VERSION.fullmatch(path))}
        return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How equal two builds are. ``differences``: paths, layers or packages that differ, readable, at most 200."""

    level: Level
    differences: tuple[str, ...]


def compare(first: Rewritten, second: Rewritten) -> Comparison:
    """The level two builds reach, and exactly what keeps them from the next one. Pure."""
    if first.versions != second.versions:
        ours, theirs = set(first.versions), set(second.versions)
        lines = [f"only in one: {one}" for one in sorted(ours ^ theirs)]
        return Comparison(level="different versions", differences=tuple(lines[:200]))
    paths = sorted({*first.files, *second.files})
    changed = [path for path in paths if first.files.get(path) != second.files.get(path)]
    if changed:
        lines = [f"{path}: {first.files.get(path, 'absent')} | {second.files.get(path, 'absent')}" for path in changed]
        return Comparison(level="same versions", differences=tuple(lines[:200]))
    layers = [
        f"layer {number}: {one[:19]} | {other[:19]}"
        for number, (one, other) in enumerate(zip(first.layers, second.layers, strict=False))
        if one != other
    ]
    if len(first.layers) != len(second.layers):
        layers.append(f"{len(first.layers)} | {len(second.layers)} layers")
    if layers or first.image != second.image:
        return Comparison(level="same files", differences=tuple(layers) or ("the image's configuration",))
    return Comparison(level="same bytes", differences=())


# --- rewriting -----------------------------------------------------------------------------------------------


def rewrite(archive: tarfile.TarFile, base_layers: Sequence[str], target: IO[bytes], spool: IO[bytes]) -> Rewritten:
    """Write a loadable archive of the same image without traces of the moment. ``spool``: scratch space for a layer.

    ``archive`` is what `docker save` gives (both its forms); layers named in ``base_layers`` stay as they are.
    Raises ValueError when it holds no single image.
    """
    rows = json.loads(_read(archive, "manifest.json"))
    if len(rows) != 1:
        raise ValueError(f"the archive holds {len(rows)} images")
    config = json.loads(_read(archive, rows[0]["Config"]))
    old = list(config["rootfs"]["diff_ids"])
    kept = len(base_layers) if old[: len(base_layers)] == list(base_layers) else 0
    new: list[str] = []
    files: dict[str, str] = {}
    folders: dict[str, tuple[Any, ...]] = {}
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as out:
        for number, name in enumerate(rows[0]["Layers"]):
            spool.seek(0)
            spool.truncate()
            with _member(archive, name) as stream, tarfile.open(fileobj=stream, mode="r:*") as layer:
                if number < kept:
                    _stack(folders, layer.getmembers())
                    _copy_layer(stream, spool)
                else:
                    files |= _rewrite_layer(layer, spool, folders)
            new.append(_add_layer(out, spool, number))
        if new[:kept] != old[:kept]:
            raise ValueError("a base layer is not what its digest says")
        content = _config(config, new)
        digest = hashlib.sha256(content).hexdigest()
        _add(out, f"{digest}.json", content)
        manifest = [
            {"Config": f"{digest}.json", "RepoTags": None, "Layers": [f"{n}/layer.tar" for n in range(len(new))]}
        ]
        _add(out, "manifest.json", json.dumps(manifest).encode())
    return Rewritten(image=f"sha256:{digest}", layers=tuple(new), files=files)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """A file of the archive; old engines save a layer that occurs twice as a link to the first."""
    member = archive.getmember(name)
    if member.issym():
        joined = PurePosixPath(name).parent / member.linkname
        parts: list[str] = []
        for part in joined.parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        member = archive.getmember("/".join(parts))
    stream = archive.extractfile(member)
    if stream is None:
        raise ValueError(f"{name} is no file of the archive")
    return stream


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    with _member(archive, name) as stream:
        return stream.read()


def _add(out: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(content), EPOCH
    out.addfile(member, io.BytesIO(content))


def _add_layer(out: tarfile.TarFile, spool: IO[bytes], number: int) -> str:
    """Append the spooled layer; its digest."""
    size = spool.seek(0, io.SEEK_END)
    spool.seek(0)
    digest = hashlib.file_digest(spool, "sha256").hexdigest()  # type: ignore[arg-type]
    spool.seek(0)
    member = tarfile.TarInfo(f"{number}/layer.tar")
    member.size, member.mtime = size, EPOCH
    out.addfile(member, spool)
    return f"sha256:{digest}"


def _copy_layer(stream: IO[bytes], spool: IO[bytes]) -> None:
    """A base layer as it is, unpacked when the engine keeps it compressed: its digest is that of the bare tar."""
    import gzip

    stream.seek(0)
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    source: Any = gzip.GzipFile(fileobj=stream) if packed else stream
    while block := source.read(1 << 20):
        spool.write(block)


def _attributes(member: tarfile.TarInfo) -> tuple[Any, ...]:
    extra = sorted((key, value) for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr."))
    return member.mode & 0o7777, member.uid, member.gid, tuple(extra)


def _stack(folders: dict[str, tuple[Any, ...]], members: Sequence[tarfile.TarInfo]) -> None:
    """Take a layer's folders, and what it removes, into the picture of everything below the next layer."""
    for member in members:
        name = member.name.removeprefix("./")
        parent, _, last = name.rpartition("/")
        if last.startswith(".wh."):
            gone = parent if last == ".wh..wh..opq" else f"{parent}/{last[4:]}".lstrip("/")
            for path in [one for one in folders if one == gone or one.startswith(f"{gone}/")]:
                del folders[path]
    for member in members:
        if member.isdir():
            folders[member.name.removeprefix("./")] = _attributes(member)


def _untouched(members: Sequence[tarfile.TarInfo], folders: Mapping[str, tuple[Any, ...]]) -> set[str]:
    """Folders that are in a layer only because something came and went in them: nothing in it, nothing new about it."""
    parents = {str(parent) for member in members for parent in PurePosixPath(member.name.removeprefix("./")).parents}
    found = set()
    for member in members:
        name = member.name.removeprefix("./")
        same = folders.get(name) == _attributes(member) or name.endswith("/__pycache__")
        if member.isdir() and name not in parents and same:
            found.add(name)
    return found


def _traces(members: Sequence[tarfile.TarInfo], claimed: set[str], folders: Mapping[str, tuple[Any, ...]]) -> set[str]:
    """Names of the entries to leave out; a folder that becomes empty by that is looked at again."""
    gone = set()
    for member in members:
        name = member.name.removeprefix("./")
        stub = name in _MOUNTED and member.isreg() and member.size == 0
        if stub or _LEFT_OUT.fullmatch(name) or (name.endswith(".pyc") and name not in claimed):
            gone.add(name)
    while True:
        left = [member for member in members if member.name.removeprefix("./") not in gone]
        more = _untouched(left, folders)
        if not more:
            return gone
        gone |= more


def _rewrite_layer(layer: tarfile.TarFile, spool: IO[bytes], folders: dict[str, tuple[Any, ...]]) -> dict[str, str]:
    """One layer with fixed times; path -> what it is. The order is the engine's own: it walks folders sorted.

    ``folders``: what lies below this layer; brought up to date.
    """
    members = layer.getmembers()
    claimed = _claimed(layer, members)
    times = _source_times(layer, members, claimed)
    gone = _traces(members, claimed, folders)
    _stack(folders, members)
    found: dict[str, str] = {}
    with tarfile.open(
        fileobj=spool, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as out:
        for member in members:
            name = member.name.removeprefix("./")
            if name in gone:
                continue
            member.mtime = times.get(name, EPOCH)
            member.mode &= 0o7777  # Docker repeats the kind of entry there
            member.uname = member.gname = ""
            member.pax_headers = {
                key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")
            }
            value = ""
            if member.isreg():
                stream = layer.extractfile(member)
                assert stream is not None  # a regular file
                if name == "etc/shadow":
                    content = undated(stream.read())
                    member.size, stream = len(content), io.BytesIO(content)
                reader = _Hashing(stream)
                out.addfile(member, reader)
                value = reader.digest()
            else:
                out.addfile(member)
                value = member.linkname
            kind = member.type.decode("ascii", "replace")
            found[name] = f"{kind} {member.mode:o} {member.uid}:{member.gid} {member.size} {value}"
    return found


def undated(shadow: bytes) -> bytes:
    """/etc/shadow without the day an account was made, where it has no password whose age could matter."""
    lines = []
    for line in shadow.split(b"\n"):
        fields = line.split(b":")
        if len(fields) == 9 and fields[1][:1] in (b"!", b"*"):
            fields[2] = b""
        lines.append(b":".join(fields))
    return b"\n".join(lines)


class _Hashing(io.RawIOBase):
    """Reads through and hashes on the way."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self._hash.update(block)
        return block

    def digest(self) -> str:
        return self._hash.hexdigest()


def _claimed(layer: tarfile.TarFile, members: Sequence[tarfile.TarInfo]) -> set[str]:
    """Bytecode that a package itself brings (its RECORD or conda-meta lists it): removing it would be tampering."""
    if not any(member.name.endswith(".pyc") for member in members):
        return set()
    found: set[str] = set()
    for member in members:
        if not member.isreg():
            continue
        if member.name.endswith(".dist-info/RECORD"):
            site = PurePosixPath(member.name).parents[1]
            rows = _read(layer, member.name).decode("utf-8", "replace").splitlines()
            found |= {str(site / row.split(",")[0]) for row in rows if ".pyc," in row}
        elif "/conda-meta/" in member.name and member.name.endswith(".json"):
            prefix = PurePosixPath(member.name).parents[1]
            try:
                rows = json.loads(_read(layer, member.name)).get("files") or []
            except ValueError:
                continue
            found |= {str(prefix / row) for row in rows if str(row).endswith(".pyc")}
    return found


def _source_times(layer: tarfile.TarFile, members: Sequence[tarfile.TarInfo], claimed: set[str]) -> Mapping[str, int]:
    """Times of sources that a package's own bytecode was made for: with another one Python would not use it."""
    found: dict[str, int] = {}
    for member in members:
        match = re.fullmatch(r"(.*?)(?:__pycache__/)?([^/]+?)(?:\.cpython-\d+)?(?:\.opt-\d)?\.pyc", member.name)
        if member.name not in claimed or match is None or not member.isreg():
            continue
        stream = layer.extractfile(member)
        head = stream.read(16) if stream is not None else b""
        if len(head) == 16 and head[4:8] == b"\0\0\0\0":  # checked by time, not by hash
            found[f"{match[1]}{match[2]}.py"] = int.from_bytes(head[8:12], "little")
    return found


def _config(config: Mapping[str, Any], layers: Sequence[str]) -> bytes:
    """The image's configuration without times and names of the build; canonical JSON."""
    kept = ("architecture", "variant", "os", "author", "config")
    found: dict[str, Any] = {key: config[key] for key in kept if config.get(key)}
    found["config"] = {key: value for key, value in (config.get("config") or {}).items() if key != "Hostname"}
    found["config"].pop("Image", None)  # id of the step before, by the classic builder
    found["created"] = _CREATED
    # Podman's comments name the images between the steps.
    told = ("created_by", "empty_layer", "author")
    rows = [{key: row[key] for key in told if row.get(key)} for row in config.get("history") or ()]
    found["history"] = [row | {"created": _CREATED} for row in rows]
    found["rootfs"] = {"type": "layers", "diff_ids": list(layers)}
    return json.dumps(found, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


# --- proving -------------------------------------------------------------------------------------------------


def prove(
    engine: Engine,
    built: Built,
    rendered: Rendered,
    resolution: Resolution,
    lock: Lock,
    options: BuildOptions,
    *,
    console: Console,
) -> dict[str, Any]:
    """The level this build reached, for the record: level, compared_with, image, layers, files_digest, differences.

    An earlier record of the same image proves it; else the lock is built once more from empty caches, and that image
    is removed. A prefix of the local engine holds its own path, so there the lock's own promise is all.
    """
    mine = built.rewritten
    if mine is None:
        console.note("reproducible: same versions (every file is checked by hash; a prefix holds its own path)")
        return {"level": "same versions", "compared_with": "the hashes of the lock", "differences": []}
    earlier = _earlier(lock, mine)
    if earlier is not None:
        comparison, other = Comparison(level="same bytes", differences=()), f"the record of {earlier}"
    else:
        console.note("reproducible: building once more from empty caches, to compare …")
        again = engine.build(rendered, resolution, lock, replace(options, no_cache=True))
        if again.image != built.image:
            with suppress(EngineError):
                engine.remove(again.image)
        assert again.rewritten is not None  # the same engine
        comparison, other = compare(mine, again.rewritten), "a second build from empty caches"
    console.note(f"reproducible: {comparison.level}, compared with {other}")
    for line in comparison.differences[:10]:
        console.note(f"  {line}")
    return {
        "level": comparison.level,
        "compared_with": other,
        "image": mine.image,
        "layers": list(mine.layers),
        "files_digest": mine.files_digest,
        "differences": list(comparison.differences),
    }


def _earlier(lock: Lock, mine: Rewritten) -> str | None:
    """When the very same bytes were built before, from a record; None when no record says so."""
    from envforge import record

    for one in record.read_all(lock.name):
        found = one.get("reproducible") or {}
        if found.get("image") == mine.image and one.get("inputs_digest") == lock.inputs_digest:
            return str(one.get("written"))
    return None
