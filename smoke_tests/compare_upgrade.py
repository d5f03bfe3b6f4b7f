"""An upgrade: what the old environment wrote must load in the new one and give the same outputs.

The export routes are the ladder's own; beside them stand the cases that upgrades are known to break: a checkpoint
read with the loader's defaults, a whole pickled module (PyTorch), and an LSTM (TensorFlow, Keras).
"""

import functools
import json
import os
import time
import zipfile

# (words of the failure, cause, what to do): what upgrades are known to break
_KNOWN = (
    (
        "time_major",
        "keras2-lstm-config",
        "Keras 3 has no time_major, which Keras 2 writes into every LSTM: carry the weights in a .weights.h5 file or a "
        "SavedModel, or load with tf-keras and TF_USE_LEGACY_KERAS=1",
    ),
    (
        "not bound to checkpointed values",
        "keras2-checkpoint-names",
        "Keras 3 names its objects otherwise in a tf.train.Checkpoint: carry the weights in a .weights.h5 file",
    ),
    (
        "WeightsUnpickler",
        "weights-only",
        "torch.load has weights_only=True by default since 2.6: save state_dict(), or pass weights_only=False for "
        "files that you wrote yourself",
    ),
)

SKIPPED = ("export.tensorrt",)  # an engine file belongs to one TensorRT and one GPU by design


def _climb(job, folder):
    from envforge_smoke import ladder, worker

    entry = {
        "key": job["framework"],
        "adapter": job["framework"],
        "accelerator": job.get("accelerator"),
        "backend": job.get("backend"),
    }
    climb = ladder.Ladder(worker.adapter_for(entry, job["plan"]), entry, job["plan"], folder)
    climb.load()
    return climb


def extras(adapter):
    """Name → (write(folder) → detail, read(folder) → (detail, facts)) of the framework's own upgrade cases."""
    if adapter.name == "torch":
        return _torch(adapter)
    if adapter.name == "tensorflow":
        return _lstm(adapter.tf.keras, adapter.tf)
    if adapter.name == "keras":
        return _lstm(adapter.keras, None)
    return {}


def write(job, sent, folder, say):
    """Old side: every export with its input and expected output, all in ``old.zip``."""
    from envforge_smoke import worker

    kept = os.path.join(os.environ.get("TMPDIR") or folder, "old")
    os.makedirs(kept, exist_ok=True)
    climb = _climb(job, kept)
    say(begin="write", framework=job["framework"], versions=climb.adapter.versions(), device=climb.device)
    calls = {n: functools.partial(climb.run, n) for n in climb.adapter.routes() if n not in SKIPPED}
    for name, (writer, _) in extras(climb.adapter).items():
        os.makedirs(os.path.join(kept, name))
        calls[name] = functools.partial(writer, os.path.join(kept, name))
    written = []
    for name in calls:
        outcome, detail, cause, _ = worker.judged(calls[name], False)
        say(written=name, outcome=outcome, detail=detail, cause=cause)
        if outcome == "passed":
            written.append(name)
    with open(os.path.join(kept, "written.json"), "w") as stream:
        json.dump(written, stream)
    with zipfile.ZipFile(os.path.join(folder, "old.zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for root, folders, files in os.walk(kept):
            for name in files:
                path = os.path.join(root, name)
                archive.write(path, os.path.relpath(path, kept))
            for name in folders:  # SavedModels may hold empty folders
                path = os.path.join(root, name)
                archive.write(path, os.path.relpath(path, kept) + "/")
    say(done="write")


def explained(detail, cause):
    """(detail, cause) with what is known about a failure put in front."""
    for words, name, advice in _KNOWN:
        if words in detail:
            return "{0}. {1}".format(advice, detail), name
    return detail, cause


def read(job, sent, folder, say):
    """New side: load each and compare with what the old side computed."""
    from envforge_smoke import worker

    kept = os.path.join(os.environ.get("TMPDIR") or folder, "old")
    with zipfile.ZipFile(os.path.join(sent, "old.zip")) as archive:
        archive.extractall(kept)
    with open(os.path.join(kept, "written.json")) as stream:
        written = json.load(stream)
    climb = _climb(job, kept)
    climb.adapter.prepare_reload()
    say(begin="read", framework=job["framework"], versions=climb.adapter.versions(), device=climb.device)
    own = extras(climb.adapter)
    for name in written:
        start = time.time()
        if name.startswith("export."):
            call = functools.partial(climb.reload, name)
        elif name in own:
            call = functools.partial(own[name][1], os.path.join(kept, name))
        else:
            continue  # the planner says that it was not reported
        outcome, detail, cause, facts = worker.judged(call, False)
        if outcome == "failed":
            detail, cause = explained(detail, cause)
        say(check=name, outcome=outcome, detail=detail, cause=cause, facts=facts, seconds=round(time.time() - start, 4))
    say(done="read")


def _torch(adapter):
    """``torch.load`` with its defaults: weights_only is True since 2.6 and refuses whole objects."""
    from envforge_smoke import reference
    from envforge_smoke.outcome import Failed, describe

    torch = adapter.torch
    x = reference.tiny_input(3)

    def model():
        return adapter.model(reference.tiny_weights(3), "cpu")

    def version():
        return "torch {0}".format(torch.__version__)

    def write_state(folder):
        net = model()
        for parameter in net.parameters():
            parameter.requires_grad_(True)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        net(torch.from_numpy(x)).sum().backward()
        optimizer.step()  # an optimizer without state would prove nothing
        net.eval()
        saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 10, "who": version()}
        torch.save(saved, os.path.join(folder, "c.pt"))
        torch.save(net(torch.from_numpy(x)).detach(), os.path.join(folder, "y.pt"))
        return "state of model and AdamW"

    def read_state(folder):
        saved = torch.load(os.path.join(folder, "c.pt"))
        expected = torch.load(os.path.join(folder, "y.pt"))
        net = adapter._empty()
        net.load_state_dict(saved["model"])
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        optimizer.load_state_dict(saved["optimizer"])
        net(torch.from_numpy(x)).sum().backward()
        before = [p.detach().clone() for p in net.parameters()]
        with torch.no_grad():
            error = reference.error(net(torch.from_numpy(x)).numpy(), expected.numpy())
        optimizer.step()
        if all(bool((a == b).all()) for a, b in zip(before, net.parameters())):
            raise Failed("the optimizer loaded, but a step with it moves nothing", "optimizer-lost")
        return _same(error, adapter, "torch.load with its defaults; the AdamW of {0} goes on".format(saved["who"]))

    def write_pickled(folder):
        net = model()
        torch.save(net, os.path.join(folder, "whole.pt"))
        with torch.no_grad():
            torch.save(net(torch.from_numpy(x)), os.path.join(folder, "y.pt"))
        default, why = "loads", ""
        try:
            torch.load(os.path.join(folder, "whole.pt"))
        except Exception as error:
            default, why = "refuses", describe(error)
        with open(os.path.join(folder, "old.json"), "w") as stream:
            json.dump({"version": torch.__version__, "default": default, "why": why}, stream)
        return "a whole module, pickled; torch.load by default {0} it".format(default)

    def read_pickled(folder):
        """A trap: the default changed. Asked for by name, the old file must still load and give the same."""
        with open(os.path.join(folder, "old.json")) as stream:
            old = json.load(stream)
        path, default, why = os.path.join(folder, "whole.pt"), "loads", ""
        try:
            torch.load(path)
        except Exception as error:
            default, why = "refuses", describe(error)
            if "weights_only" not in why and "WeightsUnpickler" not in why:
                raise
        try:
            net = torch.load(path, weights_only=False)
        except TypeError:  # before torch 1.13
            net = torch.load(path)
        expected = torch.load(os.path.join(folder, "y.pt"))
        with torch.no_grad():
            error = reference.error(net(torch.from_numpy(x)).numpy(), expected.numpy())
        rules = {"torch {0}".format(old["version"]): old["default"] + " it", version(): default + " it"}
        said = "a whole pickled module by default — {0}".format(
            ", ".join("{0} {1}".format(name, rules[name]) for name in sorted(rules))
        )
        differs = old["default"] != default
        if differs:
            said += (
                "; torch.load has weights_only=True by default since 2.6: save state_dict(), or pass "
                "weights_only=False for files that you wrote yourself"
            )
        detail, facts = _same(error, adapter, said + "; with weights_only=False")
        return detail, dict(facts, rules=rules, differs=differs, refusal=why[:300])

    return {
        "upgrade.default_load": (write_state, read_state),
        "trap_weights_only": (write_pickled, read_pickled),
    }


def _same(error, adapter, said):
    from envforge_smoke.outcome import Failed

    limit = adapter.plan["tolerance"]["export"]
    text = "{0}: largest relative difference {1:.2g} (allowed {2:.0e})".format(said, error, limit)
    if error > limit:
        raise Failed(text, "export-differs", {"error": error})
    return text, {"error": error}


def _lstm(keras, tf):
    """A stateful layer has more inner names than others, and upgrades have broken it more often."""
    import numpy as np
    from envforge_smoke import reference
    from envforge_smoke.outcome import Unavailable

    class Plan(object):
        plan = {"tolerance": {"export": 1e-4}}

    def net():
        return keras.Sequential(
            [
                keras.layers.Input((6, 3)),
                keras.layers.LSTM(5, return_sequences=True),
                keras.layers.LSTM(4),
                keras.layers.Dense(2),
            ]
        )

    def filled():
        model, rng = net(), np.random.RandomState(5)
        model.set_weights([(0.5 * rng.randn(*w.shape)).astype(np.float32) for w in model.get_weights()])
        return model

    def run(model, x):
        return np.asarray(keras.ops.convert_to_numpy(model(x)) if hasattr(keras, "ops") else model(x).numpy())

    def expect(model, folder):
        x = np.random.RandomState(6).randn(4, 6, 3).astype(np.float32)
        np.savez(os.path.join(folder, "expected.npz"), x=x, y=run(model, x))

    def expected(folder):
        saved = np.load(os.path.join(folder, "expected.npz"))
        return saved["x"], saved["y"]

    def write_file(suffix, folder):
        model = filled()
        try:
            model.save(os.path.join(folder, "m" + suffix))
        except (ValueError, NotImplementedError) as error:
            raise Unavailable("this Keras does not write {0} files: {1}".format(suffix, error))
        expect(model, folder)
        return suffix

    def read_file(suffix, folder):
        x, y = expected(folder)
        model = keras.models.load_model(os.path.join(folder, "m" + suffix))
        return _same(reference.error(run(model, x), y), Plan, "an LSTM model from its {0} file".format(suffix))

    def write_weights(folder):
        model = filled()
        model.save_weights(os.path.join(folder, "m.weights.h5"))
        expect(model, folder)
        return "weights file"

    def read_weights(folder):
        x, y = expected(folder)
        model = net()
        model.load_weights(os.path.join(folder, "m.weights.h5"))
        return _same(reference.error(run(model, x), y), Plan, "LSTM weights into a model made anew")

    def write_saved(folder):
        model, path = filled(), os.path.join(folder, "saved")
        if hasattr(model, "export"):
            model.export(path)
        else:
            tf.saved_model.save(model, path)
        expect(model, folder)
        return "SavedModel"

    def read_saved(folder):
        x, y = expected(folder)
        loaded = tf.saved_model.load(os.path.join(folder, "saved"))
        call = loaded.signatures["serving_default"] if "serving_default" in loaded.signatures else loaded.serve
        name = list(call.structured_input_signature[1])[0]
        out = list(call(**{name: tf.constant(x)}).values())[0].numpy()
        return _same(reference.error(out, y), Plan, "an LSTM SavedModel")

    cases = {
        "upgrade.lstm_keras": (functools.partial(write_file, ".keras"), functools.partial(read_file, ".keras")),
        "upgrade.lstm_h5": (functools.partial(write_file, ".h5"), functools.partial(read_file, ".h5")),
        "upgrade.lstm_weights": (write_weights, read_weights),
    }
    if tf is not None:
        cases["upgrade.lstm_savedmodel"] = (write_saved, read_saved)
    return cases
