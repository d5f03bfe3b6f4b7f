"""How a check ends, and how the text of a failure is turned into a cause."""

import re


class Failed(Exception):
    """The check ran and found something wrong. ``cause`` is a kebab-case name of the kind of fault."""

    def __init__(self, detail, cause="", facts=None):
        Exception.__init__(self, detail)
        self.detail = detail
        self.cause = cause
        self.facts = facts or {}


class Unavailable(Exception):
    """The check cannot be made here and nothing promised that it could."""

    def __init__(self, detail, cause="", facts=None):
        Exception.__init__(self, detail)
        self.detail = detail
        self.cause = cause
        self.facts = facts or {}


class NotRun(Exception):
    """The check makes no sense after an earlier failure, which the detail names."""

    def __init__(self, detail):
        Exception.__init__(self, detail)
        self.detail = detail


class MissingPackage(Exception):
    """An export route needs a package that is not installed: unavailable, or failed where the plan requires it."""

    def __init__(self, package, route=""):
        Exception.__init__(self, "the package {0} is not installed".format(package))
        self.package = package
        self.route = route


# (pattern, cause, explanation with the groups filled in); the first match wins.
_CAUSES = [
    (
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "missing-shared-library",
        "the shared library {0} is missing: the package that brings it is not installed, or its own metadata "
        "forgot to ask for it",
    ),
    (
        r"undefined symbol: (\S+)",
        "undefined-symbol",
        "symbol {0} is missing: two libraries were built for different versions",
    ),
    (r"(GLIBC(?:XX)?_[\d.]+)' not found", "glibc-too-old", "the system library is too old: {0} is needed"),
    (
        r"compiled using NumPy 1|numpy\.core\.multiarray failed to import|numpy\.dtype size changed|_ARRAY_API not",
        "numpy-abi",
        "a module was built for NumPy 1 and meets NumPy 2 (or the other way round): pin numpy<2",
    ),
    (
        r"pyboost_\w+ of .* returned a result with an exception set",
        "numpy-abi",
        "MindSpore's compiled operators fail like this with NumPy 2, which its metadata allows: pin numpy<2",
    ),
    (r"module 'numpy' has no attribute '(\w+)'", "numpy-removed", "numpy.{0} was removed: an older NumPy is needed"),
    (
        r"no kernel image is available",
        "no-kernel-for-gpu",
        "the wheel holds no kernel for this GPU: take a build for a newer (or older) CUDA",
    ),
    (r"[Nn]o module named '?([\w.]+)", "missing-module", "the module {0} is not installed"),
    (
        r"CUDA driver version is insufficient|driver on your system is too old",
        "driver-too-old",
        "the driver is too old",
    ),
    (r"Failed to initialize NVML: Unknown Error", "host-interrupted", "the container lost its GPU (host side)"),
    (r"Driver/library version mismatch", "driver-mismatch", "kernel driver and NVML library differ: reboot the host"),
    (r"out of memory|OUT_OF_MEMORY|CUDA_ERROR_OUT_OF_MEMORY|MemoryError", "out-of-memory", "memory ran out"),
    (
        r"(?:Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler|CppCompileError|"
        r"[Nn]o such file or directory: '?(?:gcc|g\+\+|cc|clang)|"
        r"(?:gcc|g\+\+|clang)[^\n]{0,40}not found|python\.h: No such file)",
        "missing-compiler",
        "there is no C compiler (and Python headers) in this environment: the compile path needs gcc or clang",
    ),
    (r"Read-only file system", "read-only", "something wrote outside the temporary folder"),
    (
        r"_get_save_spec",
        "keras3-tf2onnx",
        "tf2onnx.from_keras does not know Keras 3: use a function with an input signature",
    ),
]


def classify(text):
    """``(cause, explanation)`` for the text of a failure; two empty strings when nothing is known about it."""
    for pattern, cause, explanation in _CAUSES:
        found = re.search(pattern, text)
        if found:
            return cause, explanation.format(*found.groups())
    return "", ""


def describe(error):
    """One line for an exception: type and the first lines of its text, bounded."""
    text = " ".join(str(error).split())
    if len(text) > 600:
        text = text[:400] + " … " + text[-190:]
    return "{0}: {1}".format(type(error).__name__, text) if text else type(error).__name__
