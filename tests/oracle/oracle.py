"""What the answer must be, written by hand from the vendors' documents. Uses nothing of envforge.

Sources: CUDA toolkit release notes (tables 2 and 3) and the minor-version compatibility page for drivers; PyPI file
names and metadata for Pythons and default builds; pytorch/builder and pytorch/pytorch build scripts for kernels;
the tested-configurations table of TensorFlow; the JAX installation pages and changelog.
"""

from __future__ import annotations

# CUDA series -> (driver of its first toolkit, lowest driver of its family on Linux)
DRIVERS = {
    "10.2": ("440.33", "440.33"),
    "11.2": ("460.27.03", "450.80.02"),
    "11.3": ("465.19.01", "450.80.02"),
    "11.6": ("510.39.01", "450.80.02"),
    "11.7": ("515.43.04", "450.80.02"),
    "11.8": ("520.61.05", "450.80.02"),
    "12.1": ("530.30.02", "525.60.13"),
    "12.2": ("535.54.03", "525.60.13"),
    "12.3": ("545.23.06", "525.60.13"),
    "12.4": ("550.54.14", "525.60.13"),
    "12.5": ("555.42.02", "525.60.13"),
    "12.6": ("560.28.03", "525.60.13"),
    "12.8": ("570.26", "525.60.13"),
    "12.9": ("575.51.03", "525.60.13"),
    "13.0": ("580.65.06", "580.65.06"),
}
# A driver on each side of each floor.
SIDES = (
    "440.32", "440.33", "450.80.01", "450.80.02", "460.27.02", "460.27.03", "465.19.00", "465.19.01", "510.39.00",
    "510.39.01", "515.43.03", "515.43.04", "520.61.04", "520.61.05", "525.60.12", "525.60.13", "530.30.01", "530.30.02",
    "535.54.02", "535.54.03", "545.23.05", "545.23.06", "550.54.13", "550.54.14", "555.42.01", "555.42.02", "560.28.02",
    "560.28.03", "570.25", "570.26", "575.51.02", "575.51.03", "580.65.05", "580.65.06", "590.44.01",
)  # fmt: skip

# One GPU per compute capability: (name, capability, oldest driver for it or None when older branches may learn it,
# newest driver branch for it)
GPUS = {
    "Tesla K80": ((3, 7), None, 470),
    "GeForce GTX 980": ((5, 2), None, 580),
    "Tesla P100": ((6, 0), None, 580),
    "GeForce GTX 1080": ((6, 1), None, 580),
    "NVIDIA V100": ((7, 0), None, 580),
    "NVIDIA T4": ((7, 5), None, None),
    "NVIDIA A100": ((8, 0), None, None),
    "GeForce RTX 3090": ((8, 6), "455.23", None),
    "NVIDIA L4": ((8, 9), None, None),
    "NVIDIA H100": ((9, 0), None, None),
    "NVIDIA B200": ((10, 0), "570.26", None),
    "NVIDIA B300": ((10, 3), "575.51.03", None),
    "GeForce RTX 5090": ((12, 0), "570.26", None),
    "sm_121": ((12, 1), "575.51.03", None),
}

_OLD = ((3, 7), (5, 0), (6, 0), (7, 0))
_AMPERE = (*_OLD, (7, 5), (8, 0), (8, 6))
_HOPPER = (*_AMPERE, (9, 0))
_NO_KEPLER = _HOPPER[1:]
_BLACKWELL = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
_BLACKWELL_VOLTA = ((7, 0), *_BLACKWELL)

# torch release -> (Python minors, {CUDA: (kernels, PTX)})
TORCH = {
    "1.12.1": (range(7, 11), {"10.2": (_OLD, ()), "11.3": (_AMPERE, ()), "11.6": (_AMPERE, ())}),
    "1.13.1": (range(7, 12), {"11.6": (_AMPERE, ()), "11.7": (_AMPERE, ())}),
    "2.0.1": (range(8, 12), {"11.7": (_AMPERE, ()), "11.8": (_HOPPER, ())}),
    "2.1.2": (range(8, 12), {"11.8": (_HOPPER, ()), "12.1": (_NO_KEPLER, ())}),
    "2.3.1": (range(8, 13), {"11.8": (_HOPPER, ()), "12.1": (_NO_KEPLER, ())}),
    "2.4.1": (range(8, 13), {"11.8": (_HOPPER, ()), "12.1": (_NO_KEPLER, ()), "12.4": (_NO_KEPLER, ())}),
    "2.5.1": (range(9, 14), {"11.8": (_HOPPER, ()), "12.1": (_NO_KEPLER, ()), "12.4": (_NO_KEPLER, ())}),
    "2.6.0": (range(9, 14), {"11.8": (_HOPPER, ()), "12.4": (_NO_KEPLER, ())}),
    "2.7.1": (range(9, 14), {"11.8": (_HOPPER, ()), "12.6": (_NO_KEPLER, ()), "12.8": (_BLACKWELL, ((12, 0),))}),
    "2.8.0": (
        range(9, 14),
        {"12.6": (_NO_KEPLER, ()), "12.8": (_BLACKWELL_VOLTA, ()), "12.9": (_BLACKWELL_VOLTA, ((12, 0),))},
    ),
    "2.9.1": (
        range(10, 15),
        {"12.6": (_NO_KEPLER, ()), "12.8": (_BLACKWELL_VOLTA, ()), "13.0": (_BLACKWELL, ((12, 0),))},
    ),
    "2.11.0": (range(10, 15), {"12.6": (_NO_KEPLER, ()), "12.8": (_BLACKWELL, ()), "13.0": (_BLACKWELL, ((12, 0),))}),
    "2.13.0": (range(10, 15), {"12.6": (_NO_KEPLER, ()), "13.0": (_BLACKWELL, ((12, 0),))}),
}
# What a plain install gives on linux/amd64.
TORCH_DEFAULT = {
    "1.12.1": "10.2", "1.13.1": "11.7", "2.0.1": "11.7", "2.1.2": "12.1", "2.3.1": "12.1", "2.4.1": "12.1",
    "2.5.1": "12.4", "2.6.0": "12.4", "2.7.1": "12.6", "2.8.0": "12.8", "2.9.1": "12.8", "2.11.0": "13.0",
    "2.13.0": "13.0",
}  # fmt: skip

# tensorflow release -> (Python minors, CUDA, cuDNN)
TENSORFLOW = {
    "2.5.0": (range(6, 10), "11.2", "8.1"),
    "2.8.0": (range(7, 11), "11.2", "8.1"),
    "2.10.0": (range(7, 11), "11.2", "8.1"),
    "2.12.0": (range(8, 12), "11.8", "8.6"),
    "2.13.0": (range(8, 12), "11.8", "8.6"),
    "2.14.0": (range(9, 12), "11.8", "8.7"),
    "2.15.1": (range(9, 12), "12.2", "8.9"),
    "2.16.1": (range(9, 13), "12.3", "8.9"),
    "2.17.0": (range(9, 13), "12.3", "8.9"),
    "2.18.0": (range(9, 13), "12.5", "9.3"),
    "2.19.0": (range(9, 13), "12.5", "9.3"),
}
# jax release -> (Python minors, {CUDA major: lowest CUDA of that major it works with})
JAX = {
    "0.4.25": (range(9, 13), {11: "11.8", 12: "12.3"}),
    "0.4.28": (range(9, 13), {12: "12.1"}),
    "0.4.38": (range(10, 14), {12: "12.1"}),
    "0.6.2": (range(10, 14), {12: "12.1"}),
    "0.8.0": (range(11, 15), {12: "12.1", 13: "13.0"}),
    "0.10.2": (range(11, 15), {12: "12.1", 13: "13.0"}),
}


def number(text: str) -> tuple[int, ...]:
    """A version as numbers."""
    return tuple(int(part) for part in text.split("."))


# The data-centre cards among them: only these may run a newer CUDA family through the compatibility package.
DATA_CENTRE = {"Tesla K80", "Tesla P100", "NVIDIA V100", "NVIDIA T4", "NVIDIA A100", "NVIDIA L4", "NVIDIA H100",
               "NVIDIA B200", "NVIDIA B300"}  # fmt: skip


def driver_answer(cuda: str, driver: str, gpu: str = "") -> str:
    """native, minor-version, forward-compat or too-old. CUDA 10 and older have no minor-version compatibility."""
    native, family = DRIVERS[cuda]
    if number(driver) >= number(native):
        return "native"
    if number(cuda) >= (11,) and number(driver) >= number(family):
        return "minor-version"
    return "forward-compat" if gpu in DATA_CENTRE else "too-old"


def gpu_answer(capability: tuple[int, int], kernels: object, ptx: object, driver: str) -> str:
    """kernels, ptx or none: code of the same major and a lower or equal minor; else PTX, which needs its own driver."""
    major, minor = capability
    if any(m == major and n <= minor for m, n in kernels):  # type: ignore[attr-defined]
        return "kernels"
    if driver != "minor-version" and any(item <= capability for item in ptx):  # type: ignore[attr-defined]
        return "ptx"
    return "none"


def machine_works(name: str, driver: str) -> bool:
    """Whether that driver drives that GPU at all."""
    _, oldest, newest = GPUS[name]
    if oldest is not None and number(driver) < number(oldest):
        return False
    return newest is None or number(driver)[0] <= newest


def torch(version: str, cuda: str, python: str, gpu: str, driver: str) -> tuple[bool, str, str]:
    """(works, driver answer, GPU answer)."""
    minors, builds = TORCH[version]
    if cuda not in builds:
        return False, "", ""
    answer = driver_answer(cuda, driver, gpu)
    kernels, ptx = builds[cuda]
    card = gpu_answer(GPUS[gpu][0], kernels, ptx, answer)
    # Without the switch in the spec, forward compatibility is an offer and not an answer.
    runs = answer in ("native", "minor-version")
    works = int(python.split(".")[1]) in minors and runs and card != "none" and machine_works(gpu, driver)
    return works, answer, card


def tensorflow(version: str, cuda: str, python: str, driver: str) -> tuple[bool, str]:
    """(works, driver answer); no GPU named."""
    minors, built, _ = TENSORFLOW[version]
    if cuda != built:
        return False, ""
    answer = driver_answer(cuda, driver)
    return int(python.split(".")[1]) in minors and answer != "too-old", answer


def jax(version: str, cuda: str, python: str, driver: str) -> tuple[bool, str]:
    """(works, driver answer); no GPU named."""
    minors, families = JAX[version]
    lowest = families.get(number(cuda)[0])
    if lowest is None or number(cuda) < number(lowest):
        return False, ""
    answer = driver_answer(cuda, driver)
    return int(python.split(".")[1]) in minors and answer != "too-old", answer
