"""The checks that every framework must pass, told by an adapter how its framework spells things.

What is expected comes from the plan, never from the framework: a promised GPU that is not seen is a failure.
"""

import json
import os
import random
import time

from envforge_smoke import nvml
from envforge_smoke.outcome import Failed, MissingPackage, NotRun, Unavailable, classify, describe

STEPS = 10
RATE = 0.5


def public(version):
    return str(version).split("+")[0]


def same_prefix(have, want):
    """Whether two dotted numbers agree as far as both go ("12.4" and "12.4.131"; "12" and "12.6")."""
    have, want = str(have).split("."), str(want).split(".")
    length = min(len(have), len(want))
    return have[:length] == want[:length]


class Ladder(object):
    def __init__(self, adapter, entry, plan, folder):
        self.adapter, self.entry, self.plan, self.folder = adapter, entry, plan, folder
        self.loaded = False
        self.gpus = []  # GPUs the framework sees
        self.seen = None  # NVML's answer
        self.device = "cpu"
        self.blocked = ""  # why levels above 1 make no sense
        self._model = None

    # -- level 1 -----------------------------------------------------------------------------------------

    def load(self):
        """Import the framework and choose the device; used by restarted workers, which report no level 1."""
        self.adapter.load()
        self.loaded = True
        random.seed(self.plan["seed"])
        self.adapter.seed(self.plan["seed"])
        self._look()

    def _look(self):
        self.seen = nvml.probe()
        if self.entry.get("accelerator") == "cpu" or self.plan["expect_gpu"] == "none":
            self.gpus = []
        else:
            self.gpus = self.adapter.gpus()
        self.device = "gpu" if self.gpus else "cpu"
        if self._promised() and not self.gpus:
            self.blocked = "not run: the promised GPU is not seen by the framework (visibility.devices)"

    def _promised(self):
        return self.plan["expect_gpu"] == "promised" and self.entry.get("accelerator") != "cpu"

    def exclusive_gpu(self):
        return any(device.get("exclusive") for device in (self.seen or {}).get("devices", []))

    def run(self, name):
        group, _, short = name.partition(".")
        if group in ("numerics", "training", "export", "stress") and self.blocked:
            raise NotRun(self.blocked)
        if group == "export":
            return self._export(name)
        return getattr(self, "check_{0}_{1}".format(group, short))()

    def check_visibility_import(self):
        start = time.time()
        self.load()
        seconds = time.time() - start
        found = self.adapter.versions()
        facts = {"versions": found, "import_seconds": round(seconds, 3)}
        wanted, problems, cause = self.entry.get("version"), [], ""
        if wanted:
            local = [str(v).partition("+")[2] for v in (found["version"], wanted)]
            if public(found["version"]) != public(wanted) or (all(local) and local[0] != local[1]):
                problems.append("version {0}, locked is {1}".format(found["version"], wanted))
                cause = "wrong-version"
        accelerator = self.entry.get("accelerator")
        if accelerator == "cuda":
            if not found.get("cuda"):
                problems.append(
                    "this is a CPU build (no CUDA inside), locked is a build for CUDA {0}".format(
                        self.entry.get("cuda") or ""
                    )
                )
                cause = "cpu-build"
            elif self.entry.get("cuda") and not same_prefix(found["cuda"], self.entry["cuda"]):
                problems.append("built for CUDA {0}, locked is {1}".format(found["cuda"], self.entry["cuda"]))
                cause = "wrong-cuda-build"
        if problems:
            raise Failed("; ".join(problems), cause, facts)
        build = "CUDA {0} build".format(found["cuda"]) if found.get("cuda") else "CPU build"
        return "{0} {1}, {2}, imported in {3:.1f} s".format(self.adapter.name, found["version"], build, seconds), facts

    def check_visibility_devices(self):
        facts = {"driver": self.seen["driver"], "nvml": self.seen["devices"], "framework_gpus": self.gpus}
        expect = self.plan["expect_gpu"]
        if self.entry.get("accelerator") == "cpu":
            raise Unavailable("a CPU build by plan: no GPU is asked of it", facts=facts)
        if expect == "none":
            raise Unavailable("no GPU was asked for", facts=facts)
        if self.seen["error"]:
            cause, explanation = classify(self.seen["error"])
            # A library without a driver behind it is no fault where nothing was promised; a GPU lost on the way is.
            if self._promised() or cause in ("host-interrupted", "driver-mismatch"):
                raise Failed("{0}. {1}".format(self.seen["error"], explanation), cause or "nvml-error", facts)
        visible = nvml.visible(self.seen["devices"])
        if not visible and not self.gpus:
            if self._promised():
                raise Failed(
                    "a GPU was promised; neither NVML nor the framework sees one", "promised-gpu-absent", facts
                )
            said = " ({0})".format(self.seen["error"]) if self.seen["error"] else ""
            raise Unavailable("no GPU here and none promised{0}".format(said), facts=facts)
        if not self.gpus:
            why = self.adapter.gpu_trouble()
            cause, explanation = classify(why)
            raise Failed(
                "NVML sees {0} GPU(s) (driver {1}), the framework none: it would silently use the CPU{2}".format(
                    len(visible), self.seen["driver"], ": {0} {1}".format(why, explanation).rstrip() if why else ""
                ),
                "cpu-fallback",
                facts,
            )
        if len(self.gpus) != len(visible):
            raise Failed(
                "the framework sees {0} GPU(s), NVML {1}".format(len(self.gpus), len(visible)), "device-count", facts
            )
        wanted = self.plan.get("gpu_count")
        if wanted and len(self.gpus) != wanted:
            raise Failed("{0} GPU(s) promised, {1} seen".format(wanted, len(self.gpus)), "device-count", facts)
        ours = sorted(g.get("uuid") or "" for g in self.gpus)
        theirs = sorted(d.get("uuid") or "" for d in visible)
        if all(ours) and all(theirs) and ours != theirs and not any(d.get("mig") for d in visible):
            raise Failed("the framework and NVML name different GPUs", "device-mismatch", facts)
        names = ", ".join(str(g.get("name") or d.get("name")) for g, d in zip(self.gpus, visible))
        return "{0} GPU(s): {1}; driver {2}".format(len(self.gpus), names, self.seen["driver"]), facts

    def check_visibility_kernels(self):
        if not self.gpus:
            if self.blocked:
                raise NotRun(self.blocked)
            raise Unavailable("no GPU here, so no kernels to look for")
        kernels = self.adapter.kernels() or self.entry.get("kernels")
        capabilities = [c for c in (self._capability(i) for i in range(len(self.gpus))) if c]
        if kernels:
            for capability in capabilities:
                if nvml.fits(capability, kernels) is None:
                    raise Failed(
                        "no kernel for compute capability {0} among {1}".format(capability, ", ".join(kernels)),
                        "no-kernel-for-gpu",
                        {"kernels": kernels},
                    )
        # The list may lie: a kernel must run, be waited for and give the right number.
        value = self.adapter.first_kernel()
        if abs(value - 3.0) > 1e-6:
            raise Failed("the first kernel gave {0}, expected 3".format(value), "wrong-result")
        listed = "listed: {0}".format(", ".join(kernels)) if kernels else "the framework lists none"
        return "a kernel ran on capability {0}; {1}".format(", ".join(capabilities) or "unknown", listed), {
            "kernels": list(kernels or [])
        }

    def _capability(self, index=0):
        if index < len(self.gpus) and self.gpus[index].get("capability"):
            return self.gpus[index]["capability"]
        visible = nvml.visible((self.seen or {}).get("devices", []))
        return visible[index].get("capability") if index < len(visible) else None

    # -- level 2 -----------------------------------------------------------------------------------------

    def _where(self, tensor, what):
        place = self.adapter.device_of(tensor)
        if place != self.device:
            raise Failed("{0} is on the {1}, expected on the {2}".format(what, place, self.device), "wrong-device")

    def check_numerics_tensor(self):
        import numpy as np

        a = self.adapter
        x = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
        t = a.tensor(x, self.device)
        self._where(t, "a new tensor")
        if not np.array_equal(a.numpy(t), x):
            raise Failed("a tensor does not come back as it was made", "wrong-result")
        whole = a.numpy(a.cast(t, "int32"))
        if whole.dtype != np.int32 or not np.array_equal(whole, x.astype(np.int32)):
            raise Failed("conversion to int32 gave {0}".format(whole.dtype), "wrong-result")
        half = a.numpy(a.cast(t, "float16"))
        if half.dtype != np.float16 or not np.array_equal(half, x.astype(np.float16)):
            raise Failed("conversion to float16 gave {0}".format(half.dtype), "wrong-result")
        moved = a.move(t, "cpu")
        if a.device_of(moved) != "cpu" or not np.array_equal(a.numpy(moved), x):
            raise Failed("a tensor does not survive the move to the CPU", "wrong-result")
        if self.device == "gpu":
            back = a.move(moved, "gpu")
            self._where(back, "a tensor moved to the GPU")
        return "created, converted and moved on {0}".format(self.device)

    def _compared(self, what, compute, expected):
        """Compare with the reference; a GPU of capability 8.0 or more gets a second run with TF32 off (BC-25)."""
        from envforge_smoke import reference

        limit = self.plan["tolerance"]["float32"]
        setting = self.adapter.tf32_setting() if self.device == "gpu" else "not on a CPU"
        error = reference.error(compute(), expected)
        facts = {"error": error, "tolerance": limit, "tf32": setting}
        said = "{0}: relative error {1:.2g} (allowed {2:.0e}), TF32 {3}".format(what, error, limit, setting)
        if error <= limit:
            return said, facts
        capability = self._capability() if self.device == "gpu" else None
        if capability and int(capability.split(".")[0]) >= 8 and error <= 1e-2:
            if not self.adapter.set_tf32(False):
                raise Failed(said + "; could be TF32, which this framework cannot switch off", "numerics-tf32", facts)
            try:
                again = reference.error(compute(), expected)
            finally:
                self.adapter.set_tf32(True)
            facts["error_without_tf32"] = again
            if again <= limit:
                return (
                    "numerics: TF32. {0}; with TF32 off {1:.2g}: the GPU rounds inputs of matrix products to 10 "
                    "mantissa bits by default, the installation is sound".format(said, again),
                    facts,
                )
            said += "; with TF32 off still {0:.2g}, so TF32 is not the cause".format(again)
        elif capability and int(capability.split(".")[0]) < 8:
            said += "; capability {0} has no TF32".format(capability)
        raise Failed(said, "wrong-result", facts)

    def check_numerics_matmul(self):
        import numpy as np

        rng = np.random.RandomState(self.plan["seed"])
        x, y = rng.randn(192, 256).astype(np.float32), rng.randn(256, 128).astype(np.float32)
        a, b = self.adapter.tensor(x, self.device), self.adapter.tensor(y, self.device)

        def compute():
            out = self.adapter.matmul(a, b)
            self._where(out, "the product")
            return self.adapter.numpy(out)

        return self._compared("matrix product on {0}".format(self.device), compute, x.astype(np.float64) @ y)

    def check_numerics_convolution(self):
        import numpy as np
        from envforge_smoke import reference

        rng = np.random.RandomState(self.plan["seed"])
        x, w = rng.randn(2, 8, 17, 15).astype(np.float32), rng.randn(16, 8, 3, 3).astype(np.float32)

        def compute():
            return self.adapter.conv2d(x, w, 2, 1, self.device)

        return self._compared("convolution on {0}".format(self.device), compute, reference.conv2d(x, w, 2, 1))

    def check_numerics_gradient(self):
        import numpy as np

        x = np.linspace(-2, 2, 41).astype(np.float32)
        return self._compared(
            "gradient of the sum of x³",
            lambda: self.adapter.cubic_gradient(x, self.device),
            3 * x.astype(np.float64) ** 2,
        )

    # -- level 3 -----------------------------------------------------------------------------------------

    def check_training_mlp(self):
        from envforge_smoke import reference

        seed = self.plan["seed"]
        x, y, weights = reference.mlp_task(seed)
        runs = []
        for _ in range(2):
            self.adapter.seed(seed)
            runs.append(self.adapter.train(x, y, weights, STEPS, RATE, self.device))
        (losses, last, places), (again, last_again, _) = runs
        facts = {"losses": losses}
        if len(losses) != STEPS:
            raise Failed("{0} steps reported, {1} asked for".format(len(losses), STEPS), "wrong-result", facts)
        if set(places) != {self.device}:
            raise Failed(
                "tensors on {0}, expected on the {1}".format(", ".join(sorted(set(places))), self.device),
                "wrong-device",
                facts,
            )
        if not losses[-1] < 0.9 * losses[0]:
            raise Failed("the loss did not fall: {0:.4f} → {1:.4f}".format(losses[0], losses[-1]), "no-learning", facts)
        expected, reference_last = reference.mlp_train(x, y, weights, STEPS, RATE)
        worst = max([reference.error(losses, expected)] + [reference.error(a, b) for a, b in zip(last, reference_last)])
        facts["error"] = worst
        if worst > self.plan["tolerance"]["training"]:
            raise Failed("losses or weights differ from the reference by {0:.2g}".format(worst), "wrong-result", facts)
        drift = max(reference.error(a, b) for a, b in zip([again] + list(last_again), [losses] + list(last)))
        if drift != 0:
            raise Failed(
                "a repeated run gave other numbers (difference {0:.2g})".format(drift), "not-deterministic", facts
            )
        return (
            "{0} steps on {1}, loss {2:.4f} → {3:.4f}, repeated exactly, within {4:.1g} of the reference".format(
                STEPS, self.device, losses[0], losses[-1], worst
            ),
            facts,
        )

    # -- level 4 -----------------------------------------------------------------------------------------

    def _tiny(self):
        from envforge_smoke import reference

        if self._model is None:
            seed = self.plan["seed"]
            weights, x = reference.tiny_weights(seed), reference.tiny_input(seed)
            model = self.adapter.model(weights, self.device)
            y = self.adapter.predict(model, x)
            error = reference.error(y, reference.tiny_forward(weights, x))
            limit = self.plan["tolerance"]["tf32" if self.device == "gpu" else "export"]
            if error > limit:
                raise Failed("the model differs from the reference by {0:.2g}".format(error), "wrong-result")
            self._model = (model, x, y)
        return self._model

    def _export(self, name):
        import numpy as np

        if name == "export.tensorrt" and self.device != "gpu":
            raise Unavailable("TensorRT needs a GPU, and none is used here")
        route = self.adapter.routes().get(name)
        if route is None:
            raise Unavailable("this framework has no such route")
        model, x, y = self._tiny()
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        np.savez(os.path.join(folder, "expected.npz"), x=x, y=y)
        detail = route[0](model, x, folder)
        with open(os.path.join(folder, "job.json"), "w") as stream:
            json.dump({"device": self.device, "capability": self._capability()}, stream)
        return detail or ""

    def reload(self, name):
        """In a fresh process: read the export, run it on the same input, compare."""
        import numpy as np
        from envforge_smoke import reference

        folder = os.path.join(self.folder, name)
        with open(os.path.join(folder, "job.json")) as stream:
            job = json.load(stream)
        saved = np.load(os.path.join(folder, "expected.npz"))
        self.device = job["device"]
        answer = self.adapter.routes()[name][1](folder, saved["x"], self.device)
        outputs, said = answer if isinstance(answer, tuple) else (answer, "")
        outputs = outputs if isinstance(outputs, dict) else {"": outputs}
        limit = self.plan["tolerance"]["tf32" if self.device == "gpu" else "export"]
        errors = {}
        for label in sorted(outputs):
            errors[label] = reference.error(outputs[label], saved["y"])
            if errors[label] > limit:
                raise Failed(
                    "reloaded{0}, the output differs by {1:.2g} (allowed {2:.0e}); {3}".format(
                        " ({0})".format(label) if label else "", errors[label], limit, said
                    ),
                    "export-differs",
                    {"errors": errors},
                )
        worst = max(errors.values())
        text = "reloaded in a fresh process, largest relative difference {0:.2g} (allowed {1:.0e})".format(worst, limit)
        return "; ".join(part for part in (text, said) if part), {"errors": errors}

    # -- level 5 -----------------------------------------------------------------------------------------

    def check_stress_latency(self):
        model, x, _ = self._tiny()
        for _ in range(10):
            self.adapter.predict(model, x)
        times = []
        for _ in range(100):
            start = time.perf_counter()
            self.adapter.predict(model, x)
            times.append(1000 * (time.perf_counter() - start))
        times.sort()
        facts = {"median_ms": round(times[50], 4), "p95_ms": round(times[95], 4), "runs": len(times), "dropped": 10}
        return "batch of {0} on {1}: median {2:.3f} ms, 95 % below {3:.3f} ms".format(
            len(x), self.device, times[50], times[95]
        ), facts

    def check_stress_repeat(self):
        from envforge_smoke import reference

        model, x, y = self._tiny()
        worst = 0.0
        for _ in range(1000):
            worst = max(worst, reference.error(self.adapter.predict(model, x), y))
        if worst > 1e-3:
            raise Failed("1000 repeats differ by up to {0:.2g} (allowed 1e-3)".format(worst), "not-stable")
        return "1000 repeats within {0:.1g} (allowed 1e-3)".format(worst), {"error": worst}

    def check_stress_memory(self):
        """Big tensors are made and released again and again; later rounds leave no more behind than early ones."""
        import gc

        import numpy as np

        size = 64 if self.device == "gpu" else 32  # MiB each
        levels = []
        for _ in range(4):
            kept = [self.adapter.tensor(np.ones((size, 512, 512), np.float32), self.device) for _ in range(2)]
            self.adapter.numpy(kept[-1])
            high = self._memory()
            del kept
            gc.collect()
            self.adapter.release()
            levels.append((high, self._memory()))
        base, last = levels[1][1], levels[-1][1]
        facts = {"high_bytes": levels[-1][0], "after_bytes": [low for _, low in levels]}
        if last - base > 8 * 2**20:
            raise Failed(
                "{0:.0f} MB stay in use after each round of making and releasing".format((last - base) / 2e6),
                "leak",
                facts,
            )
        return "memory returns to its level after release ({0:+.1f} MB over two rounds)".format(
            (last - base) / 1e6
        ), facts

    def _memory(self):
        """Bytes in use: the framework's own count on a GPU, the resident set on a CPU."""
        used = self.adapter.gpu_memory() if self.device == "gpu" else None
        if used is not None:
            return used
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def check_stress_compile(self):
        from envforge_smoke import reference

        model, x, y = self._tiny()
        start = time.time()
        try:
            got, how = self.adapter.compiled(model, x)
        except (Unavailable, MissingPackage):
            raise
        except Exception as error:
            cause, explanation = classify(describe(error))
            raise Failed("{0} {1}".format(explanation, describe(error)).strip(), cause or "compile-failed")
        error = reference.error(got, y)
        limit = self.plan["tolerance"]["tf32" if self.device == "gpu" else "export"]
        if error > limit:
            raise Failed("{0}: the output differs by {1:.2g}".format(how, error), "wrong-result")
        return "{0}: same output within {1:.1g}, first call {2:.1f} s".format(how, error, time.time() - start)

    def check_stress_allreduce(self):
        if len(self.gpus) < 2:
            raise Unavailable("all-reduce needs two or more GPUs, {0} seen".format(len(self.gpus)))
        got = self.adapter.allreduce(len(self.gpus))
        expected = sum(range(1, len(self.gpus) + 1))
        if any(abs(value - expected) > 1e-6 for value in got):
            raise Failed("all-reduce over {0} GPUs gave {1}".format(len(self.gpus), got), "wrong-result")
        return "sum over {0} GPUs is right on each".format(len(self.gpus))
