"""Frameworks: which release and which build, and whether they fit the interpreter, the platform and each other."""

from __future__ import annotations

import re
from typing import Literal

from envforge.compat import Build, Release, Tables
from envforge.judging.records import Chosen, FrameworkRequest, Request, State
from envforge.versions import is_prerelease, is_version, key, major, series, split_local


def label_cuda(label: str | None) -> str | None:
    """The CUDA a local label claims: ``cu118`` -> 11.8, ``cuda12.cudnn89`` -> 12, ``cuda111`` -> 11.1; else None."""
    match = re.match(r"cu(?:da)?(\d{2,3})(?!\d)", label or "")
    if match is None:
        return None
    digits = match[1]
    if len(digits) == 2 and digits[0] == "1":
        return digits
    return f"{digits[:-1]}.{digits[-1]}"


def index_cuda(index: str | None) -> str | None:
    """The CUDA (or ``cpu``) an index label or URL claims."""
    if index is None:
        return None
    match = re.search(r"(?:^|[/\-_])cu(\d{2,3})(?:$|[/\-_])", index)
    if match:
        return f"{match[1][:-1]}.{match[1][-1]}"
    return "cpu" if re.search(r"(?:^|[/-])cpu/?$", index) else None


def choose(request: Request, tables: Tables, state: State) -> None:
    """Fill ``state.chosen`` and say what does not fit."""
    more = _in_packages(request, tables, state) if state.requirements else ()
    for asked in (*request.frameworks, *more):
        item = _choose_one(asked, request, tables, state)
        if item is not None:
            state.chosen.append(item)
            if item.accelerator == "cuda":
                state.on_gpu.append(item)
    if len({item.name for item in state.chosen}) < len(state.chosen):
        names = ", ".join(item.text for item in state.chosen)
        state.add("conflict", "stated-twice", f"a framework stands twice: {names}", "state each once")
    if not request.frameworks and request.cuda:
        state.cuda = series(request.cuda)
    _one_cuda(request, tables, state)
    for item in state.chosen:
        if item.release is not None:
            _python(item, request, tables, state)
            _platform(item, request, tables, state)
            if item.release.yanked:
                state.add(
                    "limit",
                    "withdrawn-release",
                    f"{item.text} was withdrawn by its publisher" + _reason(item.release.yanked),
                    "take a neighbouring release",
                )
        if item.name == "mxnet":
            _mxnet(item, tables, state)
    if request.cuda and state.chosen and not state.on_gpu and not any(f.severity == "conflict" for f in state.findings):
        state.add(
            "limit",
            "cuda-unused",
            f"CUDA {request.cuda} is stated but every framework is a CPU build",
            "remove cuda, or set accelerator: cuda for a framework",
        )


def _reason(text: str) -> str:
    return "" if text.startswith("withdrawn") else f": {text}"


def _in_packages(request: Request, tables: Tables, state: State) -> list[FrameworkRequest]:
    """Frameworks pinned in the package list count as frameworks."""
    named = {tables.framework_name(item.name)[0] for item in request.frameworks}
    out = []
    for found in state.requirements:
        name, _ = tables.framework_name(found.name)
        if found.pinned is None or name is None:
            continue
        if name in named:
            asked = next(i.version for i in request.frameworks if tables.framework_name(i.name)[0] == name)
            if asked and is_version(asked) and key(asked) != key(found.pinned):
                state.add(
                    "conflict",
                    "stated-twice",
                    f"{name} is asked for as {asked} and, among the packages, as {found.pinned}",
                    "state it once, under frameworks",
                )
            continue
        version = f"{found.pinned}+{found.local}" if found.local else found.pinned
        out.append(FrameworkRequest(name=found.name, version=version, extras=found.extras))
    return out


def _choose_one(asked: FrameworkRequest, request: Request, tables: Tables, state: State) -> Chosen | None:
    name, implied = tables.framework_name(asked.name)
    if name is None:
        _unknown_framework(asked.name, tables, state)
        return None
    public, label = split_local(asked.version) if asked.version else (None, None)
    if public is None:
        newest = tables.newest_for(name, request.python, request.cuda if asked.accelerator != "cpu" else None)
        public = (newest or tables.newest(name)).version
    post = re.search(r"\.post(\d{2,3})$", public) if name == "paddle" else None
    if post and label is None:
        # paddle writes its CUDA as a post release: 2.4.2.post112 is CUDA 11.2.
        label = f"cu{post[1]}"
    if not is_version(public):
        state.add("conflict", "bad-version", f"{asked.name}: {public!r} is not a version", "write it like 2.6.0")
        return None
    said = " ".join((label or "", asked.index or "", *asked.extras)).lower()
    for word in ("rocm", "xpu", "npu", "tpu") if said.strip() else ():
        if re.search(rf"(?<![a-z]){word}(?![a-z])", said):
            row = next(r for r in tables.raw("rules")["unsupported"] if r["noun"] == word)
            state.add(
                "conflict",
                "not-supported",
                f"{asked.name} {asked.version}: {row['what']} is not supported",
                row["instead"],
            )
            return None
    accelerator = _accelerator(asked, implied, label, request, state)
    item = Chosen(name=name, version=public, label=label, accelerator=accelerator, index=asked.index or "default")
    if post:
        item.version = public[: post.start()]
        item.label = None
    _find_release(item, tables, state)
    if item.accelerator == "cuda":
        _choose_build(item, asked, label, request, tables, state)
    elif item.release is not None and label and label_cuda(label) and asked.accelerator == "cpu":
        state.add(
            "conflict",
            "label-disagrees",
            f"{item.text} is a CUDA {label_cuda(label)} build, but its accelerator is cpu",
            "drop the label, or set accelerator: cuda",
        )
    return item


def _unknown_framework(name: str, tables: Tables, state: State) -> None:
    plain = name.strip().lower()
    for row in tables.raw("rules")["known_nouns"]:
        if row["name"] == plain:
            state.add(
                "conflict",
                "not-a-framework",
                f"{name} is {row['what']}",
                "frameworks: " + ", ".join(tables.known_frameworks()),
            )
            return
    for row in tables.raw("rules")["unsupported"]:
        if row["noun"] == plain:
            state.add("conflict", "not-supported", f"{row['what']} is not supported", row["instead"])
            return
    state.add(
        "conflict",
        "unknown-framework",
        f"there is no framework {name!r}",
        "known: " + ", ".join(tables.known_frameworks()),
    )


def _accelerator(
    asked: FrameworkRequest, implied: str | None, label: str | None, request: Request, state: State
) -> Literal["cpu", "cuda"]:
    if asked.accelerator in ("cpu", "cuda"):
        return "cuda" if asked.accelerator == "cuda" else "cpu"
    if implied in ("cpu", "cuda"):
        return "cuda" if implied == "cuda" else "cpu"
    if label == "cpu" or index_cuda(asked.index) == "cpu":
        if request.cuda and len(request.frameworks) == 1:
            state.add(
                "conflict",
                "label-disagrees",
                f"{asked.name} {asked.version}: the label or index says cpu, the CUDA field says {request.cuda}"
                f" (index {asked.index or 'default'})",
                "make label, index and cuda say the same",
            )
        return "cpu"
    if request.cuda or label_cuda(label) or index_cuda(asked.index) or extras_cuda(asked.extras) or state.claims:
        return "cuda"
    return "cpu"


def extras_cuda(extras: tuple[str, ...]) -> str | None:
    """The CUDA major that extras claim: cuda12, cuda12_pip, cuda12-local, cu13."""
    for extra in extras:
        match = re.fullmatch(
            r"cu(?:da)?(\d{2})(?:[-_]?(?:pip|local|cudnn\d+))?", extra.strip().lower().replace("_", "-")
        )
        if match:
            return match[1]
    return None


def _find_release(item: Chosen, tables: Tables, state: State) -> None:
    item.release = tables.release(item.name, item.version)
    if item.release is not None:
        return
    rows = tables.releases(item.name)
    wanted = key(item.version)
    if item.name == "keras" and wanted < key("3.0"):
        return
    if wanted > rows[-1].key or (is_prerelease(item.version) and wanted > rows[0].key):
        item.nightly = True
        # Facts of the release it leads to, or of the newest one known: nothing better is known of a pre-release.
        below = [row for row in rows if row.key[0] <= wanted[0]]
        base = tables.release(item.name, re.split(r"[a-z]|\.dev", item.version.lower())[0].rstrip("."))
        item.release = base or (below[-1] if is_prerelease(item.version) and below else None)
        state.add(
            "unverified",
            "newer-than-tables" if not is_prerelease(item.version) else "pre-release",
            f"{item.text} is {'a pre-release' if is_prerelease(item.version) else 'newer than ' + rows[-1].version}, "
            "so nothing is known of it",
            "its smoke tests must pass before it can be trusted; --no-smoke is refused",
        )
        return
    if wanted < rows[0].key:
        state.add(
            "unverified",
            "older-than-tables",
            f"{item.text} is older than {rows[0].version}, the oldest in the tables: nothing is known of it",
            "its smoke tests must pass before it can be trusted",
        )
        return
    around = [row.version for row in rows if row.key < wanted][-1:] + [row.version for row in rows if row.key > wanted][
        :1
    ]
    gaps = item.name in ("paddle", "mindspore", "mxnet") and bool(around) and wanted > rows[0].key
    state.add(
        "unverified" if gaps else "conflict",
        "unknown-release",
        f"{item.name} has no release {item.version} in the tables",
        f"nearest: {', '.join(around)}",
    )


def _choose_build(
    item: Chosen, asked: FrameworkRequest, label: str | None, request: Request, tables: Tables, state: State
) -> None:
    claims = _claims(asked, label, request, tables, state)
    stated = {name: value for name, value in claims.items() if name != "packages"}
    values = [value for value in stated.values() if value]
    if len(values) > 1 and any(not agrees(a, b) for a in values for b in values):
        parts = ", ".join(f"{name} says {value}" for name, value in stated.items())
        state.add(
            "conflict",
            "label-disagrees",
            f"{item.text}: {parts}",
            "make the label, the index and the CUDA field say the same",
        )
        return
    if len(values) == 1:
        wanted: str | None = values[0]
    else:
        wanted = max(values, key=lambda text: (text.count("."), key(text))) if values else claims.get("packages")
    if "label" in stated and not request.cuda:
        state.add("info", "cuda-from-label", f"CUDA {wanted} read from the label of {item.text}")
    release = item.release
    if release is None:
        item.cuda = series(wanted) if wanted else None
        if item.name == "keras":
            item.cuda = None
        return
    arch = request.platform.removeprefix("linux/")
    if wanted is None:
        value = release.default.get(arch, "cpu")
        wanted = value if value != "cpu" else None
        if wanted is None and arch == "arm64" and any(arch in b.platforms for b in release.builds.values()):
            _arm_default(item, release, state)
            return
        if wanted is None and release.builds:
            newest = max(release.builds.values(), key=lambda b: key(b.cuda))
            wanted = newest.cuda
    if item.name == "keras":
        return
    _pick(item, asked, wanted, request, tables, state)


def _claims(
    asked: FrameworkRequest, label: str | None, request: Request, tables: Tables, state: State
) -> dict[str, str]:
    found = {
        "label": label_cuda(label),
        "index": index_cuda(asked.index),
        "extra": extras_cuda(asked.extras),
        "cuda": request.cuda,
    }
    out = {name: value for name, value in found.items() if value}
    if state.claims and not out:
        out["packages"] = next(iter(state.claims.values()))
    del tables
    return out


def agrees(first: str, second: str) -> bool:
    """Whether two CUDA statements can both be true; a bare major agrees with each of its series."""
    if "cpu" in (first, second):
        return first == second
    if "." in first and "." in second:
        return series(first) == series(second)
    return major(first) == major(second)


def _mxnet(item: Chosen, tables: Tables, state: State) -> None:
    names = sorted({b.distribution or "" for row in tables.releases("mxnet") for b in row.builds.values()})
    state.add("warning", "retired-project", "Apache MXNet is retired: there will be no further releases or fixes")
    if item.accelerator == "cpu":
        state.add("info", "cpu-package", f"plain mxnet is a CPU package; the CUDA builds are {', '.join(names)}")


def _arm_default(item: Chosen, release: Release, state: State) -> None:
    have = [b for b in release.builds.values() if "arm64" in b.platforms]
    state.add(
        "conflict",
        "default-index-cpu",
        f"the default index has only CPU wheels of {item.text} for arm64",
        "state the CUDA, so that the build comes from its own index: "
        + ", ".join(f"{b.cuda} ({b.vendor_index or b.index})" for b in have),
    )


def _pick(
    item: Chosen, asked: FrameworkRequest, wanted: str | None, request: Request, tables: Tables, state: State
) -> None:
    release = item.release
    assert release is not None
    build = tables.build(item.name, release.version, wanted) if wanted else None
    if request.cuda_source == "conda":
        _conda(item, wanted, build, state)
        return
    if build is None:
        _no_build(item, wanted, release, tables, state)
        return
    if item.name == "jax" and asked.extras and not _has_extra(release, asked.extras):
        state.add(
            "conflict",
            "extra-dropped",
            f"{item.text} has no extra {', '.join(asked.extras)}; it offers {', '.join(release.extras) or 'none'}",
            "use an extra it offers, or an older jax",
        )
    item.build = build
    exact = series(wanted) if wanted and "." in wanted else None
    item.cuda = exact or _floating(build, tables)
    if item.nightly and wanted and build.cuda != series(wanted):
        item.cuda = series(wanted)
    if asked.index == "default":
        arch = request.platform.removeprefix("linux/")
        have = release.default.get(arch)
        if build.index != "default" or (item.name == "torch" and have != build.cuda):
            state.add(
                "conflict",
                "index-lacks-build",
                f"the default index has {item.name} {release.version} for {arch} as "
                f"{'a CPU build' if have in (None, 'cpu') else 'CUDA ' + str(have)}, not CUDA {build.cuda}",
                f"take it from {build.vendor_index or build.index}",
            )
    _extra_installs(item, build, request, state)
    if build.broken and not _cuda_base(request, tables):
        state.add(
            "conflict",
            "broken-build",
            f"{item.name} {release.version}+{build.tag}: {build.broken}",
            "take another CUDA build, or a base image with CUDA and cuDNN",
        )


def _extra_installs(item: Chosen, build: Build, request: Request, state: State) -> None:
    """Some extras that bring the CUDA libraries cannot be installed on every Python."""
    if build.extra_python is None or request.python in build.extra_python or request.cuda_source == "base":
        return
    fits = [text for text in build.extra_python if text != "none"]
    state.add(
        "conflict" if request.cuda_source == "wheels" else "limit",
        "extra-not-installable",
        f"{item.name}[{','.join(build.extras)}] {item.version} cannot be installed on Python {request.python}: "
        "it pins TensorRT packages that have no wheel there",
        "cuda.from: base takes the CUDA libraries from the image" + (f"; or use Python {fits[-1]}" if fits else ""),
    )


def _conda(item: Chosen, wanted: str | None, build: Build | None, state: State) -> None:
    """Conda channels build for other CUDA versions than the wheels: the conda solver decides what exists."""
    item.cuda = series(wanted) if wanted else None
    if build is not None and wanted and build.cuda == series(wanted):
        item.build = build
    state.add(
        "limit",
        "conda-build",
        f"{item.text} comes from a conda channel: which CUDA builds and kernels it has there is decided when "
        f"it is locked",
    )


def _floating(build: Build, tables: Tables) -> str:
    """The CUDA of a build that takes a range and was given only a major: pip installs the newest of that major."""
    if build.accepts is None or not build.wheels:
        return build.cuda
    fits = [text for text in tables.cuda_series() if text in build.accepts]
    return max(fits, key=key) if fits else build.cuda


def _has_extra(release: Release, extras: tuple[str, ...]) -> bool:
    return all(text.replace("_", "-").lower() in release.extras or not re.match(r"cu", text) for text in extras)


def _cuda_base(request: Request, tables: Tables) -> bool:
    base = tables.base_image(request.base) if request.base != "auto" else None
    return bool(base and base.cuda and base.cudnn)


def _no_build(item: Chosen, wanted: str | None, release: Release, tables: Tables, state: State) -> None:
    have = tables.cuda_builds(item.name, release.version)
    if not have:
        extra = ""
        if item.name == "mxnet":
            names = sorted({b.distribution or "" for row in tables.releases("mxnet") for b in row.builds.values()})
            extra = f"; CUDA builds are separate packages: {', '.join(names)}"
        state.add(
            "conflict",
            "no-cuda-build",
            f"{item.text} has no published CUDA build{extra}",
            "use its CPU build (accelerator: cpu)",
        )
        return
    if item.nightly and wanted:
        near = [b for row in tables.releases(item.name) for b in row.builds.values() if b.cuda == series(wanted)]
        if near:
            item.build, item.cuda = near[-1], series(wanted)
            return
    others = tables.with_cuda(item.name, wanted) if wanted else ()
    more = f"; {item.name} {others[-1]} is the last with CUDA {wanted}" if others else ""
    if item.name == "jax" and wanted and major(wanted) == "11":
        more += "; the cuda11 extra and its builds ended with jax 0.4.25"
    own = item.index != "default" and "://" in item.index and "download.pytorch.org" not in item.index
    if own:
        # What a private index holds is not known; it may have been built for exactly this.
        item.cuda = series(wanted) if wanted else None
    state.add(
        "unverified" if own else "conflict",
        "no-such-build",
        f"{item.text} has no CUDA {wanted} build; its builds: {', '.join(have)}{more}",
        "take one of its builds, or another release",
    )


def _one_cuda(request: Request, tables: Tables, state: State) -> None:
    found = [item for item in state.on_gpu if item.cuda]
    if not found:
        # No build fits, but what was asked for still has driver floors to tell.
        if state.on_gpu and request.cuda and tables.driver_floors(request.cuda):
            state.cuda = series(request.cuda)
        return
    majors = sorted({major(item.cuda or "") for item in found})
    if len(majors) > 1:
        parts = ", ".join(f"{item.text} needs CUDA {item.cuda}" for item in found)
        state.add(
            "conflict",
            "two-cuda-majors",
            f"one environment can have one CUDA major: {parts}",
            "build them for the same CUDA, or make one of them a CPU build",
        )
    state.cuda = max((item.cuda or "" for item in found), key=key)
    if request.cuda_source == "conda":
        # What the conda packages hold is the truth, whatever the spec declares.
        held = [c for c in state.claims.values() if "." in c and major(c) == major(state.cuda)]
        state.cuda = max([state.cuda, *held], key=key)
    for item in found:
        if item.build and item.build.low:
            state.cuda_low = True
    if not tables.driver_floors(state.cuda) and key(state.cuda) > key(tables.cuda_series()[-1]):
        state.add(
            "unverified",
            "cuda-newer-than-tables",
            f"CUDA {state.cuda} is newer than the tables",
            "smoke tests must pass",
        )
    elif not tables.driver_floors(state.cuda):
        state.add(
            "conflict",
            "no-such-cuda",
            f"there is no CUDA {state.cuda} toolkit in the tables",
            "known: " + ", ".join(tables.cuda_series()),
        )


def _python(item: Chosen, request: Request, tables: Tables, state: State) -> None:
    release = item.release
    assert release is not None
    if request.python in release.python:
        if release.python_unsure:
            state.add(
                "limit", "low-confidence", f"which Pythons {item.text} has wheels for is known with low confidence only"
            )
        return
    known = release.python
    span = f"{known[0]} to {known[-1]}" if len(known) > 1 else known[0]
    if request.cuda_source == "conda":
        state.add("unverified", "conda-build", f"{item.text} has wheels for Python {span}; its conda builds may differ")
        return
    first = tables.first_with_python(item.name, request.python, release.key)
    if item.nightly or (key(request.python) > key(tables.raw("rules")["pythons"][-1]["python"])):
        state.add(
            "unverified",
            "python-unverified",
            f"{item.text}: wheels are known for Python {span}, not for {request.python}",
        )
        return
    state.add(
        "conflict",
        "no-wheel-for-python",
        f"{item.text} has no wheel for Python {request.python}; it has them for {span}",
        f"use Python {known[-1]}"
        + (f", or {item.name} {first}, the first with a {request.python} wheel" if first else ""),
    )


def _platform(item: Chosen, request: Request, tables: Tables, state: State) -> None:
    del tables
    release, arch = item.release, request.platform.removeprefix("linux/")
    assert release is not None
    if item.accelerator == "cuda" and item.build is not None and arch not in item.build.platforms and not item.nightly:
        have = [b.cuda for b in release.builds.values() if arch in b.platforms]
        state.add(
            "conflict",
            "no-build-for-platform",
            f"{item.text} has no CUDA {item.build.cuda} wheel for {arch}",
            f"its {arch} builds: CUDA {', '.join(have)}" if have else f"it has no CUDA wheel for {arch}",
        )
    elif item.accelerator == "cpu" and release.default and arch not in release.default:
        state.add(
            "conflict",
            "no-build-for-platform",
            f"{item.text} has no wheel for {arch}",
            "use linux/amd64 or another release",
        )
