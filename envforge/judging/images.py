"""The base image: does it exist, does its glibc suit the wheels, does its CUDA suit the frameworks."""

from __future__ import annotations

from envforge.compat import Base, Tables
from envforge.judging.hardware import base_accepts_driver
from envforge.judging.records import Chosen, Request, State
from envforge.versions import key, major

# Support windows are judged at the date of the tables, so that a verdict never depends on the clock.
CHECKED = "2026-11"


def judge_base(request: Request, tables: Tables, state: State) -> None:
    """Say what does not fit about the base image, stated or chosen."""
    needs_base = _needs_cuda_base(request, state)
    base = tables.base_image(request.base) if request.base != "auto" else None
    if base is None and needs_base and state.cuda:
        wanted = major(state.cudnn) if state.cudnn else None
        majors = (wanted,) if wanted else ("8", "9")
        options = ((kind, number) for kind in ("runtime", "devel") for number in majors)
        base = next((b for kind, n in options if (b := tables.cuda_image(state.cuda, kind, n, state.cudnn))), None)
        if base is None:
            old = key(state.cuda) < key("11.0")
            state.add(
                "conflict" if old else "limit",
                "no-cuda-image",
                f"the CUDA libraries must come from the base image, and no nvidia/cuda image of CUDA {state.cuda} "
                + ("exists any more" if old else "is in the tables"),
                "cuda.from: conda brings the libraries from a conda channel; or name an image of your own",
            )
        else:
            state.add("info", "cuda-from-base", f"the CUDA libraries come from the base image {base.image}")
    _glibc(request, base, tables, state)
    if base is None:
        return
    if request.base != "auto":
        _exists(base, state)
    if base.python and base.python != request.python:
        state.add(
            "warning", "base-python", f"{base.image} has Python {base.python}; {request.python} is installed beside it"
        )
    if base.cuda:
        _cuda(request, base, needs_base, tables, state)
    elif needs_base:
        who = next((item.text for item in state.on_gpu), "the environment")
        state.add(
            "conflict",
            "base-without-cuda",
            f"{who} takes its CUDA libraries from the base image, and {base.image} has none",
            f"use a base image with CUDA {state.cuda}, or base: auto",
        )


def _needs_cuda_base(request: Request, state: State) -> bool:
    """Whether the CUDA libraries must come from the image: said so, or the wheels bring none."""
    if request.cuda_source == "base":
        return state.cuda is not None
    if request.cuda_source == "conda":
        return False
    return any(
        item.name in ("tensorflow", "mxnet", "paddle") and item.build is not None and not item.build.wheels
        for item in state.on_gpu
    )


def _exists(base: Base, state: State) -> None:
    hint = f"use {base.instead}" if base.instead else "use a tag that exists"
    if base.status == "gone":
        state.add("conflict", "base-gone", f"{base.image}: {base.note or 'the tag was deleted'}", hint)
    elif base.status == "unknown" and base.image.split("/")[-1].startswith("cuda:") and base.note:
        state.add("unverified", "base-unknown", f"{base.image}: {base.note}", hint)
    elif base.note and base.system != "alpine":
        state.add("warning", "base-support-ended", f"{base.image}: {base.note}", hint if base.instead else "")
    if base.ends and base.ends <= CHECKED:
        state.add(
            "warning",
            "base-system-ended",
            f"{base.image}: support of {base.system} ended {base.ends}",
            "move to a newer system",
        )


def _glibc(request: Request, base: Base | None, tables: Tables, state: State) -> None:
    if base is not None and base.system == "windows":
        state.add(
            "conflict",
            "not-linux",
            f"{base.image} is a Windows image; envforge builds Linux images",
            "use a Debian or Ubuntu base",
        )
        return
    if base is not None and base.system == "alpine":
        state.add(
            "conflict", "musl", f"{base.image} uses musl; framework wheels need glibc", "use a Debian or Ubuntu base"
        )
        return
    have = [text for text in (base.glibc if base else None, request.glibc) if text]
    lowest = min(have, key=key) if have else None
    arch = request.platform.removeprefix("linux/")
    for item in state.chosen:
        need = _glibc_needed(item, arch)
        if need and lowest and key(need) > key(lowest):
            where = base.image if base and base.glibc == lowest else "the oldest target"
            systems = [
                s
                for s in ("ubuntu20.04", "ubuntu22.04", "debian12", "ubuntu24.04")
                if key(tables.system_glibc(s) or "0") >= key(need)
            ]
            state.add(
                "conflict",
                "glibc-too-old",
                f"the wheels of {item.text} need glibc {need}; {where} has {lowest}",
                f"use a newer base ({', '.join(systems)}) or an older release",
            )
    if base is not None and base.glibc is None and request.base != "auto" and base.status != "gone":
        state.add(
            "limit", "base-glibc-unknown", f"the glibc of {base.image} is not known; wheels may not install there"
        )


def _glibc_needed(item: Chosen, arch: str) -> str | None:
    if item.build is not None and item.build.glibc:
        return item.build.glibc
    return item.release.glibc.get(arch) if item.release else None


def _cuda(request: Request, base: Base, needs_base: bool, tables: Tables, state: State) -> None:
    accepted, words = base_accepts_driver(request, tables, base.image)
    if not accepted and not (request.base == "auto" and state.driver_answer in ("too-old", "forward-compat")):
        # Which older drivers an image lets through is not known for every image.
        sure = request.base != "auto" and bool(base.accepts_branches)
        state.add(
            "conflict" if sure else "limit",
            "base-requires-driver",
            f"{base.image} demands {words} (NVIDIA_REQUIRE_CUDA), which driver {request.driver} does not "
            f"meet; the container " + ("is" if sure else "may be") + " refused at start",
            "update the driver; or keep an image digest with the earlier requirement; or use an older CUDA "
            "line or a base without CUDA",
        )
    conda = [text for text in request.conda if text in state.claims]
    if conda:
        state.add(
            "limit",
            "two-cuda-providers",
            f"{base.image} brings CUDA {base.cuda} and the conda list brings another: {', '.join(conda)}",
            "keep one of them",
        )
    if state.cuda is None or not state.on_gpu:
        return
    if major(base.cuda or "") != major(state.cuda):
        severity = "conflict" if needs_base else "limit"
        state.add(
            "conflict" if severity == "conflict" else "limit",
            "base-other-cuda",
            f"{base.image} has CUDA {base.cuda}, the frameworks use CUDA {state.cuda}: two CUDA providers in one image",
            f"use a base of CUDA {major(state.cuda)} or one without CUDA",
        )
        return
    if not needs_base:
        if request.toolchain == "none" and "devel" not in (base.kind or ""):
            state.add(
                "info", "cuda-twice", f"{base.image} and the wheels both bring CUDA; the wheels' libraries are used"
            )
        return
    for item in state.on_gpu:
        build = item.build
        if build and key(base.cuda or "0") < key(build.cuda):
            state.add(
                "conflict",
                "base-cuda-too-old",
                f"{item.text} was built with CUDA {build.cuda}; {base.image} has {base.cuda}",
                f"use a base of CUDA {build.cuda}",
            )
        if build and item.name != "torch":
            _base_cudnn(base, item, build.cudnn, state)


def _base_cudnn(base: Base, item: Chosen, wanted: str | None, state: State) -> None:
    if wanted is None:
        if base.cudnn is None:
            state.add(
                "conflict",
                "base-without-cudnn",
                f"{item.text} needs cuDNN; {base.image} has none",
                "use a cudnn flavour of the image",
            )
    elif base.cudnn is None:
        state.add(
            "conflict",
            "base-without-cudnn",
            f"{item.text} needs cuDNN {wanted}; {base.image} has none",
            "use a cudnn flavour of the image",
        )
    elif major(base.cudnn) != major(wanted):
        state.add(
            "conflict",
            "cudnn-major",
            f"{item.text} was built with cuDNN {wanted}; {base.image} has {base.cudnn}",
            f"use an image with cuDNN {major(wanted)}",
        )
    elif "." in base.cudnn and key(base.cudnn) < key(wanted):
        state.add(
            "conflict",
            "cudnn-too-old",
            f"{item.text} was built with cuDNN {wanted}; {base.image} has the older {base.cudnn}",
            "use a newer image",
        )
