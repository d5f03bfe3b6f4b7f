"""Entry: ``python bench_run.py JOB.json`` measures ResNet-18 through every way out of the framework.

One process writes all exports, then each route is measured in a fresh process of its own, one after the other.
A time covers a whole call: NumPy in, NumPy out. A marked line per route tells what came out.
"""

import ctypes
import importlib
import json
import os
import resource
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(os.environ.get("ENVFORGE_DIR") or os.path.dirname(HERE), "bench")
DROPPED = 10
ALONE = ("export.onnx", "export.tensorrt")  # run without the framework that wrote them, as a server would


def say(**values):
    sys.stdout.write("\n@envforge " + json.dumps(values) + "\n")
    sys.stdout.flush()


def device_memory():
    """Bytes in use on the first GPU as NVML tells, None without one."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, memory = ctypes.c_void_p(), Memory()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
        return None
    return None if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else memory.used


def load(job):
    """(bench, device) of the job's framework."""
    from envforge_smoke import worker

    entry = {"key": job["framework"], "adapter": job["framework"], "accelerator": None}
    adapter = worker.adapter_for(entry, job["plan"])
    adapter.load()
    adapter.seed(job["plan"]["seed"])
    device = "gpu" if job["plan"]["expect_gpu"] != "none" and adapter.gpus() else "cpu"
    module = importlib.import_module("envforge_smoke.bench_{0}".format(job["framework"]))
    return module.Bench(adapter, device), device


def _folder(static, route, batch):
    """Exports of a fixed shape stand apart for each batch size."""
    return os.path.join(FOLDER, route, str(batch) if route in static else "any")


def _bytes(folder):
    return sum(os.path.getsize(os.path.join(root, name)) for root, _, files in os.walk(folder) for name in files)


def write(job):
    """Every export, and what the model gives for one image, held against the NumPy reference."""
    import functools

    import numpy as np
    from envforge_smoke import bench_model, reference, worker
    from envforge_smoke.outcome import Failed, Unavailable

    bench, device = load(job)
    static = tuple(bench.STATIC) + ("export.tensorrt",)
    with open(os.path.join(FOLDER, "began.json"), "w") as stream:
        json.dump({"device": device, "static": static, "nhwc": job["framework"] == "tensorflow"}, stream)
    seed = job["plan"]["seed"]
    weights, x = bench_model.weights(seed), bench_model.images(seed, 1)
    model = bench.model(weights)
    y = bench.native(model)(x)
    error = reference.error(y, bench_model.forward(weights, x))
    limit = job["plan"]["tolerance"]["tf32" if device == "gpu" else "export"]
    if error > limit:
        raise Failed("the model differs from the NumPy reference by {0:.2g} (allowed {1:.0e})".format(error, limit))
    np.savez(os.path.join(FOLDER, "expected.npz"), y=y)
    say(
        begin="write",
        versions=bench.a.versions(),
        device=device,
        gpus=bench.a.gpus() if device == "gpu" else [],
        routes=bench.ROUTES,
        reference_error=error,
        parameters=int(sum(w.size for name, w in weights.items() if not name.endswith(("_mean", "_var")))),
    )

    def one(route):
        if route == "export.tensorrt" and device != "gpu":
            raise Unavailable("TensorRT needs a GPU, and none is used here")
        for batch in (1, job["batch"]) if route in static else (1,):
            folder = _folder(static, route, batch)
            os.makedirs(folder, exist_ok=True)
            bench.write(route, model, bench_model.images(seed, batch), folder)

    written = {}
    for route in bench.ROUTES:
        start = time.time()
        outcome, detail, cause, _ = worker.judged(functools.partial(one, route), False)
        written[route] = {
            "outcome": outcome,
            "detail": detail,
            "cause": cause,
            "write_seconds": round(time.time() - start, 3),
            "file_bytes": _bytes(_folder(static, route, 1)) if outcome == "passed" else None,
        }
        with open(os.path.join(FOLDER, "written.json"), "w") as stream:
            json.dump(written, stream)


def _times(call, x, runs, dropped):
    """Milliseconds of each call, sorted."""
    for _ in range(dropped):
        call(x)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call(x)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)


def alone(device, nhwc):
    """load(route, folder, weights) of the routes that need no framework."""
    from envforge_smoke import bench_routes

    def prepare(x):
        return x.transpose(0, 2, 3, 1).copy() if nhwc else x

    def opened(route, folder, weights):
        if route == "export.onnx":
            return bench_routes.onnx(folder, device, prepare)
        return bench_routes.tensorrt(folder, prepare)

    return opened


def measure(job, route, began):
    """One route in this process; cold start counts from the moment it was started."""
    import numpy as np

    before = device_memory()
    from envforge_smoke import bench_model, reference
    from envforge_smoke.outcome import Failed

    began_with = _read(os.path.join(FOLDER, "began.json"))
    device, static = began_with["device"], began_with["static"]
    opened = alone(device, began_with["nhwc"]) if route in ALONE else load(job)[0].load
    seed, batch = job["plan"]["seed"], job["batch"]
    x, many = bench_model.images(seed, 1), bench_model.images(seed, batch)

    def weights():
        return bench_model.weights(seed)

    start = time.time()
    call = opened(route, _folder(static, route, 1), weights)
    y = call(x)
    cold, load_seconds = time.time() - began, time.time() - start
    with np.load(os.path.join(FOLDER, "expected.npz")) as saved:
        error = reference.error(y, saved["y"])
    limit = job["plan"]["tolerance"]["tf32" if device == "gpu" else "export"]
    if error > limit:
        raise Failed("the output differs from the model's by {0:.2g} (allowed {1:.0e})".format(error, limit))
    times = _times(call, x, job["runs"], DROPPED)
    single = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    folder = _folder(static, route, batch)
    if folder != _folder(static, route, 1):
        call = opened(route, folder, weights)
    rounds = _times(call, many, max(3, job["runs"] // 10), 1)
    after = device_memory()
    used = after - before if device == "gpu" and before is not None and after is not None else None
    facts = {
        "latency_ms": {
            "median": round(times[len(times) // 2], 4),
            "p95": round(times[min(len(times) - 1, int(0.95 * len(times)))], 4),
            "best": round(times[0], 4),
        },
        "throughput_per_second": round(1000 * batch / rounds[len(rounds) // 2], 3),
        "cold_start_seconds": round(cold, 3),
        "load_seconds": round(load_seconds, 3),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_memory_single_bytes": single,
        "device_memory_bytes": used,
        "error": error,
    }
    return "within {0:.1g} of the model (allowed {1:.0e})".format(error, limit), facts


def child(job_path, role, limit):
    """Run a role in a process of its own; how it ended, "" when well."""
    words = [sys.executable, os.path.abspath(__file__), job_path] + role
    process = subprocess.Popen(words)
    try:
        code = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "stopped at the time limit of {0:.0f} s".format(limit)
    if code == -9:
        return "killed, probably for memory"
    return "ended with exit code {0}".format(code) if code else ""


def _read(path):
    try:
        with open(path) as stream:
            return json.load(stream)
    except (IOError, ValueError):
        return None


def conduct(job, job_path):
    os.makedirs(FOLDER, exist_ok=True)
    ended = child(job_path, ["write"], job["timeout"])
    written = _read(os.path.join(FOLDER, "written.json")) or {}
    if ended and not written:
        return  # the process said why, or the planner says that nothing was reported
    for route in job["routes"] or list(written):
        found = written.get(route)
        if found is None:
            say(route=route, outcome="error", detail="not written: " + (ended or "no such route"), cause="", facts={})
            continue
        facts = {"write_seconds": found["write_seconds"], "file_bytes": found["file_bytes"]}
        if found["outcome"] != "passed":
            say(route=route, outcome=found["outcome"], detail=found["detail"], cause=found["cause"], facts=facts)
            continue
        path = os.path.join(FOLDER, route + ".json")
        ended = child(job_path, ["measure", route, repr(time.time()), path], job["timeout"])
        answer = _read(path) or {"outcome": "error", "detail": "no report: " + ended, "cause": "no-report", "facts": {}}
        answer["facts"].update(facts)
        say(route=route, **answer)


def main(argv):
    sys.path.insert(0, HERE)
    import run

    run.load_package()
    with open(argv[0]) as stream:
        job = json.load(stream)
    if len(argv) == 1:
        conduct(job, argv[0])
        return 0
    import functools

    from envforge_smoke import worker

    worker.die_with_parent()
    code = 0
    if argv[1] == "write":
        outcome, detail, cause, _ = worker.judged(functools.partial(write, job))
        if outcome != "passed":
            say(broken="write", detail=detail, cause=cause)
            code = 1
    else:
        outcome, detail, cause, facts = worker.judged(functools.partial(measure, job, argv[2], float(argv[3])), False)
        if outcome == "failed" and cause == "missing-compiler":
            outcome = "unavailable"
        with open(argv[4], "w") as stream:
            json.dump({"outcome": outcome, "detail": detail, "cause": cause, "facts": facts}, stream)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without the framework's own tear-down, which hangs or crashes in several


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
