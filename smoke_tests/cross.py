"""Two frameworks in one process: both import orders, every operator against the reference, weights carried over, traps.

A trap is a difference in what two frameworks do by default. It passes when both do what they document, and the detail
explains the difference; a framework that follows neither rule fails.
"""

import functools
import importlib
import os
import subprocess
import sys

from envforge_smoke.outcome import Failed, Unavailable, classify

_STATE = {}


def check(name, plan, entry):
    """The function of one check, ready to be called."""
    short = name[len("crossframework.") :]
    if short.startswith("import_"):
        names = entry["frameworks"]
        order = names if short == "import_" + "_".join(names) else list(reversed(names))
        if order == names:
            return functools.partial(this_order, order, plan, entry)
        return functools.partial(import_order, order, entry["key"])
    return functools.partial(_CHECKS[short], *[plan, entry])


def this_order(order, plan, entry):
    """This process itself is the first order: everything after it runs with both imported."""
    for _, ops in _both(plan, entry):
        _works(ops.a, order)
    return "{0} first, then {1}: both work".format(*order)


def _works(adapter, order):
    import numpy as np

    ones = adapter.tensor(np.ones((4, 4), np.float32), "cpu")
    if float(adapter.numpy(adapter.matmul(ones, ones))[0, 0]) != 4.0:
        raise Failed(
            "{0} computes wrongly after the imports {1}".format(adapter.name, ", ".join(order)), "import-order"
        )


def import_order(order, key):
    """In a fresh process: import the first, use it, import the second, use both."""
    run = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.py")
    child = subprocess.Popen(
        [sys.executable, run, "--role", "pair", key, sys.argv[4], ",".join(order), "0", ""],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = child.communicate()[0].decode("utf-8", "replace")
    if child.returncode != 0 or "both work" not in said:
        cause, explanation = classify(said)
        last = " | ".join(line.strip() for line in said.splitlines() if line.strip())[-400:]
        raise Failed(
            "{0}, then {1}: exit code {2}. {3} {4}".format(order[0], order[1], child.returncode, explanation, last),
            cause or "import-order",
        )
    return "{0} first, then {1}: both work".format(*order)


def pair(order, plan, entry):
    """What the fresh process of :func:`import_order` does."""
    used = []
    for name in order:
        used.append(_adapter(name, plan, entry))
        for adapter in used:
            _works(adapter, order)
    sys.stdout.write("both work\n")
    return 0


def _adapter(name, plan, entry):
    module = importlib.import_module("envforge_smoke.adapters.{0}_".format(name))
    adapter = module.Adapter(dict(entry, accelerator=entry.get("accelerator")), plan)
    adapter.load()
    adapter.seed(plan["seed"])
    return adapter


def _both(plan, entry):
    """(name, operators) of both frameworks, loaded once per process."""
    from envforge_smoke.operators import OPS

    if not _STATE:
        for name in entry["frameworks"]:
            adapter = _adapter(name, plan, entry)
            cpu = entry.get("accelerator") == "cpu" or plan["expect_gpu"] == "none"
            device = "gpu" if not cpu and adapter.gpus() else "cpu"
            if device == "gpu":
                adapter.set_tf32(False)  # operators are judged in full float32; the TF32 trap has its own check
            _STATE[name] = OPS[name](adapter, device)
    return [(name, _STATE[name]) for name in entry["frameworks"]]


def _arrays(plan, *shapes):
    import numpy as np

    rng = np.random.RandomState(plan["seed"] + 7)
    return [rng.randn(*shape).astype(np.float32) for shape in shapes]


def _operator(what, call, expected, plan, entry):
    """Run one operator in both frameworks and compare each with the reference."""
    from envforge_smoke import reference

    limit, said, facts, bad = 10 * plan["tolerance"]["float32"], [], {}, []
    for name, ops in _both(plan, entry):
        facts[name] = reference.error(call(ops), expected)
        said.append("{0} {1:.2g}".format(name, facts[name]))
        if facts[name] > limit:
            bad.append(name)
    text = "{0}: relative error against the NumPy reference {1} (allowed {2:.0e})".format(what, ", ".join(said), limit)
    if bad:
        raise Failed(text + "; wrong: " + ", ".join(bad), "wrong-result", facts)
    return text, facts


def conv2d(plan, entry):
    from envforge_smoke import reference

    x, w = _arrays(plan, (2, 3, 11, 9), (5, 3, 3, 3))
    return _operator(
        "convolution, stride 2, padding 1", lambda o: o.conv2d(x, w, 2, 1), reference.conv2d(x, w, 2, 1), plan, entry
    )


def dense(plan, entry):
    from envforge_smoke import reference

    x, w, b = _arrays(plan, (7, 12), (12, 5), (5,))
    return _operator("dense", lambda o: o.dense(x, w, b), reference.dense(x, w, b), plan, entry)


def batch_norm(plan, entry):
    from envforge_smoke import reference

    x, scale, shift = _arrays(plan, (6, 4, 5, 5), (4,), (4,))
    expected = reference.batch_norm(x, scale, shift)[0]
    return _operator("batch norm (training)", lambda o: o.batch_norm(x, scale, shift), expected, plan, entry)


def layer_norm(plan, entry):
    from envforge_smoke import reference

    x, scale, shift = _arrays(plan, (6, 20), (20,), (20,))
    expected = reference.layer_norm(x, scale, shift)
    return _operator("layer norm", lambda o: o.layer_norm(x, scale, shift), expected, plan, entry)


def _labels(count, classes):
    import numpy as np

    return (np.arange(count) % classes).astype(np.int64)


def softmax_cross_entropy(plan, entry):
    from envforge_smoke import reference

    (logits,) = _arrays(plan, (9, 5))
    labels = _labels(9, 5)
    expected = reference.softmax_cross_entropy(logits, labels)
    return _operator("softmax cross-entropy", lambda o: o.softmax_cross_entropy(logits, labels), expected, plan, entry)


def attention(plan, entry):
    from envforge_smoke import reference

    q, k, v = _arrays(plan, (2, 3, 6, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    return _operator("attention", lambda o: o.attention(q, k, v), reference.attention(q, k, v), plan, entry)


def resize_bilinear(plan, entry):
    from envforge_smoke import reference

    (x,) = _arrays(plan, (2, 3, 9, 7))
    expected = reference.resize_bilinear(x, 5, 11)
    return _operator("bilinear resize 9×7 → 5×11, no antialiasing", lambda o: o.resize(x, 5, 11), expected, plan, entry)


def weights(plan, entry):
    """First framework → second → back; after the permutations every byte must be the same."""
    from envforge_smoke import operators, reference

    (first, a), (second, b) = _both(plan, entry)
    start = reference.tiny_weights(plan["seed"])
    native = a.native_weights(a.a.model(start, a.device))
    carried = operators.to_reference(a, native)
    there = b.native_weights(b.a.model(carried, b.device))
    back = operators.from_reference(a, operators.to_reference(b, there))
    for name in sorted(native):
        if native[name].tobytes() != back[name].tobytes():
            raise Failed("{0} changed on the way {1} → {2} → {1}".format(name, first, second), "weights-differ")
    moved = []
    for name in ("conv_w", "dense_w"):
        moved.append(
            "{0}: {1} {2} → {3} {4}".format(
                name, first, "×".join(map(str, native[name].shape)), second, "×".join(map(str, there[name].shape))
            )
        )
    return "weights carried {0} → {1} → {0}, byte for byte the same; {2}".format(first, second, ", ".join(moved))


def model(plan, entry):
    """The tiny model with the same weights: forward, then one training step."""
    from envforge_smoke import operators, reference

    (first, a), (second, b) = _both(plan, entry)
    start, x = reference.tiny_weights(plan["seed"]), reference.tiny_input(plan["seed"])
    carried = operators.to_reference(a, a.native_weights(a.a.model(start, a.device)))
    out = [o.a.predict(o.a.model(carried, o.device), x) for o in (a, b)]
    forward = reference.error(out[1], out[0])
    target = (0.5 * out[0] + 1).astype("float32")
    moved = [operators.to_reference(o, o.step(carried, x, target, 0.1)) for o in (a, b)]
    step = max(reference.error(moved[1][name], moved[0][name]) for name in moved[0])
    travelled = max(reference.error(moved[0][name], carried[name]) for name in carried)
    facts = {"forward": forward, "step": step, "travelled": travelled}
    limit = plan["tolerance"]["export"]
    if max(forward, step) > limit or travelled < 1e-4:
        raise Failed(
            "{0} and {1} differ: forward {2:.2g}, after one training step {3:.2g} (allowed {4:.0e}; the step moved "
            "the weights by {5:.2g})".format(first, second, forward, step, limit, travelled),
            "wrong-result",
            facts,
        )
    return "{0} and {1} agree: forward {2:.2g}, after one training step {3:.2g} (allowed {4:.0e})".format(
        first, second, forward, step, limit
    ), facts


def _follows(got, rules, limit):
    """The name of the rule (name → expected) that ``got`` follows, or None; another shape is no match."""
    from envforge_smoke import reference

    for name in sorted(rules):
        if reference.error(got, rules[name]) <= limit:
            return name
    return None


def _trap(plan, entry, call, rules, documented, what, advice):
    """Judge a default: what each framework documents must be what it does; differing rules are explained."""
    import numpy as np

    limit = 10 * plan["tolerance"]["float32"]
    shapes = {np.shape(v) for v in rules.values()}
    if len(shapes) == 1:
        values = [np.asarray(v) for v in rules.values()]
        if any(np.allclose(values[0], v, atol=1e-3) for v in values[1:]):
            raise Failed("the control is blind: the rules give the same numbers", "blind-check")
    seen = {}
    for name, ops in _both(plan, entry):
        want = documented(ops)
        if want is None:
            continue
        seen[name] = _follows(call(ops), rules, limit)
        if seen[name] != want:
            raise Failed(
                "{0}: {1} documents {2!r} and follows {3!r}".format(what, name, want, seen[name] or "neither rule"),
                "undocumented-default",
                seen,
            )
    if not seen:
        raise Unavailable("{0}: neither framework has this layer".format(what))
    said = ", ".join("{0}: {1}".format(name, rule) for name, rule in sorted(seen.items()))
    differ = "they differ: {0}".format(advice) if len(set(seen.values())) > 1 else "they agree"
    if len(seen) == 1:
        differ = "the other has no such layer"
    return "{0} — {1}; {2}".format(what, said, differ), {"rules": seen}


def trap_same_padding(plan, entry):
    """Kernel 3, stride 2 on an even side and kernel 4 on an odd one: the padding cannot be the same on both sides."""
    from envforge_smoke import reference

    x, w = _arrays(plan, (1, 2, 8, 8), (3, 2, 3, 3))
    rules = {
        "symmetric": reference.conv2d(x, w, 2, 1),
        "end": reference.conv2d(x, w, 2, (reference.same_padding(8, 3, 2),) * 2),
    }
    first = _trap(
        plan,
        entry,
        lambda o: o.conv2d_same(x, w, 2),
        rules,
        lambda o: o.SAME,
        "same padding with a stride, side 8, kernel 3",
        "the odd element goes to the end in one, both sides are padded in the other; give the padding as numbers",
    )
    y, v = _arrays(plan, (1, 2, 7, 7), (3, 2, 4, 4))
    odd = {
        "symmetric": reference.conv2d(y, v, 2, 2),
        "end": reference.conv2d(y, v, 2, (reference.same_padding(7, 4, 2),) * 2),
    }
    second = _trap(
        plan,
        entry,
        lambda o: o.conv2d_same(y, v, 2),
        odd,
        lambda o: o.SAME,
        "side 7, kernel 4",
        "even the rows and columns meant differ",
    )
    return first[0] + "; " + second[0], {"even": first[1], "odd": second[1]}


def trap_batch_norm_momentum(plan, entry):
    from envforge_smoke import reference

    (x,) = _arrays(plan, (6, 4, 5, 5))
    x = x + 3
    batch = reference.batch_norm(x, 1, 0)[1]
    rules = {
        "keeps 0.9 of the old mean": reference.running_mean(0 * batch, batch, 0.9),
        "keeps 0.99 of the old mean": reference.running_mean(0 * batch, batch, 0.99),
    }
    return _trap(
        plan,
        entry,
        lambda o: o.running_mean(x),
        rules,
        lambda o: "keeps {0} of the old mean".format(o.BATCH_NORM_KEEPS) if o.BATCH_NORM_KEEPS else None,
        "batch norm momentum by default",
        "PyTorch's momentum 0.1 is Keras' 0.9; set it by hand in both",
    )


def trap_resize_antialias(plan, entry):
    from envforge_smoke import reference

    (x,) = _arrays(plan, (1, 2, 16, 16))
    rules = {
        "no antialiasing": reference.resize_bilinear(x, 5, 5, antialias=False),
        "antialiasing": reference.resize_bilinear(x, 5, 5, antialias=True),
    }
    return _trap(
        plan,
        entry,
        lambda o: o.default_resize(x, 5, 5),
        rules,
        lambda o: "antialiasing" if o.RESIZE_ANTIALIAS else "no antialiasing",
        "shrinking an image by default",
        "say antialias=… in both",
    )


def trap_logits(plan, entry):
    """A loss fed with probabilities where it wants logits gives a plausible number and trains badly."""
    from envforge_smoke import reference

    (logits,) = _arrays(plan, (9, 5))
    logits, labels = 3 * logits, _labels(9, 5)
    probabilities = reference.softmax(logits).astype("float32")
    right = reference.softmax_cross_entropy(logits, labels)
    rules = {"logits": right, "probabilities": reference.softmax_cross_entropy(probabilities, labels)}

    def wants(ops):
        """Fed with probabilities: the right loss means that it wanted them."""
        import numpy as np

        got = ops.default_loss(probabilities, labels)
        if abs(got - right) <= 1e-3 * abs(right):
            return np.asarray(rules["probabilities"])
        if abs(got - rules["probabilities"]) <= 1e-3 * abs(rules["probabilities"]):
            return np.asarray(rules["logits"])
        return np.asarray(got)

    return _trap(
        plan,
        entry,
        wants,
        rules,
        lambda o: o.LOSS_WANTS,
        "cross-entropy by default wants",
        "a softmax before a loss that wants logits is applied twice; use from_logits=True or drop the softmax",
    )


def trap_tf32(plan, entry):
    """Only a GPU of capability 8.0 or newer has TF32; what each framework does by default is measured there."""
    import numpy as np
    from envforge_smoke import reference

    both = _both(plan, entry)
    if any(ops.device != "gpu" for _, ops in both):
        raise Unavailable("TF32 exists only on GPUs, and not both frameworks use one here")
    x, y = _arrays(plan, (256, 256), (256, 256))
    expected, said, facts = x.astype(np.float64) @ y, [], {}
    for name, ops in both:
        adapter = ops.a
        a, b = adapter.tensor(x, "gpu"), adapter.tensor(y, "gpu")
        exact = reference.error(adapter.numpy(adapter.matmul(a, b)), expected)
        adapter.set_tf32(True)
        default = reference.error(adapter.numpy(adapter.matmul(a, b)), expected)
        setting = adapter.tf32_setting()
        adapter.set_tf32(False)
        facts[name] = {"off": exact, "default": default, "setting": setting}
        said.append("{0}: {1:.1g} by default (TF32 {2}), {3:.1g} with it off".format(name, default, setting, exact))
        if exact > plan["tolerance"]["float32"]:
            raise Failed("; ".join(said) + ": TF32 is not the cause", "wrong-result", facts)
    return "matrix products — {0}; compare frameworks only with TF32 off in both".format("; ".join(said)), facts


_CHECKS = {
    "conv2d": conv2d,
    "dense": dense,
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "softmax_cross_entropy": softmax_cross_entropy,
    "attention": attention,
    "resize_bilinear": resize_bilinear,
    "weights": weights,
    "model": model,
    "trap_same_padding": trap_same_padding,
    "trap_batch_norm_momentum": trap_batch_norm_momentum,
    "trap_resize_antialias": trap_resize_antialias,
    "trap_logits": trap_logits,
    "trap_tf32": trap_tf32,
}
