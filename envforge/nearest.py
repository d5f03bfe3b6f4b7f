"""The combinations nearest to a conflict that work. Pure; every candidate is judged like any other request.

Changes are tried smallest first: one change before two, and within that in the order driver, CUDA, Python, framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from envforge.compat import Release, Tables
from envforge.judging.records import Chosen, FrameworkRequest, Request
from envforge.versions import key, major, series, split_local

if TYPE_CHECKING:
    from envforge.verdict import Nearest, Verdict

# (what changes, the changed request)
Change = tuple[str, Request]
LIMIT = 4
PER_KIND = 3
# Judging is cheap, but a hopeless request must not cost more than some hundred judgements.
BUDGET = 900
KINDS = (
    "compat",
    "driver",
    "cuda",
    "cudnn",
    "base",
    "source",
    "toolchain",
    "python",
    "platform",
    "index",
    "framework",
    "accelerator",
)
# Second changes worth trying on top of a first one, in this order.
PAIRS = (
    ("driver", "cuda"),
    ("framework", "cuda"),
    ("driver", "framework"),
    ("framework", "python"),
    ("base", "framework"),
    ("source", "framework"),
    ("platform", "cuda"),
    ("platform", "framework"),
    ("toolchain", "framework"),
    ("framework", "framework"),
)


def search(verdict: Verdict) -> tuple[Nearest, ...]:
    """At most ``LIMIT`` working combinations, the smallest change first."""
    from envforge.verdict import judge

    tried: dict[Request, Verdict] = {verdict.request: verdict}
    singles: list[tuple[str, str, Verdict]] = []
    found: dict[str, list[Nearest]] = {}
    for kind, words, request in _changes(verdict):
        if request in tried or len(tried) > BUDGET or len(found.get(kind, ())) >= PER_KIND:
            continue
        answer = tried[request] = judge(request, verdict.tables)
        singles.append((kind, words, answer))
        _keep(found, kind, ((kind, words),), verdict, answer)
    if not any(kind != "accelerator" for kind in found):
        for first, second in PAIRS:
            for kind, words, between in singles:
                if kind == first:
                    _second(second, (kind, words), between, verdict, tried, found)
    return _arrange(found)


def _second(
    second: str,
    before: tuple[str, str],
    between: Verdict,
    verdict: Verdict,
    tried: dict[Request, Verdict],
    found: dict[str, list[Nearest]],
) -> None:
    """Try every change of one kind on top of a first one."""
    from envforge.verdict import judge

    name = f"{before[0]}+{second}"
    for kind, words, request in _changes(between, only=second):
        if request in tried or len(tried) > BUDGET or len(found.get(name, ())) >= PER_KIND:
            continue
        answer = tried[request] = judge(request, verdict.tables)
        _keep(found, name, (before, (kind, words)), verdict, answer)


def _keep(
    found: dict[str, list[Nearest]],
    name: str,
    steps: tuple[tuple[str, str], ...],
    verdict: Verdict,
    answer: Verdict,
) -> None:
    from envforge.verdict import Nearest

    if not answer.works:
        return
    steps = tuple(sorted(steps, key=lambda step: KINDS.index(step[0])))
    words = [text for _, text in steps]
    if "cuda" not in {kind for kind, _ in steps} and answer.cuda and answer.cuda != verdict.cuda:
        # A release change that brings another CUDA says so.
        words[-1] += f" (CUDA {answer.cuda} build)"
    found.setdefault(name, []).append(Nearest(changes=tuple(words), verdict=answer.verdict, request=answer.request))


def _arrange(found: dict[str, list[Nearest]]) -> tuple[Nearest, ...]:
    """The best of each kind first, in the order of kinds, then the second best; unverified ones last."""
    ranked = [
        (item.verdict == "unverified", len(item.changes), place, number, item)
        for number, (_, items) in enumerate(sorted(found.items(), key=lambda pair: _kind_place(pair[0])))
        for place, item in enumerate(sorted(items, key=lambda item: item.verdict == "unverified"))
    ]
    ranked.sort(key=lambda entry: entry[:4])
    return tuple(entry[4] for entry in ranked[:LIMIT])


def _kind_place(name: str) -> tuple[int, ...]:
    return tuple(sorted(KINDS.index(kind) for kind in name.split("+")))


def _changes(verdict: Verdict, only: str | None = None) -> Iterator[tuple[str, str, Request]]:
    makers = (
        _compat,
        _drivers,
        _cudas,
        _cudnns,
        _bases,
        _sources,
        _toolchains,
        _pythons,
        _platforms,
        _indexes,
        _frameworks,
        _accelerators,
    )
    for kind, make in zip(KINDS, makers, strict=True):
        if only is None or kind == only:
            for words, changed in make(verdict.request, verdict.chosen, verdict.tables):
                yield kind, words, changed


def _compat(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    if request.driver and not request.compat and request.gpus:
        gpus = [tables.gpu(name) for name in request.gpus]
        if all(gpu is not None and gpu.kind == "datacenter" for gpu in gpus):
            yield "cuda.compat: true (forward-compatibility package)", replace(request, compat=True)


def _cuda_of(request: Request, chosen: tuple[Chosen, ...]) -> str | None:
    found = [item.cuda for item in chosen if item.cuda]
    return series(request.cuda) if request.cuda else max(found, key=key) if found else None


def _drivers(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    if request.driver is None:
        return
    cuda = _cuda_of(request, chosen)
    floors = tables.driver_floors(cuda) if cuda else None
    wanted = [floors.minor, floors.native] if floors else []
    for name in request.gpus:
        gpu = tables.gpu(name)
        more = tables.driver_floors(gpu.first_cuda) if gpu else None
        wanted += [more.native] if more else []
    for driver in sorted(set(wanted), key=key):
        try:
            higher = key(driver) > key(request.driver)
        except ValueError:
            higher = True
        if higher:
            yield f"driver {driver} or newer", replace(request, driver=driver)


def _cudas(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    """Another CUDA build of the same releases; every framework on CUDA moves along."""
    have = _cuda_of(request, chosen)
    names = [item for item in request.frameworks if _on_cuda(item, request, chosen, tables)]
    options: set[str] = set()
    for item in names:
        framework, _ = tables.framework_name(item.name)
        picked = next((c for c in chosen if c.name == framework), None)
        if picked is not None and picked.release is not None:
            options |= set(picked.release.builds)
    if not names:
        if not request.cuda:
            return  # A CPU environment is not repaired by giving it a CUDA.
        options = set(tables.cuda_series())
    if not have and not options:
        return
    ordered = sorted(options - {have or ""}, key=lambda text: _distance(text, have))
    for cuda in ordered:
        changed = with_cuda(request, cuda, tables)
        yield f"CUDA {cuda}", changed
        if key(cuda) < key("11.0") and names and request.cuda_source != "conda":
            # No image with such a CUDA exists any more, but conda channels still have its libraries.
            yield f"CUDA {cuda} with cuda.from: conda", replace(changed, cuda_source="conda", base="auto")


def _distance(text: str, have: str | None) -> tuple[int, int, int]:
    if not have:
        return (0, 0, -_number(text))
    near = abs(_number(text) - _number(have))
    return (major(text) != major(have), near, -_number(text))


def _number(text: str) -> int:
    first, _, second = text.partition(".")
    return int(first) * 100 + int(second or 0)


def _on_cuda(item: FrameworkRequest, request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> bool:
    name, _ = tables.framework_name(item.name)
    picked = next((c for c in chosen if c.name == name), None)
    return picked is not None and picked.accelerator == "cuda"


def with_cuda(request: Request, cuda: str, tables: Tables) -> Request:
    """The request with another CUDA: labels, indexes and extras that name a CUDA follow it."""
    tag = "cu" + "".join(cuda.split(".")[:2])
    changed = []
    for item in request.frameworks:
        name, _ = tables.framework_name(item.name)
        version = item.version
        if version and "+" in version and split_local(version)[1] != "cpu":
            version = f"{split_local(version)[0]}+{tag}"
        if version and ".post" in version and name == "paddle":
            version = version.split(".post")[0]
        index = item.index
        if index and ("cu" in index or index == "default"):
            index = None
        extras = tuple(f"cuda{major(cuda)}" if e.startswith("cuda1") else e for e in item.extras)
        changed.append(replace(item, version=version, index=index, extras=extras))
    return replace(request, cuda=cuda, frameworks=tuple(changed))


def _cudnns(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    if request.cudnn is None:
        return
    for item in chosen:
        if item.build is not None and item.build.cudnn and item.build.cudnn != request.cudnn:
            yield f"cuDNN {series(item.build.cudnn)}", replace(request, cudnn=series(item.build.cudnn))
    for number in ("8", "9"):
        if number != major(request.cudnn):
            yield f"cuDNN {number}", replace(request, cudnn=number)


def _bases(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    if request.base == "auto":
        return
    base = tables.base_image(request.base)
    if base.instead:
        yield f"base {base.instead}", replace(request, base=base.instead)
    if base.cuda:
        cuda = _cuda_of(request, chosen)
        image = (
            tables.cuda_image(cuda, (base.kind or "runtime").split("-")[-1], major(base.cudnn) if base.cudnn else None)
            if cuda
            else None
        )
        if image:
            yield f"base {image.image}", replace(request, base=image.image)
    for item in chosen:
        if item.build is not None and item.build.cudnn and item.cuda:
            fits = tables.cuda_image(item.cuda, "runtime", major(item.build.cudnn), item.build.cudnn)
            if fits:
                yield f"base {fits.image}", replace(request, base=fits.image)
    yield "base: auto", replace(request, base="auto")


def _sources(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    if request.cuda_source == "wheels":
        yield "cuda.from: base", replace(request, cuda_source="base")


def _toolchains(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    if request.toolchain == "none" and request.packages:
        yield "cuda.toolchain: nvcc", replace(request, toolchain="nvcc")


def _pythons(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    rows = [row["python"] for row in tables.raw("rules")["pythons"]]
    try:
        have = key(request.python)[0]
    except ValueError:
        have = (3, 11)
    minor = have[1] if len(have) > 1 else 0
    for text in sorted(rows, key=lambda text: (abs(int(text.split(".")[1]) - minor), int(text.split(".")[1]) > minor)):
        if text != request.python:
            yield f"Python {text}", replace(request, python=text)


def _platforms(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    for name in request.gpus:
        gpu = tables.gpu(name)
        if gpu is not None and gpu.platform and f"linux/{gpu.platform}" != request.platform:
            yield f"platform: linux/{gpu.platform}", replace(request, platform=f"linux/{gpu.platform}")


def _indexes(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    for number, item in enumerate(request.frameworks):
        if item.index is not None:
            changed = (*request.frameworks[:number], replace(item, index=None), *request.frameworks[number + 1 :])
            yield f"{item.name}: index chosen by envforge", replace(request, frameworks=changed)


def _frameworks(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    """Other releases of one framework: same minor first, then the nearest newer, then the nearest older."""
    for number, item in enumerate(request.frameworks):
        name, _ = tables.framework_name(item.name)
        if name is None:
            continue
        picked = next((c for c in chosen if c.name == name), None)
        version = picked.version if picked else (item.version or "")
        rows = [row for row in tables.releases(name) if row.yanked is None]
        for row in _by_distance(rows, version):
            text = row.version
            if item.version and "+" in item.version:
                text = f"{text}+{item.version.split('+')[1]}"
            extras = tuple(_extra_of(row, extra) for extra in item.extras)
            changed = replace(item, version=text, extras=extras)
            frameworks = (*request.frameworks[:number], changed, *request.frameworks[number + 1 :])
            words = f"{name}[{','.join(extras)}] {text}" if extras != item.extras else f"{name} {text}"
            changed_request = replace(request, frameworks=frameworks)
            builds = row.builds.values()
            if request.cuda_source == "wheels" and any(
                build.extra_python is not None and request.python not in build.extra_python for build in builds
            ):
                words, changed_request = f"{words} with cuda.from: base", replace(changed_request, cuda_source="base")
            yield words, changed_request


def _extra_of(row: Release, extra: str) -> str:
    """Older jax spells its CUDA extras cuda11-pip, cuda12-pip."""
    if row.framework == "jax" and extra not in row.extras and f"{extra}-pip" in row.extras:
        return f"{extra}-pip"
    return extra


def _by_distance(rows: list[Release], version: str) -> list[Release]:
    try:
        wanted = key(version)
    except ValueError:
        return list(reversed(rows))
    same = [row for row in rows if row.key != wanted and series(row.version) == series(version)]
    newer = [row for row in rows if row.key > wanted and row not in same]
    older = [row for row in reversed(rows) if row.key < wanted and row not in same]
    mixed: list[Release] = [*sorted(same, key=lambda row: row.key, reverse=True)]
    for pair in zip(newer, older, strict=False):
        mixed += pair
    mixed += newer[len(older) :] + older[len(newer) :]
    return mixed


def _accelerators(request: Request, chosen: tuple[Chosen, ...], tables: Tables) -> Iterator[Change]:
    if len(request.frameworks) < 2 and request.gpus:
        return
    for number, item in enumerate(request.frameworks):
        if item.accelerator != "cpu" and _on_cuda(item, request, chosen, tables):
            version = split_local(item.version)[0] if item.version else None
            changed = replace(item, accelerator="cpu", version=version, extras=(), index=None)
            frameworks = (*request.frameworks[:number], changed, *request.frameworks[number + 1 :])
            alone = len(request.frameworks) == 1
            yield (
                f"{item.name} as a CPU build",
                replace(request, frameworks=frameworks, cuda=None if alone else request.cuda),
            )
