"""Driver and GPUs: is the driver new enough, and does each card find code it can run."""

from __future__ import annotations

from envforge.compat import Capability, Floors, Gpu, Tables
from envforge.judging.records import Chosen, Request, State
from envforge.versions import is_version, key, major, parse_range


def judge_driver(request: Request, tables: Tables, state: State) -> None:
    """Fill ``state.driver`` and ``state.driver_answer``."""
    cuda = state.cuda
    if cuda is None:
        state.driver = {"given": request.driver, "floor": None, "minor_version_floor": None, "answer": "not-needed"}
        state.driver_answer = "not-needed"
        return
    floors = tables.driver_floors(cuda)
    strict = [item.build.driver for item in state.on_gpu if item.build and item.build.driver]
    native = floors.native if floors else None
    minor = max([floors.minor, *strict], key=key) if floors else None
    state.driver = {"given": request.driver, "floor": native, "minor_version_floor": minor, "answer": "unknown"}
    compiles = any((item.build and item.build.jit) or item.name in ("jax", "tensorflow") for item in state.on_gpu)
    if compiles and request.driver is None and native and minor and key(native) > key(minor):
        state.add(
            "info",
            "driver-recommended",
            f"any driver from {minor} on can run CUDA {cuda}; {native} or newer is recommended, because XLA "
            f"compiles at run time",
        )
    if request.driver is None:
        return
    if not is_version(request.driver):
        state.add("conflict", "bad-driver", f"{request.driver!r} is not a driver version", "write it like 535.104.05")
        return
    if floors is None:
        return
    state.driver_answer = _answer(request, tables, state, floors, minor or floors.minor)
    state.driver["answer"] = state.driver_answer
    _speak(request, tables, state, floors, minor or floors.minor)


def _answer(request: Request, tables: Tables, state: State, floors: Floors, minor: str) -> str:
    driver = key(request.driver or "")
    if driver >= key(floors.native):
        return "native"
    if driver >= key(minor) and key(floors.cuda) >= key("11"):
        return "minor-version"
    # Without a named card, compat: true is taken as the statement that the hosts have data-centre GPUs.
    able = _all_datacentre(request, tables) if request.gpus else request.compat
    return "forward-compat" if able else "too-old"


def _all_datacentre(request: Request, tables: Tables) -> bool:
    found = [tables.gpu(name) for name in request.gpus]
    return bool(found) and all(gpu is not None and gpu.kind == "datacenter" for gpu in found)


def _speak(request: Request, tables: Tables, state: State, floors: Floors, minor: str) -> None:
    cuda, driver, answer = floors.cuda, request.driver, state.driver_answer
    if answer == "minor-version":
        state.add(
            "limit",
            "minor-version",
            f"driver {driver} is older than CUDA {cuda}'s own {floors.native}: it runs in minor-version compatibility "
            f"(CUDA {major(cuda)}.x from {minor} on). Code that is compiled on the device from PTX made by CUDA {cuda} "
            "does not run there, nor do features that need the newer driver",
            f"driver {floors.native} or newer removes the limits",
        )
    elif answer == "forward-compat" and request.compat:
        state.add(
            "limit",
            "forward-compat",
            f"driver {driver} is below {minor}; the CUDA compatibility package lets data-centre GPUs (no others) "
            f"run CUDA {cuda} on it",
            f"driver {floors.native} or newer needs no such package",
        )
    elif answer in ("too-old", "forward-compat"):
        able = answer == "forward-compat"
        state.add(
            "conflict",
            "driver-too-old",
            f"driver {driver} is too old for CUDA {cuda}: "
            f"{'any CUDA ' + major(cuda) + '.x' if key(cuda) >= key('11') else 'it'} needs {minor} or newer"
            + (f" ({cuda} itself came with {floors.native})" if floors.native != minor else ""),
            f"update the driver to {minor} or newer, or use an older CUDA"
            + ("; on these data-centre GPUs cuda.compat: true adds the forward-compatibility package" if able else ""),
        )
    if answer == "native" and floors.branch_only:
        state.add(
            "limit", "low-confidence", f"the first driver of CUDA {cuda} is known by its branch only ({floors.native})"
        )


def judge_gpus(request: Request, tables: Tables, state: State) -> None:
    """Fill ``state.gpus``: one answer per card asked for."""
    for name in request.gpus:
        vendor = tables.gpu_vendor(name) if tables.gpu(name) is None else None
        if vendor:
            state.add(
                "conflict",
                "gpu-not-supported",
                f"{name}: {vendor} is not supported; NVIDIA GPUs are",
                "use a CPU build there",
            )
            state.gpus.append({"model": name, "capability": None, "answer": "not-supported"})
            continue
        gpu = tables.gpu(name)
        if gpu is None:
            known = _close(name, tables)
            state.add(
                "unverified",
                "unknown-gpu",
                f"{name} is not in the tables",
                (f"did you mean {known}? " if known else "") + "a compute capability such as sm_90 works too",
            )
            state.gpus.append({"model": name, "capability": None, "answer": "unknown"})
            continue
        answer = _judge_gpu(gpu, request, tables, state) if state.on_gpu or state.cuda else "not-needed"
        state.gpus.append({"model": gpu.name, "capability": gpu.text, "answer": answer})


def _close(name: str, tables: Tables) -> str | None:
    import difflib

    plain = {row.name.lower(): row.name for row in tables.gpus()}
    near = difflib.get_close_matches(name.lower(), plain, 1, 0.6)
    return plain[near[0]] if near else None


_RANK = ("none", "unknown", "ptx", "kernels")


def _judge_gpu(gpu: Gpu, request: Request, tables: Tables, state: State) -> str:
    _fit_machine(gpu, request, tables, state)
    answers = [_kernels(gpu, item, tables, state) for item in state.on_gpu if item.cuda]
    if not answers and state.on_gpu:
        if not any(found.severity == "conflict" for found in state.findings):
            state.add(
                "conflict",
                "no-gpu-build",
                f"nothing here runs on {gpu.name}: {state.on_gpu[0].text} is asked for with CUDA, "
                "and no framework in the environment has a CUDA build",
                "give one framework a CUDA build (leave out accelerator: cpu), or leave out cuda",
            )
        return "none"
    if not answers:
        bounds = tables.toolkit_capabilities(state.cuda or "")
        if bounds and not bounds[0] <= gpu.capability <= bounds[1]:
            state.add(
                "conflict",
                "toolkit-lacks-gpu",
                f"CUDA {state.cuda} cannot build for {gpu.name} ({gpu.text})",
                _cuda_hint(gpu, tables),
            )
            return "none"
        return "kernels" if bounds else "unknown"
    return min(answers, key=_RANK.index)


def _cuda_hint(gpu: Gpu, tables: Tables) -> str:
    fits = [c for c in tables.cuda_series() if (b := tables.toolkit_capabilities(c)) and b[0] <= gpu.capability <= b[1]]
    return f"CUDA {fits[0]} to {fits[-1]} know it" if fits else ""


def _fit_machine(gpu: Gpu, request: Request, tables: Tables, state: State) -> None:
    arch = request.platform.removeprefix("linux/")
    if gpu.platform and gpu.platform != arch:
        state.add(
            "conflict",
            "gpu-needs-platform",
            f"{gpu.name} sits in {gpu.platform} machines, the image is for {arch}",
            f"platform: linux/{gpu.platform}",
        )
    if gpu.kind == "jetson" and gpu.capability < (11, 0):
        state.add(
            "conflict",
            "jetson",
            f"{gpu.name} runs NVIDIA's JetPack; the wheels of the public indexes do not run there",
            "use NVIDIA's L4T images",
        )
    elif gpu.kind == "jetson":
        state.add(
            "unverified",
            "jetson",
            f"{gpu.name}: public wheels on this board are not known to work",
            "smoke tests must pass on it",
        )
    if request.driver is None or state.driver_answer == "unknown":
        return
    last = tables.last_driver(gpu)
    if last and int(major(request.driver)) > int(last):
        state.add(
            "conflict",
            "driver-dropped-gpu",
            f"driver {request.driver} no longer drives {gpu.name} ({gpu.architecture}); R{last} is the last "
            f"branch for it",
            f"keep a driver of branch {last}",
        )
    floors = tables.driver_floors(gpu.first_cuda)
    if floors and key(request.driver) < key(floors.native):
        # Data-centre branches learn some newer cards in updates; consumer and Blackwell cards never ran there.
        sure = gpu.kind in ("consumer", "workstation") or gpu.capability >= (10, 0)
        state.add(
            "conflict" if sure else "limit",
            "driver-older-than-gpu",
            f"{gpu.name} came with CUDA {gpu.first_cuda} and driver {floors.native}; driver {request.driver} "
            + ("does not know it" if sure else "may not know it"),
            f"driver {floors.native} or newer",
        )


def _text(found: Capability) -> str:
    return f"sm_{found[0]}{found[1]}"


def _kernels(gpu: Gpu, item: Chosen, tables: Tables, state: State) -> str:
    build = item.build
    if build is None:
        state.add(
            "unverified",
            "kernels-unknown",
            f"whether {item.text} has code for {gpu.name} ({gpu.text}) is not known",
            "visibility.kernels of the smoke tests decides",
        )
        return "unknown"
    name = f"{item.text} (CUDA {build.cuda})"
    if build.kernels:
        return _compiled(gpu, item, name, tables, state)
    bounds = tables.toolkit_capabilities(build.cuda)
    lowest = max([c for c in (build.sm_min, bounds[0] if bounds else None) if c is not None], default=(0, 0))
    highest = bounds[1] if bounds else (0, 0)
    if gpu.capability < lowest:
        state.add(
            "conflict",
            "no-kernels",
            f"{name} needs compute capability {lowest[0]}.{lowest[1]}; {gpu.name} has {gpu.text}",
            _builds_hint(gpu, item, tables),
        )
        return "none"
    if build.jit and gpu.capability <= highest:
        if build.low:
            state.add(
                "limit",
                "low-confidence",
                f"{name}: that it covers {gpu.name} ({gpu.text}) is known with low confidence",
            )
        return "kernels"
    if not build.jit and gpu.capability[0] > highest[0]:
        state.add(
            "conflict",
            "no-kernels",
            f"{name}: CUDA {build.cuda} cannot build for {gpu.name} ({gpu.text}), it ends at {highest[0]}.{highest[1]}",
            _builds_hint(gpu, item, tables),
        )
        return "none"
    state.add(
        "unverified",
        "kernels-unknown",
        f"whether {name} has code for {gpu.name} ({gpu.text}) is not known",
        "visibility.kernels of the smoke tests decides",
    )
    return "unknown"


def _compiled(gpu: Gpu, item: Chosen, name: str, tables: Tables, state: State) -> str:
    build = item.build
    assert build is not None
    have = gpu.capability
    if any(c[0] == have[0] and c[1] <= have[1] for c in build.kernels):
        if build.low or gpu.low:
            state.add(
                "limit",
                "low-confidence",
                f"the kernel list of {name} is known with low confidence; by it {gpu.name} ({gpu.text}) is covered",
            )
        return "kernels"
    listed = ", ".join(_text(c) for c in build.kernels)
    older = [c for c in build.ptx if c <= have]
    if older and state.driver_answer == "minor-version":
        state.add(
            "conflict",
            "ptx-needs-driver",
            f"{name} reaches {gpu.name} ({gpu.text}) only through PTX, and driver {state.driver['given']} "
            f"cannot compile PTX of CUDA {build.cuda}",
            f"driver {state.driver['floor']} or newer",
        )
        return "none"
    if older:
        state.add(
            "unverified" if build.low else "limit",
            "ptx-only",
            f"{name} has no code for {gpu.name} ({gpu.text}); it is compiled from PTX at the first start, which is slow"
            + (", and that it carries such PTX is known with low confidence" if build.low else ""),
            "a build with its kernels avoids that",
        )
        return "ptx"
    state.add(
        "conflict",
        "no-kernels",
        f"{name} has code for {listed}; none of it runs on {gpu.name} ({gpu.text})",
        _builds_hint(gpu, item, tables),
    )
    return "none"


def _builds_hint(gpu: Gpu, item: Chosen, tables: Tables) -> str:
    """The builds with code for this card: of this release, else of the release nearest to it."""
    rows = tables.with_kernels(item.name, gpu.capability)
    if not rows:
        return ""
    own = item.release.version if item.release else item.version
    newer = [row for row in rows if key(row[0]) >= key(own)]
    version, builds = newer[-1] if newer else rows[0]
    return f"{item.name} {version} has its kernels in the CUDA {' and '.join(builds)} build" + (
        "s" if len(builds) > 1 else ""
    )


def base_accepts_driver(request: Request, tables: Tables, image: str) -> tuple[bool, str]:
    """Whether the driver requirement that an nvidia/cuda image carries is met, and the requirement in words."""
    base = tables.base_image(image)
    if request.driver is None or base.cuda is None or not is_version(request.driver):
        return True, ""
    brings = tables.driver_cuda(request.driver)
    words = f"cuda>={base.cuda}"
    if brings is not None and brings in parse_range(f">={base.cuda}"):
        return True, words
    gpus = [tables.gpu(name) for name in request.gpus]
    datacentre = all(gpu is None or gpu.kind in ("datacenter", "workstation", "unknown") for gpu in gpus)
    branch = major(request.driver) in base.accepts_branches
    return branch and (datacentre or base.accepts_geforce), words
