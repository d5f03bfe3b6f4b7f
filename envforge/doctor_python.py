"""Judges the Python side of a host: envforge's own interpreter and, with ``--python``, another one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envforge import diagnose, passthrough
from envforge.compat import Floors
from envforge.doctor import Finding, driver_version
from envforge.hostfacts import FrameworkFacts, HostFacts, InterpreterFacts
from envforge.versions import is_version, key, series

# Two distributions that write the same files: the one installed last wins, and removing one breaks the other.
_RIVALS = (
    ("onnxruntime", "onnxruntime-gpu"),
    ("tensorflow", "tensorflow-cpu"),
    ("paddlepaddle", "paddlepaddle-gpu"),
    ("opencv-python", "opencv-python-headless"),
)


def python(facts: HostFacts) -> Iterator[Finding]:
    """envforge's own interpreter."""
    old = not facts.python or key(facts.python) < key("3.11")
    if old or facts.python_bits != 64:
        yield Finding(
            area="python", reference="python-unfit", severity="error",
            evidence=f"Python {facts.python or 'unknown'}, {facts.python_bits} bit",
            message="envforge needs a 64-bit Python 3.11 or later; no framework has 32-bit wheels",
            hint="install one, for example with uv python install 3.11",
        )
    else:
        yield Finding(
            area="python", reference="python-ok", severity="ok", evidence=f"Python {facts.python}",
            message="envforge runs here",
        )


def framework(facts: HostFacts, floors: Sequence[Floors]) -> Iterator[Finding]:
    """What the interpreter of ``--python`` holds."""
    one = facts.interpreter
    if one is None:
        return
    if one.error:
        yield Finding(
            area="python", reference="interpreter-broken", severity="error", evidence=f"{one.path}: {one.error}",
            message="this interpreter cannot be looked into", hint="give the path of a python program",
        )
        return
    where = "virtual environment" if one.in_venv else "its own folder"
    yield Finding(
        area="python", reference="interpreter", severity="ok" if one.bits == 64 else "error",
        evidence=f"{one.path}: Python {one.version}, ABI flags {one.abiflags or 'none'}, {one.bits} bit, "
        f"glibc {one.glibc or 'unknown'}, {where}",
        message="an interpreter that frameworks can use" if one.bits == 64 else "no framework has 32-bit wheels",
    )
    if not one.frameworks:
        yield Finding(
            area="framework", reference="no-framework", severity="info", evidence=one.prefix,
            message="no framework is installed in this interpreter",
        )
    yield from _packages(one)
    for row in one.frameworks:
        yield from _one(row, one, facts, floors)


def _packages(one: InterpreterFacts) -> Iterator[Finding]:
    names = {name for name, _ in one.packages}
    for pair in _RIVALS:
        if names.issuperset(pair):
            yield Finding(
                area="framework", reference="rival-packages", severity="warning", evidence=" and ".join(pair),
                message="both packages write the same files; which one works depends on the order of installation",
                hint="uninstall both, then install the one that is wanted",
                commands=(f"{one.path} -m pip uninstall {' '.join(pair)}",),
            )
    majors = {found[1] for name in names if (found := re.fullmatch(r"nvidia-(?:cudnn|cublas|nccl)-cu(\d+)", name))}
    if len(majors) > 1:
        yield Finding(
            area="framework", reference="two-cuda-majors", severity="warning",
            evidence=", ".join(f"cu{major}" for major in sorted(majors)),
            message="CUDA libraries of two majors are installed; one framework may load the other's",
            hint="keep frameworks of different CUDA majors in separate environments",
        )
    for name, places in one.duplicates:
        yield Finding(
            area="framework", reference="duplicate-library", severity="warning",
            evidence=f"{name}: {', '.join(places[:4])}",
            message="a CUDA library can be loaded from more than one place",
            hint="leave one owner: clear LD_LIBRARY_PATH, or remove the extra package",
        )


def _one(
    row: FrameworkFacts, one: InterpreterFacts, facts: HostFacts, floors: Sequence[Floors]
) -> Iterator[Finding]:
    label = f"{row.name} {row.version}".strip()
    if row.error:
        known = diagnose.match(f"{row.output}\n{row.error}")
        yield Finding(
            area="framework", reference=known[0].reference if known else "import-failed", severity="error",
            evidence=f"import {row.name}: {row.error}",
            message=known[0].cause if known else f"{row.name} is installed and cannot be imported",
            hint=known[0].fix if known else "the error above says what is missing",
        )
        return
    abi = "" if row.cxx11_abi is None else f", C++11 ABI {'on' if row.cxx11_abi else 'off'}"
    build = f"CUDA {row.cuda}{f', cuDNN {row.cudnn}' if row.cudnn else ''}" if row.cuda else "CPU build"
    yield Finding(
        area="framework", reference="framework", severity="ok",
        evidence=f"{label}: {build}{abi}, {max(row.devices, 0)} GPU(s), {len(row.libraries)} CUDA libraries loaded",
        message="it imports",
    )
    foreign = [path for path in row.libraries if not path.startswith(one.prefix) and not _driver_file(path)]
    if foreign:
        yield Finding(
            area="framework", reference="foreign-library", severity="warning",
            evidence=f"{label}: {', '.join(foreign[:4])}",
            message="CUDA libraries from outside this environment are loaded in place of its own",
            hint="clear LD_LIBRARY_PATH"
            + (f" (now {':'.join(one.ld_library_path)})" if one.ld_library_path else ""),
        )
    stubs = [path for path in row.libraries if "/stubs/" in path]
    if stubs:
        message, hint = passthrough.CAUSES["gpu-stub-library"]
        yield Finding(
            area="framework", reference="gpu-stub-library", severity="error", evidence=f"{label}: {', '.join(stubs)}",
            message=message, hint=hint,
        )
    yield from _against_gpu(row, label, facts, floors)


def _driver_file(path: str) -> bool:
    """libcuda and libnvidia-ml belong to the host's driver wherever they lie."""
    return bool(re.search(r"/lib(cuda|nvidia-ml)\.so", path))


def _against_gpu(
    row: FrameworkFacts, label: str, facts: HostFacts, floors: Sequence[Floors]
) -> Iterator[Finding]:
    """The build against this host's driver and GPUs."""
    gpus = [gpu for gpu in facts.nvml.gpus if gpu.error is None]
    if not gpus:
        return
    if row.cuda is None:
        yield Finding(
            area="framework", reference="framework-cpu-build", severity="warning", evidence=label,
            message="a CPU build on a host with a GPU", hint="install the CUDA build if the GPU should be used",
        )
        return
    version = driver_version(facts)
    wanted = series(row.cuda) if "." in row.cuda else None
    floor = next((one for one in floors if one.cuda == wanted), None)
    if floor and version and is_version(version) and key(version) < key(floor.minor):
        yield Finding(
            area="framework", reference="gpu-driver-too-old", severity="error",
            evidence=f"{label} is built for CUDA {row.cuda}; driver {version}",
            message=f"the driver is below {floor.minor}, the floor of CUDA {wanted}",
            hint=f"update the driver to {floor.native} or later, or use a build for an older CUDA",
        )
        return
    for gpu in gpus:
        if row.kernels and gpu.capability and not passthrough.covers(gpu.capability, row.kernels):
            yield Finding(
                area="framework", reference="gpu-no-kernels", severity="error",
                evidence=f"{label}: {' '.join(row.kernels)}; GPU {gpu.index} {gpu.name} is sm_{gpu.capability}",
                message="the framework holds no code for this GPU: it is listed, and the first kernel fails",
                hint=f"envforge check NAME --gpu '{gpu.name}' proposes a build that covers it",
            )
            return
    if row.devices == 0:
        known = diagnose.match(row.output)
        yield Finding(
            area="framework", reference="gpu-cpu-fallback", severity="error",
            evidence=f"NVML counts {len(gpus)} GPU(s), {label} sees none",
            message="the framework fell back to the CPU"
            + (f": {known[0].cause}" if known else "; what it printed names no known cause"),
            hint=known[0].fix if known else "look at CUDA_VISIBLE_DEVICES and at what the import prints",
        )
    elif 0 < row.devices < len(gpus) and row.name != "onnxruntime":
        yield Finding(
            area="framework", reference="fewer-devices", severity="warning",
            evidence=f"NVML counts {len(gpus)} GPU(s), {label} sees {row.devices}",
            message="the framework sees fewer GPUs than there are", hint="look at CUDA_VISIBLE_DEVICES and MIG mode",
        )
