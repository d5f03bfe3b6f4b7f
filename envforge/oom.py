"""Out-of-memory guide: measured values in, causes told apart. Pure.

Every rule uses only values that can be measured; a rule whose values are missing stays silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What was measured when memory ran out; None: not measured. Bytes unless the name says otherwise."""

    gpu_total: int | None = None
    gpu_free: int | None = None
    this_process: int | None = None
    other_processes: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    requested: int | None = None
    largest_free_block: int | None = None
    weights: int | None = None
    optimizer_state: int | None = None
    gradients: int | None = None
    activations: int | None = None
    allocated_by_step: tuple[int, ...] = ()
    peak_first_step: int | None = None
    failed_at_step: int | None = None
    evaluating: bool | None = None
    gradients_recorded: bool | None = None
    preallocated_by_other_framework: int | None = None
    zombie_processes: int | None = None
    mig_slice: bool | None = None
    cuda_contexts: int | None = None
    context_bytes: int | None = None
    workspace: int | None = None
    devices_used: int | None = None
    bytes_by_device: tuple[int, ...] = ()
    host_total: int | None = None
    host_free: int | None = None
    host_limit: int | None = None
    host_used: int | None = None
    loader_workers: int | None = None
    loader_worker_bytes: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    pinned: int | None = None
    page_cache: int | None = None


_HOW: Mapping[str, str] = {
    "gpu_total": "nvidia-smi --query-gpu=memory.total",
    "gpu_free": "torch.cuda.mem_get_info()[0], or nvidia-smi memory.free",
    "this_process": "nvidia-smi --query-compute-apps=pid,used_memory, the row of this process",
    "other_processes": "the same, all other rows added up",
    "allocated": "torch.cuda.memory_allocated()",
    "reserved": "torch.cuda.memory_reserved()",
    "requested": "the size in the error text",
    "largest_free_block": "torch.cuda.memory_snapshot(), the largest inactive block",
    "weights": "parameters times bytes each",
    "optimizer_state": "Adam: two values per parameter",
    "gradients": "one value per trainable parameter",
    "activations": "allocated after the forward pass minus before it",
    "allocated_by_step": "memory_allocated() after each of some steps, as a list",
    "peak_first_step": "torch.cuda.max_memory_allocated() after step 1",
    "failed_at_step": "number of the step that failed (1 is the first)",
    "evaluating": "true when it failed in evaluation",
    "gradients_recorded": "torch.is_grad_enabled() at that place",
    "preallocated_by_other_framework": "memory of TensorFlow or JAX in the same process or on the same card",
    "zombie_processes": "bytes held by processes that no longer run a job",
    "mig_slice": "true when the device is a MIG instance",
    "cuda_contexts": "processes with a context on this card",
    "context_bytes": "this_process minus reserved",
    "workspace": "cuDNN/cuBLAS workspace, from a memory snapshot",
    "devices_used": "GPUs the job uses",
    "bytes_by_device": "memory_allocated(i) for each GPU, as a list",
    "host_total": "MemTotal of /proc/meminfo",
    "host_free": "MemAvailable of /proc/meminfo",
    "host_limit": "memory limit of the container (memory.max)",
    "host_used": "memory.current of the container",
    "loader_workers": "num_workers times number of loaders",
    "loader_worker_bytes": "resident size of one worker",
    "shm_total": "df /dev/shm, size",
    "shm_free": "df /dev/shm, free",
    "pinned": "bytes of pinned host memory",
    "page_cache": "file of memory.stat",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OomCause:
    """One cause that the values point at; ``evidence`` shows the values."""

    reference: str
    evidence: str
    cause: str
    fix: str

    def document(self) -> dict[str, Any]:
        return {
            "reference": self.reference,
            "cause": self.cause,
            "fix": self.fix,
            "line": self.evidence,
            "area": "memory",
        }


def template() -> list[dict[str, str]]:
    """Every measurement with its unit and how to take it."""
    units = {"failed_at_step": "number", "cuda_contexts": "number", "devices_used": "number"}
    units |= {"loader_workers": "number"} | {
        "evaluating": "yes/no",
        "gradients_recorded": "yes/no",
        "mig_slice": "yes/no",
    }
    return [{"name": name, "unit": units.get(name, "bytes"), "how": how} for name, how in _HOW.items()]


def read(value: Any) -> Measured:
    """From JSON. ValueError names what is unknown or of the wrong kind."""
    if not isinstance(value, dict):
        raise ValueError("the measurements are no object")
    known = {row.name for row in fields(Measured)}
    for name, one in value.items():
        if name not in known:
            raise ValueError(f"unknown measurement {name!r}")
        good = isinstance(one, (int, bool)) or (isinstance(one, list) and all(isinstance(item, int) for item in one))
        if not good:
            raise ValueError(f"{name} is no whole number, yes/no or list of whole numbers")
    cast: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in value.items()}
    return Measured(**cast)


def _size(value: int) -> str:
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"


def _share(part: int | None, whole: int | None) -> float:
    """part / whole, 0 when either is unknown."""
    return part / whole if part is not None and whole else 0.0


def _fragmented(m: Measured) -> str:
    if m.reserved is None or m.allocated is None or m.requested is None:
        return ""
    idle = m.reserved - m.allocated
    block = m.largest_free_block
    if idle < m.requested or idle < 0.1 * m.reserved or (block is not None and block >= m.requested):
        return ""
    return f"{_size(idle)} reserved and idle, {_size(m.requested)} asked for and not found in one piece"


def _others(m: Measured) -> str:
    if _share(m.other_processes, m.gpu_total) < 0.1:
        return ""
    return f"other processes hold {_size(m.other_processes or 0)} of {_size(m.gpu_total or 0)}"


def _zombies(m: Measured) -> str:
    held = m.zombie_processes or 0
    return f"{_size(held)} held by processes without a job" if held > 64 * MIB else ""


def _preallocated(m: Measured) -> str:
    if _share(m.preallocated_by_other_framework, m.gpu_total) < 0.3:
        return ""
    taken = m.preallocated_by_other_framework or 0
    return f"another framework took {_size(taken)} of {_size(m.gpu_total or 0)} at start"


def _too_big(m: Measured) -> str:
    if m.weights is None or not m.gpu_total or m.weights < 0.9 * m.gpu_total:
        return ""
    return f"weights alone take {_size(m.weights)}, the card has {_size(m.gpu_total)}"


def _optimizer(m: Measured) -> str:
    parts = [m.weights, m.optimizer_state, m.gradients]
    if any(part is None for part in parts) or not m.gpu_total:
        return ""
    total = sum(part for part in parts if part is not None)
    if total < 0.85 * m.gpu_total or (m.weights or 0) >= 0.9 * m.gpu_total:
        return ""
    return f"weights, gradients and optimizer state take {_size(total)} of {_size(m.gpu_total)}"


def _activations(m: Measured) -> str:
    if _share(m.activations, m.gpu_total) < 0.5:
        return ""
    return f"activations take {_size(m.activations or 0)} of {_size(m.gpu_total or 0)}"


def _leak(m: Measured) -> str:
    steps = m.allocated_by_step
    if len(steps) < 3 or any(late <= early for early, late in pairwise(steps)):
        return ""
    grown = steps[-1] - steps[0]
    if grown < 0.02 * steps[0]:
        return ""
    return f"allocated memory grew in each of {len(steps)} steps, by {_size(grown)} together"


def _longer_input(m: Measured) -> str:
    if (m.failed_at_step or 0) <= 1 or m.peak_first_step is None or m.allocated is None or _leak(m):
        return ""
    if m.allocated <= 1.3 * m.peak_first_step:
        return ""
    return f"step {m.failed_at_step} needed {_size(m.allocated)}, the first one {_size(m.peak_first_step)}"


def _evaluation(m: Measured) -> str:
    return "evaluation runs with gradients recorded" if m.evaluating and m.gradients_recorded else ""


def _workspace(m: Measured) -> str:
    if _share(m.workspace, m.gpu_total) < 0.1:
        return ""
    return f"library workspaces take {_size(m.workspace or 0)}"


def _contexts(m: Measured) -> str:
    if (m.cuda_contexts or 0) < 3 or (m.context_bytes or 0) < 100 * MIB:
        return ""
    total = (m.cuda_contexts or 0) * (m.context_bytes or 0)
    if m.gpu_total and total < 0.05 * m.gpu_total:
        return ""
    return f"{m.cuda_contexts} CUDA contexts of about {_size(m.context_bytes or 0)} each"


def _mig(m: Measured) -> str:
    return f"the device is a MIG instance of {_size(m.gpu_total)}" if m.mig_slice and m.gpu_total else ""


def _uneven(m: Measured) -> str:
    sizes = m.bytes_by_device
    if len(sizes) < 2 or not max(sizes) or min(sizes) > 0.5 * max(sizes):
        return ""
    return f"GPUs hold {', '.join(_size(one) for one in sizes)}"


def _shm(m: Measured) -> str:
    if m.shm_total is None or m.shm_free is None:
        return ""
    if m.shm_free > 0.05 * m.shm_total and not (m.shm_total <= 64 * MIB and (m.loader_workers or 0) > 0):
        return ""
    return f"/dev/shm: {_size(m.shm_free)} of {_size(m.shm_total)} free"


def _workers(m: Measured) -> str:
    limit = m.host_limit or m.host_total
    if m.loader_workers is None or m.loader_worker_bytes is None or not limit:
        return ""
    total = m.loader_workers * m.loader_worker_bytes
    return f"{m.loader_workers} loader workers of {_size(m.loader_worker_bytes)} each" if total > 0.5 * limit else ""


def _container_limit(m: Measured) -> str:
    if m.host_limit is None or m.host_used is None or m.host_used < 0.95 * m.host_limit or _cache(m) or _workers(m):
        return ""
    return f"the container uses {_size(m.host_used)} of its limit of {_size(m.host_limit)}"


def _cache(m: Measured) -> str:
    if m.host_used is None or _share(m.page_cache, m.host_used) < 0.6:
        return ""
    return f"{_size(m.page_cache or 0)} of the {_size(m.host_used)} in use is file cache"


def _pinned(m: Measured) -> str:
    if _share(m.pinned, m.host_total) < 0.25:
        return ""
    return f"{_size(m.pinned or 0)} of main memory is pinned"


def _host(m: Measured) -> str:
    if m.host_free is None or not m.host_total or m.host_free > 0.03 * m.host_total:
        return ""
    return f"{_size(m.host_free)} of {_size(m.host_total)} main memory available"


# (reference, rule, cause, fix); the order is that of the answer: what is certain and cheap to repair first.
_RULES: tuple[tuple[str, Callable[[Measured], str], str, str], ...] = (
    (
        "oom-zombie",
        _zombies,
        "processes that have ended their job still hold GPU memory",
        "end them: nvidia-smi shows their ids (fuser -v /dev/nvidia* those it hides)",
    ),
    (
        "oom-preallocation",
        _preallocated,
        "TensorFlow or JAX takes most of the card at start, whatever it needs",
        "run --profile shared-gpu (XLA_PYTHON_CLIENT_PREALLOCATE=false, TF_FORCE_GPU_ALLOW_GROWTH=true)",
    ),
    (
        "oom-other-processes",
        _others,
        "other processes use the card",
        "choose another GPU (--gpus device=N), wait, or end them",
    ),
    (
        "oom-fragmentation",
        _fragmented,
        "the allocator holds enough memory, but not in one piece",
        "run --profile low-memory (expandable_segments:True); keep input sizes alike",
    ),
    (
        "oom-leak",
        _leak,
        "memory grows with every step: results are kept with their graph",
        "keep numbers, not tensors (loss.item()); detach what is stored; clear lists and hooks",
    ),
    (
        "oom-evaluation-gradients",
        _evaluation,
        "evaluation keeps what only training needs",
        "wrap it in torch.inference_mode() (or no_grad)",
    ),
    (
        "oom-input-length",
        _longer_input,
        "one batch was much larger than the first ones",
        "sort or cut by length, or set the batch by tokens; try the largest batch first",
    ),
    (
        "oom-model-too-large",
        _too_big,
        "the model does not fit this card",
        "lower precision or quantisation, offloading, or sharding over several GPUs",
    ),
    (
        "oom-optimizer",
        _optimizer,
        "weights, gradients and optimizer state together do not fit",
        "an 8-bit or factored optimizer, sharded states (FSDP, ZeRO), or training fewer parameters (LoRA)",
    ),
    (
        "oom-activations",
        _activations,
        "activations take most of the memory: they grow with batch and length",
        "smaller batch with gradient accumulation, activation checkpointing, mixed precision, memory-saving attention",
    ),
    (
        "oom-workspace",
        _workspace,
        "cuDNN or cuBLAS workspaces are large",
        "limit them (CUBLAS_WORKSPACE_CONFIG, TF_CUDNN_WORKSPACE_LIMIT_IN_MB), or cudnn.benchmark off",
    ),
    (
        "oom-contexts",
        _contexts,
        "many processes have a CUDA context each on this card",
        "do not touch CUDA in loader workers; one process per GPU; MPS for many small jobs",
    ),
    (
        "oom-mig-slice",
        _mig,
        "a MIG instance has only its part of the card's memory",
        "use a larger instance, or fit the batch to this one",
    ),
    (
        "oom-uneven-devices",
        _uneven,
        "one GPU carries more than the others",
        "DistributedDataParallel in place of DataParallel; load checkpoints with map_location; balance device_map",
    ),
    ("oom-shm", _shm, "shared memory for loader workers is full or tiny", "envforge run --shm-size 8g (or --ipc-host)"),
    (
        "oom-loader-workers",
        _workers,
        "loader workers take most of main memory",
        "fewer workers, lower prefetch_factor; arrays or memory maps in place of Python lists in the dataset",
    ),
    (
        "oom-page-cache",
        _cache,
        "most of what counts against the limit is file cache, which the kernel gives back",
        "judge by working set, not by usage; a true shortage shows in memory.events as oom_kill",
    ),
    (
        "oom-container-limit",
        _container_limit,
        "the container's own memory limit is reached",
        "raise the limit, or load in parts",
    ),
    (
        "oom-pinned",
        _pinned,
        "much main memory is pinned and cannot be swapped",
        "pin_memory off, or fewer prefetched batches",
    ),
    ("oom-host", _host, "main memory of the machine is used up", "fewer processes, memory maps, or more memory"),
)


def judge(measured: Measured) -> tuple[OomCause, ...]:
    """Every cause that these values point at, in order of certainty and ease of repair."""
    found = []
    for reference, rule, cause, fix in _RULES:
        evidence = rule(measured)
        if evidence:
            found.append(OomCause(reference=reference, evidence=evidence, cause=cause, fix=fix))
    return tuple(found)
