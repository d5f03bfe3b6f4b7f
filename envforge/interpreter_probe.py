"""Looks into the interpreter that runs it and prints one JSON line. Standard library only, Python 3.7 or later.

Without an argument: what is installed. With the name of a framework: what it is after its import, asked in
a process of its own, so that an import that crashes or hangs hides nothing else.
"""

# Old interpreters run this file: no modern spelling here.
# ruff: noqa: B007, PTH112, PTH118, PTH119, PTH123, UP031, UP036
from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path[:1] = []  # this file's own folder must not hide or add modules

import json
import os
import platform
import re
from typing import Any

FRAMEWORKS = ("torch", "tensorflow", "jax", "paddle", "mindspore", "mxnet", "onnxruntime")
CUDA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|nccl|cufft|curand|cusolver|cusparse|cusparseLt|nvrtc|nvJitLink|cupti"
    r"|nvidia-ml)(-[0-9a-f]+)?\.so[.\d]*$"
)


def loaded_libraries() -> list[str]:
    """CUDA and driver libraries in this process's memory map."""
    found = set()
    try:
        with open("/proc/self/maps", errors="replace") as stream:
            for line in stream:
                path = line.rstrip("\n").split(None, 5)[-1]
                if path.startswith("/") and CUDA_LIBRARY.search(os.path.basename(path)):
                    found.add(path)
    except OSError:
        pass
    return sorted(found)


def look_torch(row: dict[str, Any], torch: Any) -> None:
    row["cuda"] = torch.version.cuda
    row["cudnn"] = str(torch.backends.cudnn.version() or "")
    row["cxx11_abi"] = bool(torch._C._GLIBCXX_USE_CXX11_ABI)
    if torch.version.cuda and hasattr(torch._C, "_cuda_getArchFlags"):
        row["kernels"] = torch._C._cuda_getArchFlags().split()
    row["devices"] = torch.cuda.device_count() if torch.version.cuda else 0


def look_tensorflow(row: dict[str, Any], tensorflow: Any) -> None:
    build = tensorflow.sysconfig.get_build_info()
    row["cuda"] = build.get("cuda_version") if build.get("is_cuda_build") else None
    row["cudnn"] = str(build.get("cudnn_version", ""))
    row["kernels"] = list(build.get("cuda_compute_capabilities", []))
    row["cxx11_abi"] = "-D_GLIBCXX_USE_CXX11_ABI=1" in tensorflow.sysconfig.get_compile_flags()
    row["devices"] = len(tensorflow.config.list_physical_devices("GPU"))


def look_jax(row: dict[str, Any], jax: Any) -> None:
    for name, version in installed():
        found = re.match(r"jax-cuda(\d+)-(plugin|pjrt)$", name)
        if found:
            row["cuda"] = found.group(1)
    try:
        row["devices"] = len([one for one in jax.devices() if one.platform in ("gpu", "cuda")])
    except RuntimeError as error:
        row["devices"] = 0
        row["output"] += str(error)


def look_paddle(row: dict[str, Any], paddle: Any) -> None:
    row["cuda"] = str(paddle.version.cuda()) if paddle.is_compiled_with_cuda() else None
    row["cudnn"] = str(paddle.version.cudnn())
    row["devices"] = paddle.device.cuda.device_count() if row["cuda"] else 0


def look_onnxruntime(row: dict[str, Any], onnxruntime: Any) -> None:
    row["cuda"] = getattr(onnxruntime, "cuda_version", "") or None
    row["devices"] = int("CUDAExecutionProvider" in onnxruntime.get_available_providers())


def look(name: str) -> dict[str, Any]:
    """Import one framework here and say what it is."""
    row: dict[str, Any] = {"name": name, "version": "", "cuda": None, "cudnn": "", "devices": -1, "kernels": []}
    row.update({"cxx11_abi": None, "libraries": [], "error": "", "output": ""})
    try:
        module = __import__(name)
        row["version"] = str(getattr(module, "__version__", ""))
        special = globals().get("look_" + name)
        if special:
            special(row, module)
    except BaseException as error:
        row["error"] = "%s: %s" % (type(error).__name__, error)
    row["libraries"] = loaded_libraries()
    return row


def installed() -> list[tuple[str, str]]:
    """(name, version) of every distribution, sorted."""
    if sys.version_info < (3, 8):
        return []
    from importlib import metadata

    rows = set()
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name:
            rows.add((re.sub(r"[-_.]+", "-", name).lower(), one.version))
    return sorted(rows)


def present(name: str) -> bool:
    from importlib import util

    try:
        return util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def duplicates() -> list[tuple[str, list[str]]]:
    """CUDA libraries that lie more than once on the paths this interpreter can load from: (soname, places)."""
    places: dict[str, list[str]] = {}
    seen: set[str] = set()
    folders = [os.path.join(one, "nvidia") for one in sys.path if one]
    folders += [os.path.join(one, "torch", "lib") for one in sys.path if one]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders += [os.path.join(sys.prefix, "lib")]
    for top in folders:
        if not top or not os.path.isdir(top):
            continue
        deep = os.path.basename(top) == "nvidia"
        for root, inside, files in os.walk(top):
            if not deep:
                inside[:] = []
            for name in files:
                path = os.path.realpath(os.path.join(root, name))
                if CUDA_LIBRARY.search(name) and path not in seen:
                    seen.add(path)
                    short = name.partition(".so")[0] + ".so"
                    places.setdefault(short, []).append(path)
    return sorted((name, sorted(found)) for name, found in places.items() if len(found) > 1)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(look(sys.argv[1])))
        return
    found = {
        "version": platform.python_version(),
        "bits": 64 if sys.maxsize > 2**32 else 32,
        "abiflags": getattr(sys, "abiflags", ""),
        "glibc": platform.libc_ver()[1],
        "prefix": sys.prefix,
        "in_venv": sys.prefix != sys.base_prefix,
        "packages": installed(),
        "duplicates": duplicates(),
        "frameworks": [name for name in FRAMEWORKS if present(name)],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
