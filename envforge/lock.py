"""Lock records, their canonical bytes, the inputs digest, and whether a lock still fits.

``lockfiles/NAME/envforge.lock.yaml`` ties together ``pip.<index label>.txt`` (hash-checked requirement
files, one per index), ``conda.<subdir>.txt`` (explicit, with sha256) and ``tools.txt`` (the installer).
The hashes stand in the text files only; the YAML holds the sha256 of each, so it stays short and quick to read.
Everything here is pure except :func:`find`, :func:`read` and :func:`write` at the end.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from envforge.errors import LockError, UsageError

if TYPE_CHECKING:
    from envforge.resolve import Resolution

LOCK_SCHEMA = 1
INPUTS_SCHEMA = 1
LOCK_FILE = "envforge.lock.yaml"
TOOLS_FILE = "tools.txt"
# Raised with every change under templates/ that changes an image: it is part of the identity.
TEMPLATE_VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._-]*)?")
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_CONDA_HOST = "https://conda.anaconda.org/"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPackage:
    """A pip package: normalised name, exact version, index label, sorted ``sha256:…`` of every file allowed."""

    name: str
    version: str
    index: str
    hashes: tuple[str, ...]
    via: tuple[str, ...] = ()  # who needs it: package names, or "spec"
    source_only: bool = False  # no wheel for the target: it will be compiled
    yanked: str | None = None  # why its maker withdrew this release; "" when no reason was given
    url: str | None = None  # a direct reference (archive), instead of a file of the index


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedConda:
    """A conda package of the explicit lock. ``channel`` is a name (``conda-forge``) or a whole URL."""

    name: str
    version: str
    build: str
    channel: str
    subdir: str
    filename: str
    sha256: str
    size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedBase:
    """The base image: its tag always, a digest only when it is an image index's; else the reason why not."""

    image: str
    digest: str | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """One environment's lock. ``resolution_digest`` says what it was made from, ``inputs_digest`` is the identity.

    ``made_from`` is the resolution's document (see :func:`resolution_document`): with it a stale lock can
    say in words what changed. ``template_version`` is that of the templates when the lock was written.
    """

    name: str
    resolution_digest: str
    inputs_digest: str
    python: str
    platform: str
    base: LockedBase
    pip: tuple[LockedPackage, ...]
    conda: tuple[LockedConda, ...] = ()
    apt: tuple[tuple[str, str], ...] = ()  # (package, exact version) when known
    indexes: Mapping[str, str] = field(default_factory=dict)  # label -> URL, never the default index
    tools: Mapping[str, str] = field(default_factory=dict)  # installers used inside the image: {"uv": "0.9.1"}
    tool_packages: tuple[LockedPackage, ...] = ()  # the same, with hashes: the lines of tools.txt
    conda_settings: Mapping[str, str] = field(default_factory=dict)  # priority, virtual packages
    as_of: str | None = None
    notes: tuple[str, ...] = ()  # "not rebuilt here", "transcribed from …"
    made_from: Mapping[str, Any] = field(default_factory=dict)
    template_version: int = TEMPLATE_VERSION


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """Whether a lock fits a resolution; ``changes`` says in words what differs."""

    verdict: Literal["ok", "stale", "foreign"]
    changes: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------------------- identity


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def resolution_document(resolution: Resolution) -> dict[str, Any]:
    """What of a resolution decides an image, field by field and by hand.

    Left out on purpose: the description and the reasons (words only), the verdict, and where the spec lies.
    """
    cuda = resolution.cuda
    return {
        "schema": INPUTS_SCHEMA,
        "name": resolution.name,
        "kind": resolution.kind,
        "python": resolution.python,
        "platform": resolution.platform,
        "glibc": resolution.glibc,
        "base": {
            "image": resolution.base.image,
            "digest": resolution.base.digest,
            "system": resolution.base.system,
            "python_from": resolution.base.python_from,
        },
        "cuda": None
        if cuda is None
        else {
            "version": cuda.version,
            "from": cuda.source,
            "toolchain": cuda.toolchain,
            "compat": cuda.compat,
            "cudnn": cuda.cudnn,
        },
        "frameworks": {
            chosen.name: {
                "distribution": chosen.distribution,
                "version": chosen.version,
                "accelerator": chosen.accelerator,
                "cuda": chosen.cuda,
                "index": chosen.index,
            }
            for chosen in resolution.frameworks
        },
        "requirements": sorted([wanted.text, wanted.index] for wanted in resolution.requirements),
        "constraints": sorted([bound.text, bound.index] for bound in resolution.constraints),
        "indexes": dict(resolution.indexes),
        "index_packages": {label: list(globs) for label, globs in resolution.index_packages.items()},
        "find_links": sorted(resolution.find_links),
        "conda": list(resolution.conda),
        "channels": list(resolution.channels),
        "apt": {"packages": list(resolution.apt), "snapshot": resolution.apt_options.snapshot},
        "env": dict(resolution.env),
        "user": {"name": resolution.user.name, "uid": resolution.user.uid, "gid": resolution.user.gid},
        "workdir": resolution.workdir,
        "files": [[item.source, item.target, item.install] for item in resolution.files],
        "hooks": [[hook.name, list(hook.command), hook.after, hook.user] for hook in resolution.hooks],
        "smoke": {
            "level": resolution.smoke.level,
            "timeout": resolution.smoke.timeout,
            "without": dict(resolution.smoke.without),
        },
        "budget": {"size_mb": resolution.budget.size_mb, "build_seconds": resolution.budget.build_seconds},
    }


def resolution_digest(resolution: Resolution) -> str:
    """``sha256:…`` of :func:`resolution_document`: what a lock was made from."""
    return _digest(resolution_document(resolution))


def inputs_document(
    resolution: Resolution | Mapping[str, Any], lock: Lock, *, files: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything that decides an image, with its own schema number; envforge's version is not part of it.

    ``resolution`` may be a document already made. ``files`` gives the sha256 of own code by its target path.
    """
    made_from = resolution if isinstance(resolution, Mapping) else resolution_document(resolution)
    base = lock.base
    return {
        "schema": INPUTS_SCHEMA,
        "template": lock.template_version,
        "resolution": dict(made_from),
        "base": {"image": base.image, "digest": base.digest}
        if base.digest
        else {"image": base.image, "reason": base.reason},
        "pip": [[p.name, p.version, p.index, p.url, sorted(p.hashes)] for p in _sorted_pip(lock.pip)],
        "conda": [[c.name, c.version, c.build, c.channel, c.subdir, c.sha256] for c in _sorted_conda(lock.conda)],
        "conda_settings": dict(lock.conda_settings),
        "apt": [list(pair) for pair in sorted(lock.apt)],
        "tools": dict(lock.tools),
        "files": dict(files or {}),
    }


def inputs_digest(document: Mapping[str, Any]) -> str:
    """``sha256:…`` over the canonical JSON of an :func:`inputs_document`."""
    return _digest(document)


def with_current_templates(lock: Lock) -> Lock:
    """The lock as the templates of this installation would build it: another template version, another identity.

    A lock whose digest does not match its own content is returned as it is; :func:`status` calls it foreign.
    """
    if lock.template_version == TEMPLATE_VERSION:
        return lock
    if lock.inputs_digest != inputs_digest(inputs_document(lock.made_from, lock)):
        return lock
    moved = replace(lock, template_version=TEMPLATE_VERSION)
    return replace(moved, inputs_digest=inputs_digest(inputs_document(moved.made_from, moved)))


def seal(lock: Lock, resolution: Resolution) -> Lock:
    """``lock`` with ``made_from``, ``resolution_digest`` and ``inputs_digest`` filled in for this resolution."""
    made_from = resolution_document(resolution)
    bound = replace(lock, made_from=made_from, resolution_digest=_digest(made_from))
    return replace(bound, inputs_digest=inputs_digest(inputs_document(made_from, bound)))


def _words(path: str, old: Any, new: Any) -> list[str]:
    """The difference of two documents as readable lines."""
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in sorted({*old, *new}):
            lines += _words(f"{path}.{key}" if path else str(key), old.get(key), new.get(key))
        return lines
    if isinstance(old, list) and isinstance(new, list):
        plain = [
            [str(item[0]) if isinstance(item, list) and item else str(item) for item in side] for side in (old, new)
        ]
        gone = [item for item in plain[0] if item not in plain[1]]
        come = [item for item in plain[1] if item not in plain[0]]
        lines = [f"{path}: {item} removed" for item in gone] + [f"{path}: {item} added" for item in come]
        return lines or [f"{path}: changed"]
    if old is None:
        return [f"{path}: {new} added"]
    if new is None:
        return [f"{path}: {old} removed"]
    return [f"{path}: {old} -> {new}"]


def status(lock: Lock, resolution: Resolution) -> Status:
    """Does this lock fit this resolution? ``foreign``: made for another environment, or edited by hand."""
    if lock.name != resolution.name:
        return Status(verdict="foreign", changes=(f"made for {lock.name}, not for {resolution.name}",))
    made_from = resolution_document(resolution)
    if lock.resolution_digest != _digest(made_from):
        changes = _words("", lock.made_from, made_from)
        return Status(verdict="stale", changes=tuple(changes) or ("the record of what it was made from is missing",))
    if lock.inputs_digest != inputs_digest(inputs_document(made_from, lock)):
        return Status(
            verdict="foreign", changes=("its digest does not match its content: it was edited after locking",)
        )
    return Status(verdict="ok")


def require(lock: Lock, resolution: Resolution) -> None:
    """Raise :class:`LockError` (``lock-stale`` or ``lock-foreign``) unless the lock fits the resolution."""
    found = status(lock, resolution)
    if found.verdict != "ok":
        raise LockError(
            f"lock-{found.verdict}",
            f"the lock of {resolution.name} is {found.verdict}",
            context=found.changes,
            hint=f"run: envforge lock {resolution.name}",
        )


# ---------------------------------------------------------------------------------------- canonical bytes


def _sorted_pip(packages: Sequence[LockedPackage]) -> list[LockedPackage]:
    return sorted(packages, key=lambda package: (package.index, package.name, package.version))


def _sorted_conda(packages: Sequence[LockedConda]) -> list[LockedConda]:
    return sorted(packages, key=lambda package: (package.subdir, package.name, package.filename))


def requirement_lines(package: LockedPackage) -> list[str]:
    """One package in the hash-checked requirements form, its remarks as comments below."""
    head = f"{package.name} @ {package.url}" if package.url else f"{package.name}=={package.version}"
    words = [head, *(f"    --hash={value}" for value in sorted(package.hashes))]
    lines = [line + " \\" for line in words[:-1]] + [words[-1]]
    if package.via:
        lines.append(f"    # via {', '.join(sorted(package.via))}")
    if package.url:
        lines.append(f"    # version {package.version}")
    if package.source_only:
        lines.append("    # source-only")
    if package.yanked is not None:
        lines.append(f"    # yanked {json.dumps(package.yanked)}")
    return lines


def _header(lock: Lock, what: str) -> list[str]:
    lines = ["# Generated by envforge, do not edit.", f"# To remake it: envforge lock {lock.name}"]
    return [*lines, f"# inputs: {lock.inputs_digest}", f"# {what}"]


def _requirements(lock: Lock, what: str, packages: Sequence[LockedPackage]) -> bytes:
    lines = _header(lock, what)
    for package in _sorted_pip(packages):
        lines += requirement_lines(package)
    return ("\n".join(lines) + "\n").encode()


def requirement_files(lock: Lock) -> dict[str, str]:
    """The hash-checked requirements text of each index label, the default index first."""
    labels = sorted({package.index for package in lock.pip}, key=lambda label: (label != "default", label))
    return {
        label: _requirements(
            lock, f"packages of the index {label!r}", [package for package in lock.pip if package.index == label]
        ).decode()
        for label in labels
    }


def lock_digest(lock: Lock) -> str:
    """``sha256:…`` over the locked contents alone (pip, conda, apt, base, tools), whatever they were made from."""
    document = inputs_document({}, lock)
    del document["template"], document["resolution"]
    return _digest(document)


def _conda_file(lock: Lock, subdir: str) -> bytes:
    lines = [*_header(lock, f"explicit conda packages for {subdir}"), "@EXPLICIT"]
    for package in _sorted_conda(lock.conda):
        if package.subdir != subdir:
            continue
        channel = package.channel if "://" in package.channel else _CONDA_HOST + package.channel
        size = "-" if package.size is None else str(package.size)
        lines.append(f"# {package.name} {package.version} {package.build} {size}")
        lines.append(f"{channel.rstrip('/')}/{package.subdir}/{package.filename}#sha256:{package.sha256}")
    return ("\n".join(lines) + "\n").encode()


def dumps(lock: Lock) -> dict[str, bytes]:
    """The files of a lock folder, the same bytes for the same lock. Raises ``ValueError`` for unusable labels."""
    files: dict[str, bytes] = {}
    for label, text in requirement_files(lock).items():
        if not _LABEL.fullmatch(label):
            raise ValueError(f"index label {label!r} cannot be part of a file name")
        files[f"pip.{label}.txt"] = text.encode()
    for subdir in sorted({package.subdir for package in lock.conda}):
        files[f"conda.{subdir}.txt"] = _conda_file(lock, subdir)
    if lock.tool_packages:
        files[TOOLS_FILE] = _requirements(lock, "the installer used inside the image", lock.tool_packages)
    files[LOCK_FILE] = _yaml(lock, files)
    return files


def _yaml(lock: Lock, files: Mapping[str, bytes]) -> bytes:
    import yaml

    document: dict[str, Any] = {
        "schema": LOCK_SCHEMA,
        "name": lock.name,
        "inputs_digest": lock.inputs_digest,
        "resolution_digest": lock.resolution_digest,
        "template_version": lock.template_version,
        "python": lock.python,
        "platform": lock.platform,
        "base": {"image": lock.base.image, "digest": lock.base.digest, "reason": lock.base.reason},
        "indexes": dict(sorted(lock.indexes.items())),
        "apt": dict(sorted(lock.apt)),
        "conda_settings": dict(sorted(lock.conda_settings.items())),
        "tools": dict(sorted(lock.tools.items())),
        "as_of": lock.as_of,
        "notes": list(lock.notes),
        "files": {name: "sha256:" + hashlib.sha256(files[name]).hexdigest() for name in sorted(files)},
        "made_from": _plain(lock.made_from),
    }
    head = f"# Generated by envforge, do not edit.\n# To remake it: envforge lock {lock.name}\n"
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    body = yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False)
    return (head + body).encode()


def _plain(value: Any) -> Any:
    """Mappings as dicts with sorted keys and sequences as lists: no YAML anchors, no order of chance."""
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


# ------------------------------------------------------------------------------------------------ reading


def _damaged(place: str, problem: str, name: str = "NAME") -> LockError:
    return LockError("lock-damaged", f"{place}: {problem}", hint=f"make it again: envforge lock {name}")


def _parse_requirements(text: str, place: str, label: str) -> list[LockedPackage]:
    """The inverse of :func:`requirement_lines`, as strict as the writer is regular."""
    found: list[dict[str, Any]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip().removesuffix(" \\")
        where = f"{place}:{number}"
        if raw.startswith("#") or not line:
            continue
        if not raw.startswith(" "):
            found.append(_parse_head(line, where, label))
        elif not found:
            raise _damaged(where, "a continuation line without a package")
        elif line.startswith("--hash="):
            value = line.removeprefix("--hash=")
            if not _HASH.fullmatch(value):
                raise _damaged(where, f"not a sha256 hash: {value}")
            found[-1]["hashes"] += (value,)
        elif line.startswith("# "):
            _parse_remark(line.removeprefix("# "), found[-1], where)
        else:
            raise _damaged(where, f"cannot be read: {line}")
    for entry in found:
        if not entry["hashes"]:
            raise _damaged(place, f"{entry['name']} has no hash")
    return [LockedPackage(**entry) for entry in found]


def _parse_head(line: str, where: str, label: str) -> dict[str, Any]:
    direct = re.fullmatch(r"([a-z0-9][a-z0-9-]*) @ (\S+)", line)
    if direct:
        return {"name": direct[1], "version": "", "url": direct[2], "index": label, "hashes": ()}
    pinned = re.fullmatch(r"([a-z0-9][a-z0-9-]*)==([A-Za-z0-9.!+_-]+)", line)
    if not pinned:
        raise _damaged(where, f"not a pinned package: {line}")
    return {"name": pinned[1], "version": pinned[2], "index": label, "hashes": ()}


def _parse_remark(remark: str, entry: dict[str, Any], where: str) -> None:
    word, _, rest = remark.partition(" ")
    if word == "via":
        entry["via"] = tuple(rest.split(", "))
    elif word == "version":
        entry["version"] = rest
    elif word == "source-only":
        entry["source_only"] = True
    elif word == "yanked":
        try:
            entry["yanked"] = json.loads(rest)
        except ValueError:
            raise _damaged(where, f"unreadable remark: {remark}") from None
    else:
        raise _damaged(where, f"unknown remark: {remark}")


def _parse_conda(text: str, place: str, subdir: str) -> list[LockedConda]:
    found: list[LockedConda] = []
    facts: list[str] = []
    lines = text.splitlines()
    start = lines.index("@EXPLICIT") + 1 if "@EXPLICIT" in lines else len(lines)
    for number, line in enumerate(lines[start:], start + 1):
        if line.startswith("# "):
            facts = line[2:].split(" ")
            continue
        match = re.fullmatch(r"(\S+)/([^/\s]+)/([^/\s#]+)#sha256:([0-9a-f]{64})", line)
        if not match or len(facts) != 4 or match[2] != subdir:
            raise _damaged(f"{place}:{number}", f"not an explicit conda line: {line}")
        found.append(
            LockedConda(
                name=facts[0],
                version=facts[1],
                build=facts[2],
                size=None if facts[3] == "-" else int(facts[3]),
                channel=match[1].removeprefix(_CONDA_HOST),
                subdir=match[2],
                filename=match[3],
                sha256=match[4],
            )
        )
        facts = []
    return found


_KEYS = {
    "schema", "name", "inputs_digest", "resolution_digest", "template_version", "python", "platform", "base",
    "indexes", "apt", "conda_settings", "tools", "as_of", "notes", "files", "made_from",
}  # fmt: skip


def _load_yaml(content: bytes, place: str) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else "not YAML"
        raise _damaged(place, f"cannot be read: {first}") from None
    if not isinstance(document, dict):
        raise _damaged(place, "not a lock: a mapping is expected")
    if document.get("schema") != LOCK_SCHEMA:
        raise LockError(
            "lock-schema",
            f"{place}: lock schema {document.get('schema')!r} is not known to this envforge (it reads {LOCK_SCHEMA})",
            hint="upgrade envforge, or make the lock again with `envforge lock`",
        )
    missing, unknown = _KEYS - set(document), set(document) - _KEYS
    if missing or unknown:
        parts = [f"missing {key}" for key in sorted(missing)] + [f"unknown {key}" for key in sorted(map(str, unknown))]
        raise _damaged(place, "wrong keys: " + ", ".join(parts))
    return document


def _strings(document: Mapping[str, Any], key: str, place: str) -> dict[str, str]:
    value = document[key]
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise _damaged(place, f"{key}: a mapping of text to text is expected")
    return dict(value)


def loads(files: Mapping[str, bytes], *, place: str = LOCK_FILE) -> Lock:
    """A lock from the content of its folder; ``loads(dumps(lock)) == lock``.

    Raises :class:`LockError`: ``lock-schema`` for a schema this version does not know, ``lock-tampered`` when a
    text file is not the one the lock was written with, ``lock-damaged`` for everything else that cannot be right.
    """
    if LOCK_FILE not in files:
        raise _damaged(place, f"{LOCK_FILE} is missing")
    document = _load_yaml(files[LOCK_FILE], place)
    wanted = _strings(document, "files", place)
    generated = {name for name in files if is_generated(name) and name != LOCK_FILE}
    for name in sorted(generated | set(wanted)):
        if name not in files:
            raise _damaged(place, f"{name} is missing")
        if wanted.get(name) != "sha256:" + hashlib.sha256(files[name]).hexdigest():
            raise LockError(
                "lock-tampered",
                f"{name} beside {place} is not the file this lock was written with",
                hint=f"restore it from version control, or make the lock again: envforge lock {document['name']}",
            )
    pip: list[LockedPackage] = []
    conda: list[LockedConda] = []
    tools: list[LockedPackage] = []
    for name in sorted(wanted):
        text = files[name].decode()
        if name == TOOLS_FILE:
            tools = _parse_requirements(text, name, "default")
        elif name.startswith("pip."):
            pip += _parse_requirements(text, name, name[4:-4])
        else:
            conda += _parse_conda(text, name, name[6:-4])
    return _record(document, place, pip, conda, tools)


def _record(
    document: Mapping[str, Any],
    place: str,
    pip: Sequence[LockedPackage],
    conda: Sequence[LockedConda],
    tools: Sequence[LockedPackage],
) -> Lock:
    base = document["base"]
    if not isinstance(base, dict) or set(base) != {"image", "digest", "reason"}:
        raise _damaged(place, "base: image, digest and reason are expected")
    for key in ("name", "inputs_digest", "resolution_digest", "python", "platform"):
        if not isinstance(document[key], str):
            raise _damaged(place, f"{key}: text is expected")
    if not isinstance(document["made_from"], dict) or not isinstance(document["notes"], list):
        raise _damaged(place, "made_from or notes has the wrong form")
    return Lock(
        name=document["name"],
        resolution_digest=document["resolution_digest"],
        inputs_digest=document["inputs_digest"],
        python=document["python"],
        platform=document["platform"],
        base=LockedBase(image=str(base["image"]), digest=base["digest"], reason=str(base["reason"])),
        pip=tuple(_sorted_pip(pip)),
        conda=tuple(_sorted_conda(conda)),
        apt=tuple(sorted(_strings(document, "apt", place).items())),
        indexes=_strings(document, "indexes", place),
        tools=_strings(document, "tools", place),
        tool_packages=tuple(_sorted_pip(tools)),
        conda_settings=_strings(document, "conda_settings", place),
        as_of=document["as_of"],
        notes=tuple(str(note) for note in document["notes"]),
        made_from=document["made_from"],
        template_version=int(document["template_version"]),
    )


def is_generated(filename: str) -> bool:
    """Whether envforge writes this file of a lock folder (others, such as sources.md, are left alone)."""
    return filename in (LOCK_FILE, TOOLS_FILE) or re.fullmatch(r"(pip|conda)\..+\.txt", filename) is not None


# ------------------------------------------------------------------------------------- folders (effects)


def check_name(name: str) -> str:
    """``name`` itself when it can be a lock folder's name; raises :class:`UsageError` otherwise."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise UsageError("lock-name", f"{name!r} cannot be the name of a lock folder")
    return name


def folder(name: str, root: Path | None = None) -> Path:
    """Where :func:`write` puts the lock of ``name``: ``./lockfiles/NAME``."""
    return (root if root is not None else Path("lockfiles")) / check_name(name)


def find(name: str, *, project: Path | None = None) -> Path:
    """The lock folder of ``name``: the project's own first, then the shipped one.

    Raises :class:`LockError` ``lock-missing`` when there is none.
    """
    from envforge.resources import shipped

    own = folder(name, project)
    if (own / LOCK_FILE).is_file():
        return own
    try:
        ours = shipped("lockfiles") / check_name(name)
        if (ours / LOCK_FILE).is_file():
            return ours
    except FileNotFoundError:
        pass
    raise LockError("lock-missing", f"there is no lock for {name}", hint=f"run: envforge lock {name}")


def exists(name: str, *, project: Path | None = None) -> bool:
    """Whether :func:`find` would find a lock."""
    try:
        find(name, project=project)
    except LockError:
        return False
    return True


def read_folder(path: Path) -> Lock:
    """The lock in this folder; errors as in :func:`loads`."""
    files = {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.is_file() and is_generated(entry.name)}
    return with_current_templates(loads(files, place=str(path / LOCK_FILE)))


def read(name: str, *, project: Path | None = None) -> Lock | None:
    """The lock of ``name``, or None when there is none; raises :class:`LockError` for one that cannot be used."""
    return read_folder(find(name, project=project)) if exists(name, project=project) else None


def _exchange(new: Path, target: Path) -> bool:
    """Swap two folders in one step where the kernel can (Linux ``renameat2``); False when it cannot."""
    import ctypes
    import os

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_fdcwd, rename_exchange = -100, 2
    return bool(call(at_fdcwd, os.fsencode(new), at_fdcwd, os.fsencode(target), rename_exchange) == 0)


def write(name: str, lock: Lock, *, root: Path | None = None) -> Path:
    """Write the whole folder beside its place and swap it in: a half-written lock never replaces a good one.

    Files of the old folder that envforge did not generate are kept. Returns the folder.
    """
    import shutil
    import tempfile

    from filelock import FileLock

    from envforge.paths import locks

    target = folder(name, root)
    files = dumps(lock)
    target.parent.mkdir(parents=True, exist_ok=True)
    locks().mkdir(parents=True, exist_ok=True)
    guard = hashlib.sha256(str(target.resolve()).encode()).hexdigest()[:16]
    with FileLock(locks() / f"lockfiles-{guard}.lock"):
        fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        try:
            if target.is_dir():
                for entry in target.iterdir():
                    if entry.is_file() and not is_generated(entry.name):
                        shutil.copy2(entry, fresh / entry.name)
            for filename, content in files.items():
                (fresh / filename).write_bytes(content)
            fresh.chmod(0o755)
            if not target.exists():
                fresh.rename(target)
            elif not _exchange(fresh, target):
                aside = fresh.with_name(fresh.name + ".old")
                target.rename(aside)
                try:
                    fresh.rename(target)
                except BaseException:
                    aside.rename(target)
                    raise
                shutil.rmtree(aside)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return target
