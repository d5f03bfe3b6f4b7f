"""Entry: ``python compare_run.py JOB.json`` does one side's part of a comparison; marked lines tell what came out.

Roles: ``first`` records what this side's operators give (``record.npz``, ``record.json``), ``second`` runs the
checks with that record in the first side's place, ``write`` leaves checkpoints and exported models (``old.zip``),
``read`` loads them and compares the outputs.
"""

import functools
import json
import os
import platform
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SENT = os.path.dirname(HERE)  # where the files that came along lie
FOLDER = os.environ.get("ENVFORGE_DIR") or SENT  # where files are left to be collected


def say(**values):
    """One marked line."""
    sys.stdout.write("\n@envforge " + json.dumps(values) + "\n")
    sys.stdout.flush()


def load(job, adapter_of=None):
    """The operators of this side's framework, loaded, seeded and on the device that the job asks for."""
    from envforge_smoke import cross

    entry = {"key": job["framework"], "frameworks": [job["framework"]], "accelerator": job.get("accelerator")}
    start = time.time()
    ((_, ops),) = cross._both(job["plan"], entry)
    say(
        begin=job["role"],
        framework=job["framework"],
        versions=ops.a.versions(),
        python=platform.python_version(),
        device=ops.device,
        seconds=round(time.time() - start, 3),
    )
    return ops


def _run(job, sides, tapes):
    """Every check with these two sides, as (check, start, judged outcome)."""
    from envforge_smoke import cross, worker

    cross._STATE.clear()
    for label, ops in sides:
        cross._STATE[label] = ops
    entry = {"key": "compare", "frameworks": [label for label, _ in sides], "accelerator": job.get("accelerator")}
    for name in job["checks"]:
        for tape in tapes:
            tape.begin(name)
        start = time.time()
        yield name, start, worker.judged(functools.partial(cross._CHECKS[name], job["plan"], entry))


def first(job):
    """Record; what the checks say here is told too, but the judgement is the second side's."""
    import numpy as np
    from envforge_smoke import compare_tape

    ops, tape = load(job), compare_tape.Tape()
    label = job["labels"][0]
    for name, start, judged in _run(job, [(label, compare_tape.recorder(ops, tape)), (label + " again", ops)], [tape]):
        say(recorded=name, outcome=judged[0], detail=judged[1], seconds=round(time.time() - start, 4))
    np.savez(os.path.join(FOLDER, "record.npz"), **tape.arrays)
    with open(os.path.join(FOLDER, "record.json"), "w") as stream:
        json.dump({"constants": tape.constants, "entries": tape.entries}, stream)
    say(done="first")


def unkept(job, sides, tapes):
    """What a side's model says of weights that it was given, where that is not the very bytes; "" when all are kept."""
    from envforge_smoke import operators, reference

    start = reference.tiny_weights(job["plan"]["seed"])
    for (label, ops), tape in zip(sides, tapes):
        natives = [tape.value(e) for e in tape.entries.get("weights", []) if e["method"] == "native_weights"]
        for native in natives:
            held = operators.to_reference(ops, native)
            bad = [name for name in sorted(start) if held[name].tobytes() != start[name].tobytes()]
            if bad:
                return "{0} holds other bytes than it was given in {1}".format(label, ", ".join(bad))
    return ""


def second(job):
    """Every check against the record; for operators also the largest difference between the two sides."""
    import numpy as np
    from envforge_smoke import compare_tape

    with open(os.path.join(SENT, "record.json")) as stream:
        record = json.load(stream)
    with np.load(os.path.join(SENT, "record.npz"), allow_pickle=False) as saved:
        theirs = compare_tape.Tape(record["constants"], record["entries"], {k: saved[k] for k in saved.files})
    ops, ours = load(job), compare_tape.Tape()
    a, b = job["labels"]
    sides = [(a, compare_tape.replay(theirs)), (b, compare_tape.recorder(ops, ours))]
    for name, start, (outcome, detail, cause, facts) in _run(job, sides, [theirs, ours]):
        facts = dict(facts)
        lost = unkept(job, sides, (theirs, ours)) if name == "weights" and outcome == "passed" else ""
        if lost:
            outcome, detail, cause = "failed", lost, "weights-differ"
        if not name.startswith("trap_") and name != "weights":
            facts["difference"] = compare_tape.largest_difference(theirs, ours, name)
        say(check=name, outcome=outcome, detail=detail, cause=cause, facts=facts, seconds=round(time.time() - start, 4))
    say(done="second")


def main(argv):
    sys.path.insert(0, HERE)
    import run

    run.load_package()
    with open(argv[0]) as stream:
        job = json.load(stream)
    from envforge_smoke import outcome, worker

    worker.die_with_parent()
    try:
        if job["role"] in ("first", "second"):
            {"first": first, "second": second}[job["role"]](job)
        else:
            from envforge_smoke import compare_upgrade

            {"write": compare_upgrade.write, "read": compare_upgrade.read}[job["role"]](job, SENT, FOLDER, say)
    except Exception as error:
        import traceback

        traceback.print_exc()
        text = outcome.describe(error)
        cause, explanation = outcome.classify(text)
        say(broken=job["role"], cause=cause, detail=(explanation + ". " + text if explanation else text))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without the framework's own tear-down, which hangs or crashes in several


if __name__ == "__main__":
    main(sys.argv[1:])
