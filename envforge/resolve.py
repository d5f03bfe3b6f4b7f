"""Spec + tables -> Resolution (every choice filled in, each with its reason) or a conflict. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from envforge.errors import ConflictError
from envforge.spec import (
    AptSpec,
    BudgetSpec,
    CudaSource,
    EnvSpec,
    FileSpec,
    FrameworkName,
    FrameworkSpec,
    HookSpec,
    SmokeSpec,
    Toolchain,
    UserSpec,
)
from envforge.versions import key, series, split_local

if TYPE_CHECKING:
    from envforge.compat import Base, Tables
    from envforge.verdict import Verdict

DEFAULT_INDEX = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a field got its value; ``field`` is the spec path ("base.image"), shown by `show` and as a comment."""

    field: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseChoice:
    """The base image. ``python_from``: the image has the interpreter, apt installs it, or uv fetches it."""

    image: str  # "python:3.11-slim-bookworm" (with tag, without digest)
    digest: str | None  # "sha256:…" only when it is that of an image index or was given by hand
    system: str  # "debian:bookworm", "ubuntu:22.04"
    glibc: str  # "2.36"
    python_from: Literal["image", "apt", "uv", "conda"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaChoice:
    """The one CUDA of the environment. ``version`` "12.4"; ``tag`` "cu124"; ``cudnn`` "9.1" or None."""

    version: str
    tag: str
    source: CudaSource
    toolchain: Toolchain
    compat: bool
    cudnn: str | None
    # Images whose files builder stages copy: the toolkit (toolchain), the forward-compatibility libraries.
    toolkit_image: str | None = None
    compat_image: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkChoice:
    """A framework with its version decided. ``version`` may carry the local label; ``distribution`` is the pip name."""

    name: str  # "torch", "tensorflow", "jax", …
    distribution: str  # "torch", "tensorflow-cpu", "paddlepaddle-gpu"
    version: str
    accelerator: Literal["cpu", "cuda"]
    cuda: str | None  # CUDA version of this build, None for CPU
    index: str  # index label, DEFAULT_INDEX for the default one


@dataclass(frozen=True, kw_only=True, slots=True)
class PipRequirement:
    """One requirement handed to the pip solver: PEP 508 text, the only index it may come from, and why it is there."""

    text: str
    index: str = DEFAULT_INDEX
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """Everything decided before locking. Two equal Resolutions lock the same way on any machine on the same date."""

    name: str
    description: str
    kind: Literal["environment", "base"]
    python: str  # "3.11"
    platform: str  # "linux/amd64"
    base: BaseChoice
    cuda: CudaChoice | None
    frameworks: tuple[FrameworkChoice, ...]
    requirements: tuple[PipRequirement, ...]
    constraints: tuple[PipRequirement, ...]  # bounds only, installed when something needs them
    indexes: Mapping[str, str]  # label -> URL; the default index has no entry
    index_packages: Mapping[str, tuple[str, ...]]  # label -> fnmatch patterns of packages bound to it
    find_links: tuple[str, ...]  # labels whose URL is a flat page of files
    mirrors: Mapping[str, str]
    conda: tuple[str, ...]
    channels: tuple[str, ...]
    apt: tuple[str, ...]
    apt_options: AptSpec
    env: tuple[tuple[str, str], ...]  # sorted
    user: UserSpec
    workdir: str
    files: tuple[FileSpec, ...]
    hooks: tuple[HookSpec, ...]
    smoke: SmokeSpec
    budget: BudgetSpec
    glibc: str  # oldest glibc that locked wheels must accept
    untested: bool  # an unverified choice was let through
    verdict: str  # ok | ok-with-limits | unverified
    reasons: tuple[Reason, ...] = field(default=())


# The interpreter a distribution ships as a package, by system.
_SYSTEM_PYTHON = {
    "debian:bullseye": "3.9",
    "debian:bookworm": "3.11",
    "debian:trixie": "3.13",
    "ubuntu:20.04": "3.8",
    "ubuntu:22.04": "3.10",
    "ubuntu:24.04": "3.12",
}
# Frameworks whose wheels leave CUDA and cuDNN to the system unless an extra brings them (torch bundles both).
_BRINGS_NO_CUDNN = ("tensorflow", "mxnet", "paddle")
_OLDEST_GLIBC = "2.28"  # assumed for a base nothing is known of: manylinux_2_28 wheels still install


def resolve(spec: EnvSpec, tables: Tables) -> Resolution:
    """Fill in every choice. Raises ConflictError (causes in ``context``, nearest change in ``hint``)."""
    reasons: list[Reason] = []
    judged = _judged(spec, tables)
    spec = _with_versions(spec, judged, reasons)
    reasons += [
        Reason(field=f"verdict.{item.reference}", value=item.severity, why=item.message)
        for item in judged.findings
        if item.severity in ("unverified", "limit", "warning")
    ]
    frameworks, wanted, bounds = _packages(spec, tables, reasons)
    indexes, patterns, flat = _indexes(spec, tables, frameworks)
    for label, url in sorted(indexes.items()):
        bound = ", ".join(patterns.get(label, ())) or "nothing by pattern"
        reasons.append(Reason(field=f"indexes.{label}", value=url, why=f"the only place for: {bound}"))
    base = _base(spec, tables, reasons)
    return Resolution(
        name=spec.full_name,
        description=spec.description,
        kind=spec.kind,
        python=spec.python,
        platform=spec.platform,
        base=base,
        cuda=_cuda(spec, tables, frameworks, reasons),
        frameworks=frameworks,
        requirements=_bind(wanted, patterns),
        constraints=_bind(bounds, patterns),
        indexes=indexes,
        index_packages=patterns,
        find_links=flat,
        mirrors=dict(sorted(spec.mirrors.items())),
        conda=tuple(dict.fromkeys(spec.packages.conda)),
        channels=spec.channels if _uses_conda(spec) else (),
        apt=_apt(spec, frameworks, tables, reasons),
        apt_options=spec.apt,
        env=_env(spec, reasons),
        user=spec.user,
        workdir=spec.workdir,
        files=spec.files,
        hooks=spec.hooks,
        smoke=spec.smoke,
        budget=spec.budget,
        glibc=spec.targets.glibc or base.glibc,
        untested=judged.verdict == "unverified",
        verdict=judged.verdict,
        reasons=tuple(reasons),
    )


def _uses_conda(spec: EnvSpec) -> bool:
    return bool(spec.packages.conda) or (spec.cuda is not None and spec.cuda.source == "conda")


def accelerator(spec: EnvSpec, framework: FrameworkSpec) -> Literal["cpu", "cuda"]:
    """What ``auto`` means: a local label decides, then whether the spec has CUDA."""
    if framework.accelerator != "auto":
        return framework.accelerator
    local = split_local(framework.version)[1] if framework.version else None
    if local is not None:
        return "cpu" if local == "cpu" else "cuda"
    return "cuda" if spec.cuda is not None else "cpu"


# --- verdict and versions -----------------------------------------------------------------------------------


def _judged(spec: EnvSpec, tables: Tables) -> Verdict:
    """The verdict on the spec, on its oldest target driver when it names several; ConflictError for a conflict."""
    from dataclasses import replace

    from envforge.verdict import judge, request_from_spec

    request = request_from_spec(spec)
    if len(spec.targets.drivers) > 1:
        request = replace(request, driver=min(spec.targets.drivers, key=key))
    found = judge(request, tables)
    if found.verdict != "conflict":
        return found
    first, *others = found.conflicts
    nearest = [" and ".join(item.changes) for item in found.nearest[:3]]
    raise ConflictError(
        first.reference,
        f"{spec.full_name}: {first.message}",
        context=tuple(f"{item.reference}: {item.message}" for item in others)
        + tuple(f"would work: {item}" for item in nearest),
        hint=f"nearest that works: {nearest[0]}" if nearest else first.hint,
    )


def _with_versions(spec: EnvSpec, found: Verdict, reasons: list[Reason]) -> EnvSpec:
    """The spec with a version for every framework: its own, or the one the verdict chose."""
    from dataclasses import replace

    chosen = {item.name: item.version for item in found.chosen}
    filled: dict[FrameworkName, FrameworkSpec] = {}
    for name, framework in spec.frameworks.items():
        place = f"frameworks.{name}.version"
        if framework.version is not None:
            reasons.append(Reason(field=place, value=framework.version, why="the spec says so"))
            filled[name] = framework
            continue
        cuda = spec.cuda.version if spec.cuda is not None and accelerator(spec, framework) == "cuda" else None
        why = f"the newest known with a build for Python {spec.python}" + (f" and CUDA {cuda}" if cuda else "")
        reasons.append(Reason(field=place, value=chosen[name], why=why))
        filled[name] = replace(framework, version=chosen[name])
    return replace(spec, frameworks=filled)


# --- packages and indexes -----------------------------------------------------------------------------------


def package_name(requirement: str) -> str:
    """The normalised name in a PEP 508 requirement."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else requirement


def _packages(
    spec: EnvSpec, tables: Tables, reasons: list[Reason]
) -> tuple[tuple[FrameworkChoice, ...], list[PipRequirement], list[PipRequirement]]:
    """Framework choices, requirements and constraints; what the spec names itself wins over what tables add."""
    choices: list[FrameworkChoice] = []
    wanted: dict[str, PipRequirement] = {}
    bounds: dict[str, PipRequirement] = {}
    own = {package_name(text) for text in spec.packages.pip}
    for name, framework in spec.frameworks.items():
        choice, extras = _framework(spec, name, framework, tables)
        choices.append(choice)
        text = f"{choice.distribution}{f'[{extras}]' if extras else ''}=={choice.version}"
        why = f"{name} for {'CUDA ' + str(choice.cuda) if choice.accelerator == 'cuda' else 'the CPU'}"
        if spec.cuda is None or spec.cuda.source != "conda":
            wanted[choice.distribution] = PipRequirement(text=text, index=choice.index, why=why)
        reasons.append(Reason(field=f"frameworks.{name}", value=text, why=_framework_why(choice, framework)))
        public = split_local(choice.version)[0]
        for need in tables.undeclared_needs(name, public, spec.python, choice.accelerator, choice.cuda):
            target = package_name(need.text)
            if need.kind == "requirement" and target not in own:
                wanted.setdefault(target, PipRequirement(text=need.text, why=need.why))
                reasons.append(Reason(field="packages.pip", value=need.text, why=need.why))
            elif need.kind == "constraint":
                bounds.setdefault(need.text, PipRequirement(text=need.text, why=need.why))
                reasons.append(Reason(field="constraints", value=need.text, why=need.why))
    for text in dict.fromkeys(spec.packages.pip):
        wanted[_once(text, wanted)] = PipRequirement(text=text, why="the spec asks for it")
    return tuple(choices), list(wanted.values()), list(bounds.values())


def _once(text: str, taken: Mapping[str, PipRequirement]) -> str:
    """A key for a requirement: its name, unless the name is taken (two markers for one package are both kept)."""
    name = package_name(text)
    return name if name not in taken else text


def _framework(spec: EnvSpec, name: str, framework: FrameworkSpec, tables: Tables) -> tuple[FrameworkChoice, str]:
    """One framework's distribution, version text, CUDA build and index, and its extras as text."""
    assert framework.version is not None
    kind = accelerator(spec, framework)
    public, local = split_local(framework.version)
    wanted = spec.cuda.version if spec.cuda is not None and kind == "cuda" else None
    if wanted is None and local is not None and local.startswith("cu"):
        wanted = f"{local[2:-1]}.{local[-1]}"
    build = tables.build(name, public, wanted) if wanted else None
    found = tables.distribution_for(name, public, kind, wanted, spec.platform)
    version = framework.version if local else found.version
    index = framework.index or (found.index if not local or found.index != DEFAULT_INDEX else f"pytorch-{local}")
    extras = list(found.extras)
    if spec.cuda is not None and spec.cuda.source == "base":
        # CUDA libraries have one owner: with `from: base` the extras that bring wheels of them stay out.
        extras = _local_extras(name, public, extras, tables)
    extras = sorted({*extras, *framework.extras})
    choice = FrameworkChoice(
        name=name,
        distribution=found.name,
        version=version,
        accelerator=kind,
        cuda=(build.cuda if build else wanted) if kind == "cuda" else None,
        index=index,
    )
    return choice, ",".join(extras)


def _local_extras(name: str, version: str, extras: Iterable[str], tables: Tables) -> list[str]:
    """The extras without those that bring CUDA wheels; jax has ``cuda12-local`` for a CUDA that is there."""
    row = tables.release(name, version)
    known = row.extras if row is not None else ()
    kept = []
    for extra in extras:
        if "cuda" not in extra:
            kept.append(extra)
        else:
            series_name = re.sub(r"[-_]pip$", "", extra)
            kept += [item for item in known if item.replace("_", "-") == f"{series_name}-local"][:1]
    return kept


def _framework_why(choice: FrameworkChoice, framework: FrameworkSpec) -> str:
    if choice.index == DEFAULT_INDEX:
        return "the default index has this build"
    if framework.index:
        return f"the spec takes it from {choice.index}"
    return f"this build is only in {choice.index}; the default index has another one"


def _indexes(
    spec: EnvSpec, tables: Tables, frameworks: Iterable[FrameworkChoice]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Label -> URL, label -> package patterns, and the flat pages: the spec's own first, then well-known ones."""
    urls = {label: item.url for label, item in spec.indexes.items()}
    patterns = {label: item.packages for label, item in spec.indexes.items() if item.packages}
    flat = {label for label, item in spec.indexes.items() if item.find_links}
    for choice in frameworks:
        if choice.index == DEFAULT_INDEX or choice.index in urls:
            continue
        row = tables.index_row(choice.index)
        if row is None or row["url"] is None:
            raise ConflictError(
                "index-unknown",
                f"{choice.name} {choice.version} needs the index {choice.index!r}, whose URL is not known",
                hint=f"add it to the spec: indexes: {{{choice.index}: {{url: …}}}}",
            )
        urls[choice.index] = str(row["url"])
        patterns[choice.index] = tuple(row["packages"])
        if row["find_links"]:
            flat.add(choice.index)
    return dict(sorted(urls.items())), dict(sorted(patterns.items())), tuple(sorted(flat))


def _bind(
    requirements: Iterable[PipRequirement], patterns: Mapping[str, tuple[str, ...]]
) -> tuple[PipRequirement, ...]:
    """Each requirement with the only index it may come from."""
    from dataclasses import replace

    bound = []
    for item in requirements:
        name = package_name(item.text)
        if item.index in patterns and not any(fnmatchcase(name, glob) for glob in patterns[item.index]):
            item = replace(item, index=DEFAULT_INDEX)  # e.g. jax itself: only jaxlib stands on its vendor's page
        label = next((at for at, globs in patterns.items() if any(fnmatchcase(name, glob) for glob in globs)), None)
        bound.append(replace(item, index=label) if label and item.index == DEFAULT_INDEX else item)
    return tuple(bound)


def _apt(
    spec: EnvSpec, frameworks: Iterable[FrameworkChoice], tables: Tables, reasons: list[Reason]
) -> tuple[str, ...]:
    """The spec's Debian packages, and those that a framework loads without bringing or naming them."""
    wanted = dict.fromkeys(spec.packages.apt)
    for item in frameworks:
        public = split_local(item.version)[0]
        for need in tables.undeclared_needs(item.name, public, spec.python, item.accelerator, item.cuda):
            if need.kind == "apt" and need.text not in wanted:
                wanted[need.text] = None
                reasons.append(Reason(field="packages.apt", value=need.text, why=need.why))
    return tuple(sorted(wanted))


def _env(spec: EnvSpec, reasons: list[Reason]) -> tuple[tuple[str, str], ...]:
    """The spec's variables, sorted; Keras gets the backend that is there when the spec does not choose."""
    values = dict(spec.env)
    if "keras" in spec.frameworks and "KERAS_BACKEND" not in values:
        backend = next((name for name in ("tensorflow", "jax", "torch") if name in spec.frameworks), None)
        if backend is not None:
            values["KERAS_BACKEND"] = backend
            reasons.append(Reason(field="env.KERAS_BACKEND", value=backend, why="the backend in this environment"))
    return tuple(sorted(values.items()))


# --- CUDA and base ------------------------------------------------------------------------------------------


def _cuda(
    spec: EnvSpec, tables: Tables, frameworks: Iterable[FrameworkChoice], reasons: list[Reason]
) -> CudaChoice | None:
    cuda = spec.cuda
    if cuda is None:
        return None
    version = series(cuda.version)
    cudnn = cuda.cudnn
    for choice in frameworks:
        if cudnn is None and choice.accelerator == "cuda" and choice.cuda:
            cudnn = tables.cudnn_for(choice.name, split_local(choice.version)[0], choice.cuda)
            if cudnn:
                cudnn = cudnn.split()[0]
                why = f"{choice.name} {choice.version} was built with it"
                reasons.append(Reason(field="cuda.cudnn", value=cudnn, why=why))
    owner = {
        "wheels": "CUDA libraries come with the wheels, one owner for each; the base stays slim",
        "base": "CUDA libraries come with the base image",
        "conda": "CUDA libraries come from conda",
    }[cuda.source]
    reasons.append(Reason(field="cuda", value=f"{version} from {cuda.source}", why=owner))
    toolkit = tables.cuda_image(version, "devel") if cuda.toolchain != "none" else None
    compat = tables.cuda_image(version, "base") if cuda.compat else None
    for what, needed, found in (
        ("cuda.toolchain", cuda.toolchain != "none", toolkit),
        ("cuda.compat", cuda.compat, compat),
    ):
        if needed and found is None:
            raise ConflictError(
                "no-cuda-image",
                f"{what}: no nvidia/cuda image of CUDA {version} is known to take it from",
                hint=f"CUDA versions with images: {', '.join(tables.cuda_series())}",
            )
        if found is not None:
            reasons.append(Reason(field=what, value=found.image, why="a builder stage; only what is needed is copied"))
    return CudaChoice(
        version=version,
        tag="cu" + version.replace(".", ""),
        source=cuda.source,
        toolchain=cuda.toolchain,
        compat=cuda.compat,
        cudnn=cudnn,
        toolkit_image=_pinned(toolkit),
        compat_image=_pinned(compat),
    )


def _pinned(row: Base | None) -> str | None:
    """The image reference, by digest where that of the image index is known."""
    if row is None:
        return None
    return f"{row.image}@{row.digest}" if row.digest and "@" not in row.image else row.image


def _base(spec: EnvSpec, tables: Tables, reasons: list[Reason]) -> BaseChoice:
    """The base image: the spec's, or the smallest that fits who brings CUDA."""
    if spec.base.image != "auto":
        row, why = tables.base_image(spec.base.image), "the spec says so"
    elif spec.cuda is not None and spec.cuda.source == "base":
        row, why = _cuda_base(spec, tables)
    elif _uses_conda(spec):
        row, why = tables.base_image("debian:bookworm-slim"), "conda brings Python and libraries: a bare base"
    else:
        row = tables.python_image(spec.python)
        needs = "CUDA comes with the wheels" if spec.cuda is not None else "no CUDA is needed"
        why = f"{needs}, so the official slim image of Python {spec.python}"
    image, _, given = row.image.partition("@")
    digest = spec.base.digest or given or row.digest
    reasons.append(Reason(field="base.image", value=image, why=why + (f"; {row.note}" if row.note else "")))
    if digest:
        told = "fixed in the spec" if spec.base.digest or given else "known digest of the image index"
        reasons.append(Reason(field="base.digest", value=digest, why=told))
    return _base_choice(spec, row, image, digest, reasons)


def _base_choice(spec: EnvSpec, row: Base, image: str, digest: str | None, reasons: list[Reason]) -> BaseChoice:
    from envforge.bases import label

    system = label(row.system) if row.system else "unknown"
    source: Literal["image", "apt", "uv", "conda"]
    if _uses_conda(spec):
        source, why = "conda", "conda installs it"
    elif row.python == spec.python:
        source, why = "image", "the base has it"
    elif _SYSTEM_PYTHON.get(system) == spec.python:
        source, why = "apt", f"{system} ships it as a package"
    else:
        has = f"the base has Python {row.python}" if row.python else f"{system} does not ship it"
        source, why = "uv", f"{has}; uv fetches it with a known checksum"
    reasons.append(Reason(field="python", value=f"{spec.python} ({source})", why=why))
    return BaseChoice(image=image, digest=digest, system=system, glibc=row.glibc or _OLDEST_GLIBC, python_from=source)


def _cuda_base(spec: EnvSpec, tables: Tables) -> tuple[Base, str]:
    """An nvidia/cuda runtime image; with cuDNN only when no framework's wheels bring it."""
    assert spec.cuda is not None
    version = series(spec.cuda.version)
    wanted = spec.cuda.cudnn
    brings = True
    for name, framework in spec.frameworks.items():
        if framework.version and accelerator(spec, framework) == "cuda":
            build = tables.build(name, split_local(framework.version)[0], version)
            if name in _BRINGS_NO_CUDNN and build is not None and not build.wheels:
                brings = False
                wanted = wanted or build.cudnn
    cudnn_major = wanted.split(".")[0] if wanted and not brings else None
    row = tables.cuda_image(version, "runtime", cudnn_major)
    if row is None:
        need = f"CUDA {version}" + (f" with cuDNN {cudnn_major}" if cudnn_major else "")
        raise ConflictError(
            "no-cuda-image",
            f"no nvidia/cuda image of {need} is known",
            hint="cuda.from: wheels, or name base.image yourself",
        )
    why = (
        f"cuda.from is base; cuDNN {cudnn_major} is in it"
        if cudnn_major
        else "cuda.from is base; cuDNN comes with the wheels"
    )
    return row, why
