"""What NVML says of the driver and the GPUs, through ctypes (the framework is not asked)."""

import ctypes
import os

_UNKNOWN = 999
_MISMATCH = 18
EXCLUSIVE_PROCESS = 3


def _text(function, *args):
    buffer = ctypes.create_string_buffer(96)
    code = function(*(args + (buffer, ctypes.c_uint(96))))
    return buffer.value.decode("utf-8", "replace") if code == 0 else None


def _error(library, code):
    try:
        library.nvmlErrorString.restype = ctypes.c_char_p
        return library.nvmlErrorString(ctypes.c_int(code)).decode("utf-8", "replace")
    except Exception:
        return "error {0}".format(code)


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _device(library, index):
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    found = {
        "index": index,
        "name": _text(library.nvmlDeviceGetName, handle),
        "uuid": _text(library.nvmlDeviceGetUUID, handle),
    }
    if library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0:
        found["capability"] = "{0}.{1}".format(major.value, minor.value)
    memory = _Memory()
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
        found["memory_bytes"] = memory.total
    mode, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        if library.nvmlDeviceGetComputeMode(handle, ctypes.byref(mode)) == 0:
            found["exclusive"] = mode.value == EXCLUSIVE_PROCESS
        if library.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending)) == 0:
            found["mig"] = mode.value == 1
    except AttributeError:  # an NVML older than MIG
        pass
    return found


def probe():
    """``{"driver", "cuda", "devices", "error"}``; ``error`` is None when NVML answered, else its own text.

    No NVML library at all is not an error: there is no NVIDIA driver here.
    """
    found = {"driver": None, "cuda": None, "devices": [], "error": None}
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return found
    try:
        code = library.nvmlInit_v2()
        if code != 0:
            found["error"] = "Failed to initialize NVML: {0}".format(_error(library, code))
            return found
        found["driver"] = _text(library.nvmlSystemGetDriverVersion)
        version = ctypes.c_int()
        if library.nvmlSystemGetCudaDriverVersion(ctypes.byref(version)) == 0:
            found["cuda"] = "{0}.{1}".format(version.value // 1000, version.value % 1000 // 10)
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            devices = [_device(library, index) for index in range(count.value)]
            found["devices"] = [device for device in devices if device]
        library.nvmlShutdown()
    except AttributeError as error:
        found["error"] = "the NVML library lacks a function: {0}".format(error)
    return found


def visible(devices, selection=None):
    """The devices that CUDA may see: all of them, or those that CUDA_VISIBLE_DEVICES names."""
    if selection is None:
        selection = os.environ.get("CUDA_VISIBLE_DEVICES")
    if selection is None:
        return list(devices)
    chosen = []
    for word in selection.split(","):
        word = word.strip()
        if not word:
            continue
        match = [
            device
            for device in devices
            if (word.isdigit() and device.get("index") == int(word))
            or (not word.isdigit() and str(device.get("uuid", "")).startswith(word))
            or (word.startswith("MIG-") and device.get("mig"))
        ]
        if not match:
            break  # CUDA stops at the first name that it does not know
        chosen.append(match[0])
    return chosen


def fits(capability, kernels):
    """Whether a list such as ``["sm_80", "compute_90"]`` serves a device of this capability ("8.6").

    ``sm_XY`` serves the same major with an equal or higher minor; ``compute_XY`` (PTX) serves all that is newer.
    Returns the entry that serves it, or None.
    """
    major, minor = (int(part) for part in capability.split("."))
    for entry in kernels:
        kind, _, digits = entry.partition("_")
        specific = digits.rstrip("af") != digits
        digits = digits.rstrip("af")
        if not digits.isdigit() or len(digits) < 2:
            continue
        have = (int(digits[:-1]), int(digits[-1]))
        if kind == "sm" and have[0] == major and (have[1] == minor if specific else have[1] <= minor):
            return entry
        if kind == "compute" and not specific and have <= (major, minor):
            return entry
    return None
