"""Further packages: what they claim about CUDA, which bounds they share with the frameworks, what cannot work."""

from __future__ import annotations

import fnmatch
import re

from envforge.compat import Tables
from envforge.judging.frameworks import extras_cuda, label_cuda
from envforge.judging.records import Chosen, Request, State
from envforge.versions import ANY, Range, Requirement, key, major, parse_range, parse_requirement, series


def read(request: Request, state: State) -> None:
    """Parse the package list; fills ``state.requirements`` and ``state.claims`` (package -> CUDA it claims)."""
    claims = {}
    for text in request.packages:
        try:
            found = parse_requirement(text)
        except ValueError:
            state.add("conflict", "bad-requirement", f"{text!r} is not a requirement", "write it like onnx==1.17.0")
            continue
        if found.name == "python":
            state.add(
                "warning",
                "python-as-package",
                f"{text!r} is not a package of the index",
                "write it as the python of the spec",
            )
            continue
        state.requirements.append(found)
        claim = _claim(found)
        if claim:
            claims[found.text] = claim
    for text in request.conda:
        claim = conda_cuda(text)
        if claim:
            claims[text] = claim
    state.claims = claims


def _claim(found: Requirement) -> str | None:
    suffix = re.search(r"-cu(\d{2})$", found.name)
    if suffix:
        return suffix[1]
    if found.name in ("jaxlib", "torch", "torchvision", "torchaudio"):
        return label_cuda(found.local)
    return extras_cuda(found.extras)


def conda_cuda(text: str) -> str | None:
    """The CUDA a conda spec claims: cudatoolkit=11.3, pytorch-cuda=11.7, cuda-version 12.4, build strings cuda129*."""
    body = text.split("::")[-1]
    match = re.match(r"(?:cudatoolkit|pytorch-cuda|cuda-version|cuda-toolkit)\s*[=<>~ ]+\s*(\d+\.\d+)", body)
    if match:
        return match[1]
    build = re.search(r"=\s*\*?(?:py\d+_?)?cuda(\d{2,3})", body)
    return label_cuda(f"cuda{build[1]}") if build else None


def judge_packages(request: Request, tables: Tables, state: State) -> None:
    """Everything about the packages and the bounds they share with the frameworks."""
    named = {item.name: item for item in state.requirements}
    for found in state.requirements:
        _withdrawn(found, tables, state)
        _known_row(found, request, tables, state)
        _companion(found, tables, state)
        _source_only(found, request, tables, state)
    if state.claims:
        _cuda_claims(request, state)
    _notes(request, tables, state)
    if named:
        _runtimes(named, request, tables, state)
        _exporters(named, tables, state)
    if named or len(state.chosen) > 1 or any(item.name == "keras" for item in state.chosen):
        _keras(named, tables, state)
    _cudnn(request, tables, state)
    _shared_pins(request, state)
    _shared_bounds(request, tables, state)


def _notes(request: Request, tables: Tables, state: State) -> None:
    if state.on_gpu and request.toolchain == "none" and "devel" not in request.base:
        state.add("info", "no-nvcc", "the image has no nvcc: nothing can be compiled for the GPU in it")
    if not request.conda and request.cuda_source != "conda":
        return
    for item in state.chosen:
        for need in tables.undeclared_needs(item.name, item.version, request.python, item.accelerator, item.cuda):
            if need.kind == "conda-constraint":
                state.add("info", "conda-bound", f"{need.text} is added: {need.why}")


def _withdrawn(found: Requirement, tables: Tables, state: State) -> None:
    if found.pinned is None:
        return
    rows = [*tables.raw("rules")["yanked"], *(r for r in tables.package_rows(found.name) if "yanked" in r)]
    for row in rows:
        if row["name"] == found.name and key(row["version"]) == key(found.pinned):
            reason = row.get("reason") or row.get("yanked")
            state.add(
                "conflict" if row.get("useless") else "limit",
                "yanked",
                f"{found.name} {found.pinned} was withdrawn from the index: {reason}",
                f"take {row['instead']}" if "instead" in row else "take a neighbouring release",
            )


def _known_row(found: Requirement, request: Request, tables: Tables, state: State) -> None:
    if found.pinned is None:
        return
    row = tables.package(found.name, found.pinned)
    if row is None:
        return
    pythons = row.get("python")
    if pythons and request.python not in pythons:
        state.add(
            "conflict",
            "no-wheel-for-python",
            f"{found.name} {found.pinned} has no wheel for Python {request.python}; it has them for "
            f"{', '.join(pythons)}",
            f"use Python {pythons[-1]} or another release",
        )
    elif row.get("requires_python") and request.python not in parse_range(row["requires_python"]):
        state.add(
            "conflict",
            "no-wheel-for-python",
            f"{found.name} {found.pinned} needs Python {row['requires_python']}",
            "use another Python or release",
        )
    for other, texts in row.get("needs", {}).items():
        item = next((c for c in state.chosen if c.name == other), None)
        for text in texts:
            if item is not None and item.version not in parse_range(text):
                state.add(
                    "conflict",
                    "needs-other-version",
                    f"{found.name} {found.pinned} needs {other}{text}; {item.text} is asked for",
                    f"use {other}{text}, or another {found.name}",
                )


def _companion(found: Requirement, tables: Tables, state: State) -> None:
    if found.pinned is None:
        return
    torch = next((item for item in state.chosen if item.name == "torch"), None)
    if found.name in ("torchvision", "torchaudio") and torch is not None and torch.release is not None:
        _torch_pair(found, torch, state)
    for row in tables.raw("rules")["tied"]:
        if (
            row["name"] == found.name
            and row["version"] == found.pinned
            and torch
            and key(row["torch"]) != key(torch.version)
        ):
            state.add(
                "conflict",
                "needs-other-version",
                f"{found.name} {found.pinned} needs torch {row['torch']}; {torch.text} is asked for",
                f"use torch {row['torch']}",
            )
    jax = next((item for item in state.chosen if item.name == "jax"), None)
    if jax is not None:
        _jax_pair(found, jax, tables, state)


def _torch_pair(found: Requirement, torch: Chosen, state: State) -> None:
    release = torch.release
    assert release is not None
    fits = release.companions.get(found.name, ())
    if found.local and torch.build and label_cuda(found.local) and label_cuda(found.local) != torch.build.cuda:
        state.add(
            "conflict",
            "companion-mismatch",
            f"{found.text} is built for CUDA {label_cuda(found.local)}, {torch.text} for CUDA {torch.build.cuda}",
            "take both from the same index",
        )
    if not any(key(text) == key(found.pinned or "") for text in fits):
        state.add(
            "conflict",
            "companion-mismatch",
            f"{found.name} {found.pinned} does not belong to torch {torch.version}; it goes with {found.name} "
            f"{' or '.join(fits)}",
            f"use {found.name} {fits[-1]}" if fits else "",
        )
    elif found.name in release.loose and series(found.pinned or "") != series(torch.version):
        state.add(
            "unverified" if found.name == "torchaudio" else "limit",
            "companion-unverified",
            f"{found.name} {found.pinned} beside torch {torch.version} cannot be verified from metadata: it "
            f"demands no particular torch",
            "the import test of the smoke run decides",
        )


def _jax_pair(found: Requirement, jax: Chosen, tables: Tables, state: State) -> None:
    if found.name == "jaxlib":
        want = jax.release.jaxlib if jax.release else None
        if want and key(found.pinned or "") > key(jax.version):
            state.add(
                "conflict",
                "companion-mismatch",
                f"jaxlib {found.pinned} is newer than jax {jax.version}; it goes with jaxlib {want}",
                f"use jaxlib {want}",
            )
        return
    rows = [
        r
        for r in tables.raw("jax")["companions"]
        if r["name"] == found.name and key(r["since"]) <= key(found.pinned or "0")
    ]
    if not rows:
        return
    for text in rows[-1].get("needs", {}).get("jax", []):
        if jax.version not in parse_range(text):
            state.add(
                "conflict",
                "needs-other-version",
                f"{found.name} {found.pinned} needs jax{text}; {jax.text} is asked for",
                f"use jax{text}, or an older {found.name}",
            )


def _source_only(found: Requirement, request: Request, tables: Tables, state: State) -> None:
    row = next((r for r in tables.raw("rules")["source_only"] if r["name"] == found.name), None)
    if row is None or (found.url and found.url.endswith(".whl")):
        return
    base = tables.base_image(request.base) if request.base != "auto" else None
    cuda = state.cuda
    if cuda is None and row["needs"] == "torch" and not state.on_gpu:
        state.add("limit", "source-only", f"{found.name} ({row['why']}) needs CUDA; this environment has none")
    elif request.toolchain == "none" and not (base and "devel" in (base.kind or "")):
        image = tables.cuda_image(cuda, "devel") if cuda else None
        state.add(
            "limit" if row.get("soft") else "conflict",
            "source-only",
            f"{found.name} ({row['why']}) needs nvcc of CUDA {cuda}, and "
            + (f"{base.image} has no compiler" if base else "no toolchain is asked for"),
            "cuda.toolchain: nvcc builds it in a stage of its own"
            + (f" on {image.image}" if image else "")
            + (", torch first and without build isolation" if row["needs"] == "torch" else "")
            + "; or name a matching prebuilt wheel",
        )
    elif base and base.cuda and cuda and base.cuda != cuda:
        state.add(
            "conflict",
            "nvcc-mismatch",
            f"{found.name} is compiled with nvcc {base.cuda} of {base.image}, but the frameworks use CUDA {cuda}",
            f"use a devel image of CUDA {cuda}",
        )
    lowest = row.get("min_capability")
    for name in request.gpus:
        gpu = tables.gpu(name)
        if lowest and gpu is not None and key(gpu.text) < key(lowest):
            state.add(
                "limit",
                "package-lacks-gpu",
                f"{found.name} does not serve {gpu.name} ({gpu.text}); it starts at {lowest}",
                "the rest of the environment works there",
            )


def _cuda_claims(request: Request, state: State) -> None:
    majors = {major(claim) for claim in state.claims.values()}
    if state.cuda is None:
        for text, claim in state.claims.items():
            state.add("limit", "cuda-claim", f"{text} is made for CUDA {claim}, and no framework here uses CUDA")
        return
    for text, claim in state.claims.items():
        if major(claim) != major(state.cuda):
            state.add(
                "conflict",
                "cuda-claim",
                f"{text} is made for CUDA {claim}; the environment uses CUDA {state.cuda}",
                f"take the variant for CUDA {major(state.cuda)}",
            )
        elif "." in claim and request.cuda and "." in request.cuda and key(claim) > key(series(request.cuda)):
            state.add(
                "limit",
                "cuda-claim-newer",
                f"{text} holds CUDA {claim} although CUDA {request.cuda} is declared",
                f"declare CUDA {claim}",
            )
    del majors


def _bound_index(name: str, request: Request) -> str | None:
    return next((index for pattern, index in request.bound if fnmatch.fnmatchcase(name, pattern)), None)


def _runtimes(named: dict[str, Requirement], request: Request, tables: Tables, state: State) -> None:
    gpu = named.get("onnxruntime-gpu")
    if gpu is not None and "onnxruntime" in named:
        state.add(
            "conflict",
            "onnxruntime-twice",
            "onnxruntime and onnxruntime-gpu write into the same folder, which hides the CUDA provider",
            "keep onnxruntime-gpu only",
        )
    if gpu is not None:
        _onnxruntime_gpu(gpu, request, tables, state)
    rt = next((item for name, item in named.items() if re.fullmatch(r"tensorrt(-cu\d+)?", name)), None)
    if rt is not None and rt.pinned and state.cuda:
        rows = [r for r in tables.raw("rules")["tensorrt"] if key(r["since"]) <= key(rt.pinned)]
        if (
            rows
            and major(state.cuda) not in rows[-1]["majors"]
            and not (major(state.cuda) == "11" and key(rt.pinned) < key("10.14"))
        ):
            state.add(
                "conflict",
                "tensorrt-cuda",
                f"TensorRT {rt.pinned} is made for CUDA {' and '.join(rows[-1]['majors'])}, not {state.cuda}",
                "use another TensorRT or CUDA",
            )


def _onnxruntime_gpu(found: Requirement, request: Request, tables: Tables, state: State) -> None:
    rows = [
        r
        for r in tables.package_rows("onnxruntime-gpu")
        if found.pinned is None or key(r["version"]) == key(found.pinned)
    ]
    rows = [r for r in rows if r["version"] in found.range and request.python in r.get("python", [request.python])]
    if not rows:
        if found.pinned and key(found.pinned) > key(tables.package_rows("onnxruntime-gpu")[-1]["version"]):
            state.add("unverified", "newer-than-tables", f"onnxruntime-gpu {found.pinned} is newer than the tables")
        return
    row = rows[-1]
    feed = "cuda-12" in (_bound_index("onnxruntime-gpu", request) or "")
    wants = "12" if feed and row["cuda_major"] == "11" else row["cuda_major"]
    name = f"onnxruntime-gpu {row['version']}"
    if state.cuda is None:
        state.add(
            "limit",
            "onnxruntime-cuda",
            f"{name} needs CUDA {wants} and cuDNN {row['cudnn_major']}, and nothing here brings them",
            "use onnxruntime, or add cuda",
        )
        return
    two_feeds = key("1.17") <= key(row["version"]) < key("1.19")
    if major(state.cuda) != wants:
        ways = []
        fits = [r["version"] for r in tables.package_rows("onnxruntime-gpu") if r["cuda_major"] == major(state.cuda)]
        if two_feeds and major(state.cuda) == "12":
            ways.append(f"take {row['version']} from the vendor's CUDA 12 feed (index onnxruntime-cuda-12, cuDNN 8)")
        if fits:
            ways.append(
                f"onnxruntime-gpu {fits[0]} to {fits[-1]} from the default index are CUDA {major(state.cuda)} "
                f"builds (cuDNN 9)"
            )
        state.add(
            "conflict",
            "onnxruntime-cuda",
            f"{name} from the default index is a CUDA {wants} build; the environment uses CUDA {state.cuda}",
            "; or ".join(ways),
        )
    cudnn = request.cudnn or state.cudnn
    if cudnn and major(cudnn) != row["cudnn_major"] and major(state.cuda) == wants:
        state.add(
            "conflict",
            "onnxruntime-cudnn",
            f"{name} needs cuDNN {row['cudnn_major']}; the environment has cuDNN {cudnn}",
            f"use cuDNN {row['cudnn_major']}, or another onnxruntime-gpu",
        )


def _exporters(named: dict[str, Requirement], tables: Tables, state: State) -> None:
    tf = next((item for item in state.chosen if item.name == "tensorflow"), None)
    if "tf2onnx" in named and tf is not None and tf.release is not None and tf.release.keras_generation == 3:
        state.add(
            "limit",
            "tf2onnx-keras3",
            f"tf2onnx.convert.from_keras fails on Keras 3 models, which {tf.text} makes (no _get_save_spec)",
            "export through a SavedModel or a function with an input signature; or Keras' own "
            "model.export(format='onnx') "
            "from Keras 3.8 on; or bring Keras 2 back with tf-keras and TF_USE_LEGACY_KERAS=1",
        )
    legacy = named.get("tf-keras")
    if legacy is not None and legacy.pinned is None and tf is not None:
        fits = [r["version"] for r in tables.package_rows("tf-keras") if series(r["version"]) == series(tf.version)]
        if not fits:
            state.add("unverified", "tf-keras", f"no tf-keras for {tf.text} is in the tables")


def _keras(named: dict[str, Requirement], tables: Tables, state: State) -> None:
    keras = next((item for item in state.chosen if item.name == "keras"), None)
    tf = next((item for item in state.chosen if item.name == "tensorflow"), None)
    wanted = keras.version if keras else named["keras"].pinned if "keras" in named else None
    if tf is not None and wanted and tf.release is not None:
        bounds = [b.range for b in tf.release.bounds.get("keras", ())]
        if any(wanted not in bound for bound in bounds):
            texts = ", ".join(bound.text for bound in bounds)
            state.add(
                "conflict",
                "keras-generation",
                f"{tf.text} needs keras {texts}; keras {wanted} is asked for",
                f"use keras {texts}, or another tensorflow",
            )
    if keras is None:
        return
    if key(keras.version) < key("3.0"):
        if tf is None and not any(name.startswith("tensorflow") for name in named):
            state.add(
                "conflict",
                "keras-without-backend",
                f"{keras.text} needs tensorflow {series(keras.version)}",
                f"add tensorflow {series(keras.version)} to frameworks",
            )
        return
    hosts = [item for item in state.chosen if item.name in ("tensorflow", "jax", "torch")]
    if not hosts and not any(name in named for name in ("tensorflow", "tensorflow-cpu", "jax", "torch", "openvino")):
        state.add(
            "conflict",
            "keras-without-backend",
            f"{keras.text} needs a backend: tensorflow, jax or torch",
            "add one of them to frameworks",
        )
    for item in hosts:
        least = (keras.release.backends if keras.release else {}).get(item.name)
        if least and key(item.version) < key(least):
            state.add(
                "conflict",
                "keras-backend-too-old",
                f"{keras.text} needs {item.name} {least} or newer; {item.text} is asked for",
                f"use {item.name} {least} or newer",
            )


def _cudnn(request: Request, tables: Tables, state: State) -> None:
    owners = [item for item in state.on_gpu if item.build is not None and item.build.cudnn]
    for item in owners:
        built = item.build.cudnn if item.build else None
        if built and request.cudnn:
            if major(request.cudnn) != major(built):
                state.add(
                    "conflict",
                    "cudnn-major",
                    f"{item.text} was built with cuDNN {built}; cuDNN {request.cudnn} is asked for",
                    f"use cuDNN {major(built)}",
                )
            elif "." in request.cudnn and key(series(request.cudnn)) < key(series(built)) and item.name != "torch":
                state.add(
                    "conflict",
                    "cudnn-too-old",
                    f"{item.text} was built with cuDNN {built} and does not run with the older {request.cudnn}",
                    f"use cuDNN {series(built)} or newer",
                )
            elif item.name == "torch" and series(request.cudnn) != series(built) and "." in request.cudnn:
                state.add(
                    "limit",
                    "cudnn-fixed",
                    f"{item.text} brings its own cuDNN {built}; the stated {request.cudnn} is not used by it",
                )
    majors = {major(item.build.cudnn or "") for item in owners if item.build}
    if len(majors) > 1:
        parts = ", ".join(f"{item.text} needs cuDNN {item.build.cudnn}" for item in owners if item.build)
        state.add(
            "conflict",
            "two-cudnn-majors",
            f"one environment can have one cuDNN: {parts}",
            "take releases of the same cuDNN major, or make one of them a CPU build",
        )
    best = max(owners, key=lambda item: key(item.build.cudnn or "0") if item.build else key("0"), default=None)
    if best is not None and best.build is not None:
        state.cudnn = request.cudnn or best.build.cudnn
        state.cudnn_owner = best.text
        if len(owners) > 1 and len(majors) == 1:
            state.add(
                "info",
                "shared-cudnn",
                f"{' and '.join(item.text for item in owners)} share one cuDNN; {best.text} asks for the "
                f"newest, {best.build.cudnn}",
            )
    else:
        state.cudnn = request.cudnn
    del tables


def _shared_pins(request: Request, state: State) -> None:
    """NVIDIA packages pinned by several builds (or by the user) must have a common version."""
    owners = [
        item
        for item in state.on_gpu
        if item.build is not None and item.build.pins and not (request.cuda_source == "base" and item.name != "torch")
    ]
    asked = [item for item in state.requirements if item.range != ANY]
    if not owners or (len(owners) == 1 and not asked):
        return
    found: dict[str, list[tuple[str, Range]]] = {}
    for item in owners:
        for name, bound in (item.build.pins if item.build else {}).items():
            found.setdefault(name, []).append((item.text, bound))
    for requirement in asked:
        if requirement.name in found:
            found[requirement.name].append((requirement.text, requirement.range))
    clashes = []
    for name, bounds in found.items():
        common = ANY
        for _, bound in bounds:
            common = common.meet(bound)
        if len(bounds) > 1 and common.empty:
            clashes.append(f"{name} ({'; '.join(f'{who} wants {bound.text}' for who, bound in bounds)})")
    if clashes:
        more = f" and {len(clashes) - 2} more" if len(clashes) > 2 else ""
        state.add(
            "conflict",
            "shared-library",
            f"no single version suits all: {', '.join(clashes[:2])}{more}",
            "take releases made for the same CUDA and cuDNN, or make one of them a CPU build",
        )


_BASE_LIBRARIES = ("numpy", "scipy", "protobuf", "setuptools", "h5py", "ml-dtypes")


def _shared_bounds(request: Request, tables: Tables, state: State) -> None:
    if not state.requirements and len(state.chosen) == 1:
        only = state.chosen[0]
        if tables.bounds_fit(only.name, only.version, request.python, only.accelerator, only.cuda):
            return
    parts: dict[str, list[tuple[str, Range]]] = {}
    for item in state.chosen:
        if item.release is None:
            continue
        known = tables.bounds_of(item.name, item.version, request.python, item.accelerator, item.cuda)
        for name, ranges in known.items():
            parts.setdefault(name, []).extend((item.text, bound) for bound in ranges)
    for requirement in state.requirements:
        if requirement.range != ANY:
            parts.setdefault(requirement.name, []).append(("the package list", requirement.range))
        row = tables.package(requirement.name, requirement.pinned) if requirement.pinned else None
        for name, texts in (row or {}).get("needs", {}).items():
            parts.setdefault(name, []).extend((requirement.text, parse_range(text)) for text in texts)
    for name in _BASE_LIBRARIES:
        if name in parts:
            _meet(name, list(dict.fromkeys(parts[name])), request, tables, state)


def _meet(name: str, parts: list[tuple[str, Range]], request: Request, tables: Tables, state: State) -> None:
    common = parts[0][1]
    for number, (who, bound) in enumerate(parts[1:], 1):
        common = common.meet(bound)
        if common.empty:
            earlier = "; ".join(f"{other} needs {name}{b.text}" for other, b in parts[:number])
            state.add(
                "conflict",
                "shared-bound",
                f"{who} needs {name}{bound.text}, but {earlier}",
                f"relax one of the bounds on {name}",
            )
            return
    wheels = tables.wheel_range(name, request.python)
    if wheels is ANY or not common.meet(wheels).empty:
        return
    texts = "; ".join(f"{who} needs {name}{bound.text}" for who, bound in parts)
    state.add(
        "conflict",
        "no-wheel-for-python",
        f"{texts}: no such {name} has a wheel for Python {request.python} (wheels there: {wheels.text}), "
        "and it is not compiled from source",
        f"use an older Python that {name} has such wheels for",
    )
