"""What one side's operators gave, as a record that travels by file and takes that side's place elsewhere.

The cross-framework checks ask two sets of operators in a fixed order. :class:`Recorder` stands before a real set and
writes every answer on a tape; :class:`Replay` gives the answers of a tape in the same order. A tape that is asked for
something else than what was recorded, or for other inputs, is refused.
"""

import numpy as np
from envforge_smoke.outcome import Failed

CONSTANTS = ("LAYOUT", "BATCH_NORM_KEEPS", "RESIZE_ANTIALIAS", "SAME", "LOSS_WANTS", "device")
OPERATORS = (
    "conv2d",
    "conv2d_same",
    "dense",
    "batch_norm",
    "running_mean",
    "layer_norm",
    "softmax_cross_entropy",
    "default_loss",
    "attention",
    "resize",
    "default_resize",
    "native_weights",
    "step",
)
ANSWERS = ("predict", "numpy", "tf32_setting")  # of the adapter: what comes back as numbers or words
SILENT = ("model", "tensor", "matmul", "set_tf32")  # of the adapter: what stays inside the framework


def _signs(arguments):
    """A number per array argument, by which a replay notices that it is asked about other inputs."""
    return [float(np.abs(a.astype(np.float64)).sum()) for a in arguments if isinstance(a, np.ndarray)]


class Tape(object):
    """Answers in the order they were given, per check."""

    def __init__(self, constants=None, entries=None, arrays=None):
        self.constants = constants or {}
        self.entries = entries or {}  # check → list of answers
        self.arrays = arrays or {}
        self.check, self.at = "", 0

    def begin(self, check):
        """What follows belongs to this check."""
        self.check, self.at = check, 0

    def _store(self, value):
        key = "a{0}".format(len(self.arrays))
        self.arrays[key] = np.ascontiguousarray(value)
        return key

    def put(self, method, arguments, value):
        """Write an answer down and give it back unchanged."""
        entry = {"method": method, "signs": _signs(arguments)}
        if isinstance(value, dict):
            entry["dict"] = {name: self._store(array) for name, array in value.items()}
        elif isinstance(value, np.ndarray):
            entry["array"] = self._store(value)
        else:
            entry["plain"] = float(value) if isinstance(value, (int, float, np.number)) else value
        self.entries.setdefault(self.check, []).append(entry)
        return value

    def refuse(self, method, arguments, text):
        """Write down that the framework could not answer."""
        self.entries.setdefault(self.check, []).append({"method": method, "signs": _signs(arguments), "error": text})

    def take(self, method, arguments):
        """The next answer. Fails when the tape was recorded for another question."""
        entries = self.entries.get(self.check, [])
        if self.at >= len(entries) or entries[self.at]["method"] != method:
            raise Failed("the record of the other side has no answer of {0!r} here".format(method), "record-mismatch")
        entry = entries[self.at]
        self.at += 1
        signs = _signs(arguments)
        if len(signs) != len(entry["signs"]) or not np.allclose(signs, entry["signs"], rtol=1e-5, atol=1e-6):
            raise Failed("{0}: the two sides were given different inputs".format(method), "inputs-differ")
        if "error" in entry:
            raise Failed("the other side failed in {0}: {1}".format(method, entry["error"]), "other-side-failed")
        return self.value(entry)

    def value(self, entry):
        """The answer of an entry; None for a refusal."""
        if "dict" in entry:
            return {name: self.arrays[key] for name, key in entry["dict"].items()}
        return self.arrays[entry["array"]] if "array" in entry else entry.get("plain")


class _Adapter(object):
    """The part of an adapter that the cross-framework checks use."""

    def __init__(self, name):
        self.name = name


def _recording(function, method, tape):
    def call(*arguments, **options):
        try:
            value = function(*arguments, **options)
        except Exception as error:
            tape.refuse(method, arguments, "{0}: {1}".format(type(error).__name__, str(error)[:300]))
            raise
        return tape.put(method, arguments, value)

    return call


def recorder(ops, tape):
    """The same operators, every answer also on the tape."""
    found = type("Recorder", (), {})()
    found.a = _Adapter(ops.a.name)
    for name in CONSTANTS:
        setattr(found, name, getattr(ops, name, None))
    constants = {name: getattr(found, name) for name in CONSTANTS}
    constants["LAYOUT"] = {name: list(axes) for name, axes in ops.LAYOUT.items()}
    tape.constants = dict(constants, name=ops.a.name)
    for name in OPERATORS:
        if hasattr(ops, name):
            setattr(found, name, _recording(getattr(ops, name), name, tape))
    for name in ANSWERS:
        setattr(found.a, name, _recording(getattr(ops.a, name), "a." + name, tape))
    for name in SILENT:
        setattr(found.a, name, getattr(ops.a, name))
    return found


def replay(tape):
    """Operators that answer from the tape."""
    found = type("Replay", (), {})()
    found.a = _Adapter(tape.constants["name"])
    for name in CONSTANTS:
        setattr(found, name, tape.constants[name])
    found.LAYOUT = {name: tuple(axes) for name, axes in tape.constants["LAYOUT"].items()}

    def answering(method):
        return lambda *arguments, **options: tape.take(method, arguments)

    for name in OPERATORS:
        setattr(found, name, answering(name))
    for name in ANSWERS:
        setattr(found.a, name, answering("a." + name))
    for name in SILENT:
        setattr(found.a, name, lambda *arguments, **options: None)
    return found


def largest_difference(first, second, check):
    """Largest relative difference of the answers of one check on two tapes; None when nothing can be compared."""
    from envforge_smoke import reference

    worst, methods = None, {}
    for entry in second.entries.get(check, []):
        methods.setdefault(entry["method"], []).append(entry)
    for one in first.entries.get(check, []):
        same = methods.get(one["method"])
        if not same:
            continue
        two = same.pop(0)
        pairs = []
        if "array" in one and "array" in two:
            pairs = [(first.value(one), second.value(two))]
        elif isinstance(one.get("plain"), float) and isinstance(two.get("plain"), float):
            pairs = [(one["plain"], two["plain"])]
        for a, b in pairs:
            error = reference.error(b, a)
            worst = error if worst is None else max(worst, error)
    return worst
