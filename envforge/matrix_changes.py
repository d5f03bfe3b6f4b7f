"""What a matrix will cost, and what has changed since its images were built and tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envforge import matrix_run, record
from envforge.matrix import Build, Plan

# Measured image sizes in bytes (docs/benchmarks.md and this project's records, single images, x86-64): a first guess
# for environments that were never built here. A CUDA build carries the CUDA libraries.
_MEASURED: Mapping[tuple[str, bool], int] = {
    ("torch", True): 5_900_000_000,
    ("torch", False): 1_200_000_000,
    ("tensorflow", True): 5_000_000_000,
    ("tensorflow", False): 1_500_000_000,
    ("jax", True): 4_500_000_000,
    ("jax", False): 600_000_000,
    ("keras", True): 5_000_000_000,
    ("keras", False): 1_500_000_000,
    ("paddle", True): 4_500_000_000,
    ("paddle", False): 800_000_000,
    ("mindspore", True): 4_500_000_000,
    ("mindspore", False): 2_700_000_000,
    ("mxnet", True): 2_000_000_000,
    ("mxnet", False): 250_000_000,
}
_COMPRESSION = 0.55  # wheels of these frameworks against their installed size


def _last_record(build: Build) -> dict[str, Any] | None:
    if build.spec is None:
        return None
    found = record.read_all(build.spec.full_name)
    return found[-1] if found else None


def _size(build: Build) -> int:
    """Bytes of the image: the size of its last build, else the measured size of its frameworks."""
    last = _last_record(build)
    if last and last.get("size_bytes"):
        return int(last["size_bytes"])
    assert build.spec is not None
    cuda = build.spec.cuda is not None
    return sum(_MEASURED.get((name, cuda), 300_000_000) for name in build.spec.frameworks) or 300_000_000


def estimate(plan: Plan) -> dict[str, int]:
    """Bytes to download and to keep, for images that are not there yet; sizes of earlier builds where known."""
    download = disk = 0
    for build in plan.builds:
        if build.status != "planned" or build.merged_into or build.spec is None:
            continue
        size = _size(build)
        disk += size
        last = _last_record(build)
        if not (last and last.get("inputs_digest") == build.digest):
            download += int(size * _COMPRESSION)
    return {"download_bytes": download, "disk_bytes": disk}


def changed(plan: Plan) -> list[dict[str, Any]]:
    """For each image: nothing, build, rebuild or retest, and why."""
    suite = matrix_run.suite_digest()
    results = matrix_run.Results(matrix_run.state_folder(plan.name))
    rows = []
    for build in plan.builds:
        if build.status != "planned" or build.merged_into:
            continue
        action, why = _action(plan, build, results, suite)
        rows.append({"build": build.id, "action": action, "why": why})
    return rows


def _action(plan: Plan, build: Build, results: matrix_run.Results, suite: str) -> tuple[str, str]:
    last = _last_record(build)
    if last is None:
        return "build", "never built here"
    if build.digest != last.get("inputs_digest"):
        return "rebuild", "; ".join(_differences(build)) or "its inputs digest is another one"
    stale = []
    for cell in plan.cells:
        if cell.build != build.id or cell.status != "planned":
            continue
        key = matrix_run.result_key(build, plan.tests[cell.test], plan.level, suite)
        found = results.read(cell.id)
        if found is None:
            stale.append(f"{cell.test} never ran")
        elif found.get("key") != key:
            stale.append(f"{cell.test}: the tests or the test row changed")
        elif found.get("status") != "passed":
            stale.append(f"{cell.test} {found.get('status')} last time")
    if stale:
        return "retest", "; ".join(stale)
    return "nothing", "same inputs and tests as when it passed"


def _differences(build: Build) -> list[str]:
    """What the lock says of itself against the spec, in words."""
    from envforge import compat
    from envforge import lock as lockfile
    from envforge.errors import EnvforgeError
    from envforge.resolve import resolve

    assert build.spec is not None
    try:
        resolution = resolve(build.spec, compat.load())
        lock = lockfile.read(resolution.name)
    except EnvforgeError as error:
        return [error.message]
    if lock is None:
        return ["it has no lock"]
    state = lockfile.status(lock, resolution)
    return list(state.changes) or ["the lock, the base or the templates changed since the last build"]
