"""What the user wrote: a YAML spec read into :class:`EnvSpec`, every problem reported at once with its place.

``load`` finds a spec by name or path, lays it over what it ``extends``, lays the chosen variant over that,
and reads the result. Merging (docs/decisions/0002-spec-models.md): maps key by key, lists appended (an item
that names the same package, hook or target takes the place of the inherited one), ``null`` removes,
``!replace`` drops what was inherited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from envforge import resources
from envforge.errors import SpecError, UsageError
from envforge.yamlmodel import (
    Pattern,
    Problems,
    Tree,
    build,
    json_schema,
    locate,
    merge,
    parse,
    rule,
    tree_of,
)

SPEC_SCHEMA = 1

FrameworkName = Literal["torch", "tensorflow", "jax", "keras", "paddle", "mindspore", "mxnet"]
Accelerator = Literal["auto", "cpu", "cuda"]
CudaSource = Literal["wheels", "base", "conda"]
Toolchain = Literal["none", "nvcc", "full"]

# --- what text is accepted: always matched whole ------------------------------------------------------------

_DIST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_COMPARE = r"(?:===|==|~=|!=|<=|>=|<|>) ?[A-Za-z0-9.*+!_-]+"
_URL = r"[A-Za-z0-9._~:/?\[\]!&()*+,;=%@-]+"
_MARKER_NAME = (
    r"(?:python_version|python_full_version|os_name|sys_platform|platform_machine|platform_system"
    r"|platform_release|platform_version|platform_python_implementation|implementation_name"
    r"|implementation_version|extra)"
)
_MARKER_TEXT = r"(?:'[A-Za-z0-9 ._*+-]*'|\"[A-Za-z0-9 ._*+-]*\")"
_MARKER_TERM = (
    rf"\(* ?(?:{_MARKER_NAME}|{_MARKER_TEXT}) ?(?:===|==|~=|!=|<=|>=|<|>| in | not in ) ?"
    rf"(?:{_MARKER_NAME}|{_MARKER_TEXT}) ?\)*"
)
_MARKER = rf"{_MARKER_TERM}(?: (?:and|or) {_MARKER_TERM}){{0,20}}"

NAME = Pattern(
    expression=r"(?=.{1,64}\Z)[a-z0-9]+(?:(?:\.|_|-{1,2})[a-z0-9]+)*",
    meaning="a name of lower-case letters, digits and single . _ - between them",
    example="torch-cu124",
)
VERSION = Pattern(
    expression=r"[0-9]{1,6}(?:\.[0-9]{1,8}){0,5}(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?"
    r"(?:\+[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)?",
    meaning="an exact version",
    example='"2.6.0"',
    version=True,
)
PYTHON = Pattern(expression=r"3\.[0-9]{1,2}", meaning="a Python version of two parts", example='"3.11"', version=True)
CUDA = Pattern(
    expression=r"[0-9]{1,2}\.[0-9]{1,2}(?:\.[0-9]{1,3})?",
    meaning="a CUDA version",
    example='"12.4"',
    version=True,
)
CUDNN = Pattern(expression=r"[0-9]{1,2}(?:\.[0-9]{1,3}){0,3}", meaning="a cuDNN version", example='"9.1"', version=True)
GLIBC = Pattern(expression=r"[0-9]\.[0-9]{1,2}", meaning="a glibc version", example='"2.31"', version=True)
DRIVER = Pattern(
    expression=r"[0-9]{3}(?:\.[0-9]{1,3}){0,2}",
    meaning="a driver version",
    example='"535.104.05"',
    version=True,
)
REQUIREMENT = Pattern(
    expression=rf"{_DIST}(?: ?\[ ?{_DIST}(?: ?, ?{_DIST})* ?\])?"
    rf"(?: ?{_COMPARE}(?: ?, ?{_COMPARE})*| ?@ ?(?:git\+)?(?:https?|file)://{_URL}(?:#[A-Za-z0-9=&._/-]+)?)?"
    rf"(?: ?; ?{_MARKER})?",
    meaning="a Python requirement (PEP 508)",
    example="onnx>=1.16",
)
APT = Pattern(
    expression=r"[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?",
    meaning="a Debian package name, optionally =version",
    example="libsndfile1",
)
CONDA = Pattern(
    expression=r"(?:[A-Za-z0-9_./-]+::)?[A-Za-z0-9_.-]+"
    r"(?: ?(?:==|=|!=|~=|>=|<=|>|<) ?[A-Za-z0-9_.*+!]+"
    r"(?:[,|](?:==|=|!=|~=|>=|<=|>|<)?[A-Za-z0-9_.*+!]+)*(?:[ =][A-Za-z0-9_.*]+)?)?",
    meaning="a conda match spec",
    example="ffmpeg>=6",
)
CHANNEL = Pattern(
    expression=rf"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*|(?:https?|file)://{_URL}",
    meaning="a conda channel name or URL",
    example="conda-forge",
)
LABEL = Pattern(
    expression=r"(?!default\Z)[a-z0-9]+(?:[.-][a-z0-9]+)*",
    meaning="an index label of lower-case letters, digits, . and - (`default` is taken)",
    example="pytorch-cu118",
)
URL = Pattern(
    expression=r"(?:https?|file)://(?![^/]*@)[A-Za-z0-9._~:/?\[\]!&()*+,;=%@-]+",
    meaning="an http(s) or file URL without user name, password or quotes",
    example="https://download.pytorch.org/whl/cu118",
)
GLOB = Pattern(
    expression=r"[a-z0-9*?][a-z0-9._*?-]*",
    meaning="a package name or pattern, lower case",
    example="nvidia-*",
)
EXTRA = Pattern(expression=_DIST, meaning="the name of an extra", example="cuda12")
ENV_KEY = Pattern(
    expression=r"[A-Za-z_][A-Za-z0-9_]{0,127}",
    meaning="the name of an environment variable",
    example="HF_HOME",
)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
IMAGE = Pattern(
    expression=r"auto|(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?" + rf"{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(?:@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})",
    meaning="auto, or an image reference with a tag or digest",
    example="python:3.11-slim-bookworm",
)
DIGEST = Pattern(expression=r"sha256:[0-9a-f]{64}", meaning="a digest: sha256: and 64 hexadecimal digits")
USER = Pattern(expression=r"[a-z_][a-z0-9_-]{0,31}", meaning="a Unix user name", example="envforge")
ABSOLUTE = Pattern(
    expression=r"/|(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9._+@-]+)+/?",
    meaning="an absolute path of plain characters without ..",
    example="/work/src",
)
RELATIVE = Pattern(
    expression=r"\.|(?:\./)?(?!\.\.?(?:/|\Z))[A-Za-z0-9._+@-]+(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9._+@-]+)*/?",
    meaning="a path below the folder of the spec file, of plain characters without ..",
    example="src",
)
GPU = Pattern(expression=r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}", meaning="a GPU model or sm_XX", example="A100")
CHECK = Pattern(expression=r"[a-z0-9_]+(?:\.[a-z0-9_*]+)*", meaning="the name of a smoke check", example="export.onnx")
SNAPSHOT = Pattern(
    expression=r"20[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])(?:T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)?",
    meaning="a date",
    example='"2026-11-01"',
)
MIRROR_KEY = Pattern(
    expression=r"[a-z0-9]+(?:[.:/-][a-z0-9]+)*", meaning="a registry, or pip, apt, conda", example="docker.io"
)
MIRROR = Pattern(
    expression=rf"[a-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9._-]+)*|(?:https?|file)://(?![^/]*@){_URL}",
    meaning="a registry or a URL without credentials",
    example="registry.lab.example/hub",
)
REFERENCE = Pattern(
    expression=r"[A-Za-z0-9._/+-]+(?:@[a-z0-9._-]+)?",
    meaning="a spec name or a relative path",
    example="lab-base",
)
_DESCRIPTION = Pattern(expression=r".{0,300}", meaning="one line of at most 300 characters")
_WORD = Pattern(expression=r".{0,2000}", meaning="one word of a command, at most 2000 characters")


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkSpec:
    """One framework. ``version`` is exact (perhaps with a local label, ``2.7.1+cu118``); ``None``: newest known.

    ``accelerator: auto`` means cuda when the spec has ``cuda``, else cpu. ``index`` is a label of ``indexes``
    or a well-known one (``pytorch-cu118``); ``None``: chosen by the resolver.
    """

    version: str | None = field(default=None, metadata=rule(pattern=VERSION))
    index: str | None = field(default=None, metadata=rule(pattern=LABEL))
    extras: tuple[str, ...] = field(default=(), metadata=rule(pattern=EXTRA))
    accelerator: Accelerator = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseSpec:
    """The base image: a reference with a tag, or ``auto``; ``digest`` pins it by hand."""

    image: str = field(default="auto", metadata=rule(pattern=IMAGE))
    digest: str | None = field(default=None, metadata=rule(pattern=DIGEST))


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaSpec:
    """The CUDA the frameworks are built for (``version`` "12.4"); YAML key ``from`` is ``source`` here."""

    version: str = field(metadata=rule(pattern=CUDA))
    source: CudaSource = field(default="wheels", metadata=rule(key="from"))
    toolchain: Toolchain = "none"
    compat: bool = False
    cudnn: str | None = field(default=None, metadata=rule(pattern=CUDNN))


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagesSpec:
    """Further packages: PEP 508 requirements, Debian package names, conda match specs."""

    pip: tuple[str, ...] = field(default=(), metadata=rule(pattern=REQUIREMENT))
    apt: tuple[str, ...] = field(default=(), metadata=rule(pattern=APT))
    conda: tuple[str, ...] = field(default=(), metadata=rule(pattern=CONDA))


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSpec:
    """A package index other than the default one; only ``packages`` (fnmatch patterns) come from it."""

    url: str = field(metadata=rule(pattern=URL))
    packages: tuple[str, ...] = field(default=(), metadata=rule(pattern=GLOB))
    find_links: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class UserSpec:
    """The user of the image. ``name: root`` keeps root."""

    name: str = field(default="envforge", metadata=rule(pattern=USER))
    uid: int = field(default=1000, metadata=rule(low=0, high=2_000_000_000))
    gid: int = field(default=1000, metadata=rule(low=0, high=2_000_000_000))


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSpec:
    """Own code: ``source`` relative to the spec file, ``target`` in the image; ``install``: pip-install it."""

    source: str = field(metadata=rule(pattern=RELATIVE))
    target: str = field(metadata=rule(pattern=ABSOLUTE))
    install: Literal["none", "wheel", "editable"] = "none"
    # The folder `source` is relative to; not part of the identity (the content is).
    folder: Path | None = field(default=None, metadata=rule(internal=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class HookSpec:
    """A named extra build step: an argument list (never a shell line), part of the identity."""

    name: str = field(metadata=rule(pattern=NAME))
    command: tuple[str, ...] = field(metadata=rule(pattern=_WORD))
    after: Literal["base", "apt", "pip", "files"] = "pip"
    user: Literal["root", "user"] = "root"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetsSpec:
    """Machines it must run on: drivers ("535.104.05"), GPUs ("A100", "sm_90"), the oldest glibc."""

    drivers: tuple[str, ...] = field(default=(), metadata=rule(pattern=DRIVER))
    gpus: tuple[str, ...] = field(default=(), metadata=rule(pattern=GPU))
    glibc: str | None = field(default=None, metadata=rule(pattern=GLIBC))


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeSpec:
    """Smoke level that earns the tag, seconds allowed for one check, checks left out with a reason each."""

    level: int = field(default=4, metadata=rule(low=0, high=5))
    timeout: int = field(default=300, metadata=rule(low=1, high=86_400))
    without: Mapping[str, str] = field(default_factory=dict, metadata=rule(keys=CHECK))


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSpec:
    """Upper bounds: image size in MB (10^6 bytes), build time in seconds."""

    size_mb: int | None = field(default=None, metadata=rule(low=1))
    build_seconds: int | None = field(default=None, metadata=rule(low=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class AptSpec:
    """Debian packages: snapshot date (``2026-11-01``) to install from."""

    snapshot: str | None = field(default=None, metadata=rule(pattern=SNAPSHOT))


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvSpec:
    """A spec with ``extends`` and the chosen variant already merged; nothing is edited later."""

    schema: int = field(default=SPEC_SCHEMA, metadata=rule(low=1, high=SPEC_SCHEMA))
    name: str = field(metadata=rule(pattern=NAME))
    description: str = field(default="", metadata=rule(pattern=_DESCRIPTION))
    kind: Literal["environment", "base"] = "environment"
    extends: str | None = field(default=None, metadata=rule(pattern=REFERENCE))
    python: str = field(default="3.11", metadata=rule(pattern=PYTHON))
    platform: Literal["linux/amd64", "linux/arm64"] = "linux/amd64"
    base: BaseSpec = BaseSpec()
    cuda: CudaSpec | None = None
    frameworks: Mapping[FrameworkName, FrameworkSpec] = field(default_factory=dict)
    packages: PackagesSpec = PackagesSpec()
    channels: tuple[str, ...] = field(default=("conda-forge",), metadata=rule(pattern=CHANNEL))
    indexes: Mapping[str, IndexSpec] = field(default_factory=dict, metadata=rule(keys=LABEL))
    mirrors: Mapping[str, str] = field(default_factory=dict, metadata=rule(keys=MIRROR_KEY, pattern=MIRROR))
    env: Mapping[str, str] = field(default_factory=dict, metadata=rule(keys=ENV_KEY))
    user: UserSpec = UserSpec()
    workdir: str = field(default="/work", metadata=rule(pattern=ABSOLUTE))
    files: tuple[FileSpec, ...] = ()
    hooks: tuple[HookSpec, ...] = ()
    targets: TargetsSpec = TargetsSpec()
    smoke: SmokeSpec = SmokeSpec()
    budget: BudgetSpec = BudgetSpec()
    apt: AptSpec = AptSpec()
    allow_untested: bool = False
    # Where it came from; not part of the identity.
    variant: str | None = field(default=None, metadata=rule(internal=True))
    variants: tuple[str, ...] = field(default=(), metadata=rule(internal=True))  # names, as in NAME@variant
    path: Path | None = field(default=None, metadata=rule(internal=True))

    @property
    def full_name(self) -> str:
        """``name`` or ``name@variant``: what a person types, and the name of the lock folder."""
        return f"{self.name}@{self.variant}" if self.variant else self.name


# --- finding and merging ------------------------------------------------------------------------------------

_MAX_EXTENDS = 8


def load(reference: str, *, cwd: Path | None = None) -> EnvSpec:
    """The spec named by ``reference``: catalogue name, name in ``./envs/`` or path, each with ``@variant``.

    A path is what has a separator or ends in ``.yaml``/``.yml``. A project's own ``envs/NAME.yaml`` comes
    before the catalogue. Raises SpecError (``spec-not-found``, ``spec-invalid``, ``unknown-variant``, …).
    """
    folder = cwd if cwd is not None else Path.cwd()
    name, variant = _split(reference)
    path = _locate(name, folder)
    problems = Problems(_shown(path, folder))
    tree = _expanded(path, problems.source, (), problems)
    return _read(tree, path, variant, problems)


def loads(
    text: str | bytes, *, source: str = "<text>", folder: Path | None = None, variant: str | None = None
) -> EnvSpec:
    """A spec from text; ``extends`` is looked up from ``folder`` (default: the current one)."""
    where = (folder if folder is not None else Path.cwd()) / "text.yaml"
    problems = Problems(source)
    tree = _with_parent(parse(text, source=source, problems=problems), where, (), problems)
    return replace(_read(tree, where, variant, problems), path=None)


def names() -> tuple[str, ...]:
    """The names of the catalogue, sorted."""
    return tuple(sorted(path.stem for path in resources.catalog().glob("*.yaml")))


def project_names(cwd: Path | None = None) -> tuple[str, ...]:
    """The names found in ``./envs/``, sorted."""
    folder = (cwd if cwd is not None else Path.cwd()) / "envs"
    return tuple(sorted(path.stem for path in folder.glob("*.yaml"))) if folder.is_dir() else ()


def from_flags(
    frameworks: Sequence[str],
    *,
    cuda: str | None = None,
    python: str | None = None,
    cudnn: str | None = None,
    base: str | None = None,
) -> EnvSpec:
    """A spec from ``--framework torch=2.0.1 --cuda 11.8 --python 3.12 --cudnn 8.7 --base ubuntu22.04``.

    ``base`` is an image reference or the short name of a system. Raises UsageError for a malformed flag and
    SpecError for a value that no spec may have.
    """
    chosen: dict[str, Any] = {}
    for word in frameworks:
        found = re.fullmatch(r"([A-Za-z0-9_-]+)(?:={1,2}(.+))?", word)
        if not found:
            raise UsageError(
                "usage", f"--framework {word!r}: write NAME or NAME=VERSION", hint="--framework torch=2.6.0"
            )
        name = _ALIASES.get(found[1].lower(), found[1].lower())
        if name in chosen:
            raise UsageError(
                "usage", f"--framework {name} stands twice", hint="one version of a framework per environment"
            )
        chosen[name] = {"version": found[2]} if found[2] else {}
    if cudnn is not None and cuda is None:
        raise UsageError("usage", "--cudnn needs --cuda", hint="--cuda 11.8 --cudnn 8.7")
    data: dict[str, Any] = {
        "schema": SPEC_SCHEMA,
        "name": _flag_name(chosen, cuda, python),
        "frameworks": chosen,
    }
    if python is not None:
        data["python"] = python
    if cuda is not None:
        data["cuda"] = {"version": cuda} | ({"cudnn": cudnn} if cudnn else {})
    if base is not None:
        data["base"] = {"image": _base_image(base)}
    return _read(tree_of(data, source="command line"), None, None, Problems("command line"))


def schema() -> dict[str, Any]:
    """JSON Schema of a spec file, made from the records (committed as ``envforge/data/spec.schema.json``)."""
    found = json_schema(EnvSpec, title="envforge spec")
    overlay: dict[str, Any] = {
        "type": "object",
        "description": "Laid over the spec when NAME@variant is asked for.",
    }
    found["properties"]["variants"] = {
        "type": "object",
        "propertyNames": {"pattern": f"^(?:{NAME.expression})$"},
        "additionalProperties": overlay,
    }
    return found


_ALIASES = {"pytorch": "torch", "tf": "tensorflow", "paddlepaddle": "paddle", "tensorflow-cpu": "tensorflow"}
_SYSTEMS = {"bullseye": "debian:bullseye", "bookworm": "debian:bookworm", "trixie": "debian:trixie"} | {
    "debian11": "debian:bullseye",
    "debian12": "debian:bookworm",
    "debian13": "debian:trixie",
}


def _base_image(text: str) -> str:
    short = text.lower().replace(" ", "")
    ubuntu = re.fullmatch(r"ubuntu-?(\d\d)\.?(\d\d)", short)
    return f"ubuntu:{ubuntu[1]}.{ubuntu[2]}" if ubuntu else _SYSTEMS.get(short, text)


def _flag_name(chosen: Mapping[str, Any], cuda: str | None, python: str | None) -> str:
    words = [name + str(options.get("version", "")).split("+")[0] for name, options in chosen.items()]
    words += [f"py{python}"] if python else []
    words += ["cu" + cuda.replace(".", "")] if cuda else []
    name = re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-.")[:64].strip("-.")
    return name if NAME.accepts(name) else "environment"


def _split(reference: str) -> tuple[str, str | None]:
    name, at, variant = reference.rpartition("@")
    if not at or "/" in variant:
        return reference, None
    return name, variant


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.endswith((".yaml", ".yml"))


def _shown(path: Path, folder: Path) -> str:
    """The path as a person wrote or would write it: relative when it lies below the current folder."""
    try:
        return path.relative_to(folder).as_posix()
    except ValueError:
        return path.name if path.parent == resources.catalog() else str(path)


def _locate(name: str, folder: Path, *, not_this: Path | None = None) -> Path:
    if _is_path(name):
        path = folder / name
        if path.is_file():
            return path
        what = "is a folder, not a spec file" if path.is_dir() else "does not exist"
        raise SpecError("spec-not-found", f"{name}: this spec file {what}", hint="see: envforge list")
    if NAME.accepts(name):
        for candidate in (folder / "envs" / f"{name}.yaml", resources.catalog() / f"{name}.yaml"):
            if candidate.is_file() and candidate != not_this:
                return candidate
    import difflib

    known = sorted({*names(), *project_names(folder)})
    near = difflib.get_close_matches(name, known, 3, 0.5)
    raise SpecError(
        "spec-not-found",
        f"there is no spec {name!r} in the catalogue or in ./envs/",
        hint=f"did you mean {', '.join(near)}?" if near else "see: envforge list",
    )


def _identity(path: str, item: Tree) -> str:
    """What makes two list items the same thing: package name, hook name, file target; else the value."""
    if item.kind == "map":
        named = item.get("name") or item.get("target")
        return f"{named.value}" if named is not None else repr(item.value)
    text = str(item.value)
    if path == "packages.pip":
        found = re.match(r"[A-Za-z0-9._-]+", text)
        return re.sub(r"[-_.]+", "-", found[0]).lower() if found else text
    if path in ("packages.apt", "packages.conda"):
        return re.split(r"[ =<>!~]", text, maxsplit=1)[0]
    return text


def _expanded(path: Path, source: str, chain: tuple[Path, ...], problems: Problems) -> Tree:
    """The file with everything it extends merged under it; ``variants`` merged too, none applied."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecError(
            "spec-not-found", f"{source}: cannot be read: {error.strerror}", hint="see: envforge list"
        ) from error
    return _with_parent(parse(text, source=source, problems=problems), path, chain, problems)


def _with_parent(tree: Tree, path: Path, chain: tuple[Path, ...], problems: Problems) -> Tree:
    if tree.kind != "map":
        return tree
    parent = tree.get("extends")
    if parent is None or parent.kind != "scalar" or parent.tag != "str" or not REFERENCE.accepts(parent.value):
        return tree
    place = f"{parent.source}:{parent.line}:{parent.column}"
    name, variant = _split(parent.value)
    folder = path.parent.parent if path.parent.name == "envs" and not _is_path(name) else path.parent
    try:
        found = _locate(name, folder, not_this=path)
    except SpecError as error:
        raise SpecError(error.reference, f"{place}: extends: {error.message}", hint=error.hint) from error
    here = (*chain, path.resolve())
    if found.resolve() in here or len(here) > _MAX_EXTENDS:
        steps = " -> ".join([*(step.name for step in here), found.name])
        raise SpecError(
            "extends-cycle",
            f"{place}: extends goes round in a circle or is deeper than {_MAX_EXTENDS}: {steps}",
            hint="remove one of these `extends`",
        )
    base = _expanded(found, _shown(found, folder), here, problems)
    if variant is not None:
        base = _overlay(base, variant, parent.source)
    # A spec that extends another is a thing of its own: it does not inherit the other's name.
    return merge(base.without("extends", "name", "description"), tree, identity=_identity)


def _overlay(tree: Tree, variant: str, source: str) -> Tree:
    """The tree with one variant laid over it."""
    variants = tree.get("variants")
    chosen = variants.get(variant) if variants is not None else None
    if chosen is None:
        known = [key.value for key, _ in variants.value] if variants is not None and variants.kind == "map" else []
        raise SpecError(
            "unknown-variant",
            f"{source}: there is no variant {variant!r}",
            hint=f"variants here: {', '.join(known)}" if known else "this spec has no variants",
        )
    base = tree.without("variants")
    if chosen.kind != "map":
        return base
    return merge(base, chosen, identity=_identity)


def _read(tree: Tree, path: Path | None, variant: str | None, problems: Problems) -> EnvSpec:
    """Check the spec and each of its variants, and return the one asked for."""
    source = problems.source
    if tree.kind != "map":
        problems.add(tree, "", "a spec is a mapping that starts with `schema: 1` and `name: …`")
        problems.raise_if_any("spec")
    variants = _variant_names(tree, problems)
    plain_spec = _one(tree.without("variants"), problems)
    found = {name: _one(_overlay(tree, name, source), problems) for name in variants}
    if variant is not None and variant not in found and not problems.lines:
        _overlay(tree, variant, source)  # raises unknown-variant
    problems.raise_if_any("spec")
    chosen = plain_spec if variant is None else found[variant]
    assert chosen is not None
    folder = path.parent if path is not None else None
    files = tuple(replace(item, folder=folder) for item in chosen.files)
    return replace(chosen, variant=variant, variants=variants, path=path, files=files)


def _variant_names(tree: Tree, problems: Problems) -> tuple[str, ...]:
    variants = tree.get("variants")
    if variants is None:
        return ()
    if variants.kind != "map":
        problems.add(variants, "variants", "expected a mapping of variant names")
        return ()
    good = []
    for key, value in variants.value:
        where = f"variants.{key.value}"
        if not NAME.accepts(key.value):
            problems.add(key, where, f"{key.value!r} is not {NAME.meaning}")
        elif value.kind != "map":
            problems.add(value, where, "expected a mapping with the fields that differ")
        elif value.get("variants") or value.get("extends") or value.get("name"):
            problems.add(value, where, "a variant cannot set `name`, `extends` or `variants`")
        else:
            good.append(key.value)
    return tuple(good)


def _one(tree: Tree, problems: Problems) -> EnvSpec | None:
    found = build(tree, EnvSpec, problems)
    if found is not None:
        for path, message in _cross_checks(found):
            problems.add(locate(tree, path), path, message)
    return found


def _cross_checks(spec: EnvSpec) -> Iterator[tuple[str, str]]:
    """Rules between fields, as (path, message)."""
    if spec.kind == "environment" and not (spec.frameworks or spec.packages.pip or spec.packages.conda):
        yield "frameworks", "an environment needs a framework or packages (or say `kind: base`)"
    if spec.kind == "base" and spec.frameworks:
        yield "frameworks", "a base has no frameworks; make an environment that extends it"
    for name, framework in spec.frameworks.items():
        if framework.accelerator == "cuda" and spec.cuda is None:
            yield (
                f"frameworks.{name}.accelerator",
                "cuda is asked for but the spec has no `cuda: {version: …}`",
            )
        if framework.index and framework.index not in spec.indexes and not _WELL_KNOWN.fullmatch(framework.index):
            known = ", ".join(spec.indexes) or "none here"
            yield f"frameworks.{name}.index", f"no index has the label {framework.index!r} (indexes: {known})"
    if spec.base.digest and spec.base.image == "auto":
        yield "base.digest", "a digest needs `base.image` to be named"
    if spec.base.digest and "@" in spec.base.image:
        yield "base.digest", "the digest stands in `base.image` already"
    if (spec.user.name == "root") != (spec.user.uid == 0):
        yield "user", "the name root and uid 0 belong together"
    for i, hook in enumerate(spec.hooks):
        if not hook.command or not hook.command[0]:
            yield f"hooks[{i}].command", "a hook needs a command: [program, argument, …]"
    for what, items in (("hooks", [h.name for h in spec.hooks]), ("files", [f.target for f in spec.files])):
        for item in sorted({item for item in items if items.count(item) > 1}):
            yield what, f"{item!r} stands twice"
    for key in spec.env:
        if re.search(r"(?i)(password|passwd|secret|token|api_?key)$", key):
            yield f"env.{key}", "secrets do not belong in a spec: the image keeps them; pass them with `run`"


_WELL_KNOWN = re.compile(r"default|pytorch-(?:cu[0-9]{2,3}|cpu)|paddle-(?:cu[0-9]{2,3}|cpu)|jax-cuda|mindspore")
