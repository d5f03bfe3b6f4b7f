"""Asks NVML what it sees and prints one JSON line. Started as a program of its own by envforge.host.

A driver that hangs or a library that crashes must not take envforge with it, so this runs in a child
process with a time limit. It needs only the standard library; nvidia-ml-py is used when it is there.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path[:1] = []  # this file's own folder must not hide or add modules

import ctypes
import json
from typing import Any

NOT_FOUND = 12  # NVML_ERROR_LIBRARY_NOT_FOUND


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _library() -> str:
    """The file that is really loaded, from this process's memory map."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
            for line in stream:
                if "libnvidia-ml.so" in line:
                    return line.split(None, 5)[-1].strip()
    except OSError:
        pass
    return ""


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _mig(nvml: Any, handle: Any) -> dict[str, Any]:
    """MIG state of one GPU; ``enabled`` None where the GPU knows no MIG."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return {"enabled": None, "instances": []}
    found: list[str] = []
    if current:
        try:
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                try:
                    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
                except nvml.NVMLError:
                    continue  # an empty place
                found.append(_text(nvml.nvmlDeviceGetUUID(instance)))
        except nvml.NVMLError:
            pass
    return {"enabled": bool(current), "instances": found}


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {"index": index, "error": None}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        row["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
        row["name"] = _text(nvml.nvmlDeviceGetName(handle))
        row["capability"] = "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        row["memory_bytes"], row["used_bytes"] = int(memory.total), int(memory.used)
        row["mig"] = _mig(nvml, handle)
    except nvml.NVMLError as error:
        row["error"] = int(error.value)
        row["error_text"] = str(error)
    return row


def with_pynvml(nvml: Any) -> dict[str, Any]:
    """Everything, through nvidia-ml-py."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        code = int(error.value)
        status = "library-missing" if code == NOT_FOUND else "error"
        return {"status": status, "code": code, "text": str(error), "library": _library(), "gpus": []}
    found: dict[str, Any] = {"status": "ok", "code": 0, "text": "", "library": _library(), "gpus": []}
    try:
        found["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        found["cuda"] = _cuda(int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
        found["gpus"] = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        found.update(status="error", code=int(error.value), text=str(error))
    nvml.nvmlShutdown()
    return found


def with_ctypes() -> dict[str, Any]:
    """The few answers that decide most questions, where nvidia-ml-py is not installed."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return {"status": "library-missing", "code": NOT_FOUND, "text": str(error), "library": "", "gpus": []}
    library.nvmlErrorString.restype = ctypes.c_char_p

    def failed(code: int) -> dict[str, Any]:
        text = _text(library.nvmlErrorString(code) or b"")
        return {"status": "error", "code": code, "text": text, "library": _library(), "gpus": []}

    code = library.nvmlInit_v2()
    if code:
        return failed(code)
    text = ctypes.create_string_buffer(96)
    number, count = ctypes.c_int(), ctypes.c_uint()
    for answer in (
        library.nvmlSystemGetDriverVersion(text, 96),
        library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number)),
        library.nvmlDeviceGetCount_v2(ctypes.byref(count)),
    ):
        if answer:
            return failed(answer)
    found: dict[str, Any] = {"status": "ok", "code": 0, "text": "", "library": _library()}
    found["driver"], found["cuda"] = _text(text.value), _cuda(number.value)
    found["gpus"] = []
    for index in range(count.value):
        handle, name, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
        answer = library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if not answer:
            library.nvmlDeviceGetName(handle, name, 96)
            library.nvmlDeviceGetUUID(handle, uuid, 96)
        row = {"index": index, "name": _text(name.value), "uuid": _text(uuid.value), "error": answer or None}
        found["gpus"].append(row)
    return found


def main() -> None:
    try:
        import pynvml
    except ImportError:
        found = with_ctypes()
        found["through"] = "ctypes"
    else:
        found = with_pynvml(pynvml)
        found["through"] = "nvidia-ml-py"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
