"""A child process of the ladder: ``worker`` climbs levels 1-3 and 5 and writes exports, ``reload`` reads them back."""

import ctypes
import functools
import importlib
import json
import os
import signal
import sys
import time
import traceback

from envforge_smoke.outcome import Failed, MissingPackage, NotRun, Unavailable, classify, describe


class Events(object):
    """Reports to the parent, one JSON line per event."""

    def __init__(self, descriptor):
        self.stream = os.fdopen(descriptor, "wb", 0)

    def send(self, event, **values):
        values["event"] = event
        self.stream.write((json.dumps(values) + "\n").encode("utf-8"))


def die_with_parent():
    """Linux: a killed parent takes this process along."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def adapter_for(entry, plan):
    module = importlib.import_module("envforge_smoke.adapters.{0}_".format(entry["adapter"]))
    return module.Adapter(entry, plan)


def judged(function, route_required=True):
    """Call a check and turn what happens into ``(outcome, detail, cause, facts)``."""
    try:
        answer = function()
        detail, facts = answer if isinstance(answer, tuple) else (answer, {})
        return "passed", detail or "", "", facts
    except Failed as failure:
        return "failed", failure.detail, failure.cause, failure.facts
    except Unavailable as missing:
        return "unavailable", missing.detail, missing.cause, missing.facts
    except NotRun as skipped:
        return "not_run", skipped.detail, "", {}
    except MissingPackage as missing:
        detail = "{0}{1}".format(missing, ": " + missing.route if missing.route else "")
        return ("failed" if route_required else "unavailable"), detail, "missing-module", {}
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        traceback.print_exc()
        cause, explanation = classify("{0}: {1}".format(type(error).__name__, error))
        if isinstance(error, MemoryError):
            cause = "out-of-memory"
        detail = describe(error)
        return "failed", (explanation + ". " + detail if explanation else detail), cause, {}


def run_worker(plan, entry, folder, done, events):

    names = [c["name"] for c in plan["checks"] if c["framework"] == entry["key"] and c["name"] not in done]
    if entry["adapter"] == "crossframework":
        from envforge_smoke import cross

        for name in names:
            start = time.time()
            events.send("start", name=name)
            outcome, detail, cause, facts = judged(cross.check(name, plan, entry))
            _end(events, name, start, outcome, detail, cause, facts)
        return
    from envforge_smoke import ladder

    required = set(entry.get("required") or ())
    climb = ladder.Ladder(adapter_for(entry, plan), entry, plan, os.path.join(folder, entry["key"]))
    climb.restarted = "visibility.import" in done
    if climb.restarted:
        climb.load()
    elif "visibility.import" not in names:
        climb.load()
    waited = False
    for name in names:
        if name.startswith("stress.") and not waited:
            waited = True
            events.send("barrier")
            sys.stdin.readline()
        start = time.time()
        events.send("start", name=name)
        outcome, detail, cause, facts = judged(functools.partial(climb.run, name), name in required)
        if name == "visibility.devices" and climb.exclusive_gpu():
            events.send("exclusive")
        if name.startswith("export.") and outcome == "passed":
            events.send("written", name=name, seconds=time.time() - start, detail=detail)
            continue
        _end(events, name, start, outcome, detail, cause, facts)
        if name == "visibility.import" and outcome != "passed" and not climb.loaded:
            for left in names[names.index(name) + 1 :]:
                _end(events, left, time.time(), "not_run", "not run: visibility.import failed", "", {})
            return


def _end(events, name, start, outcome, detail, cause, facts):
    events.send("end", name=name, seconds=time.time() - start, outcome=outcome, detail=detail, cause=cause, facts=facts)


def run_reload(plan, entry, folder, events):
    from envforge_smoke import ladder

    adapter = adapter_for(entry, plan)
    adapter.load()
    adapter.seed(plan["seed"])
    adapter.prepare_reload()
    climb = ladder.Ladder(adapter, entry, plan, os.path.join(folder, entry["key"]))
    required = set(entry.get("required") or ())
    events.send("ready")
    for line in sys.stdin:
        job = json.loads(line)
        start = time.time()
        events.send("start", name=job["name"])
        outcome, detail, cause, facts = judged(functools.partial(climb.reload, job["name"]), job["name"] in required)
        _end(events, job["name"], start, outcome, detail, cause, facts)


def main(argv):
    role, key, plan_path, folder, descriptor, done = argv
    die_with_parent()
    with open(plan_path, "rb") as stream:
        plan = json.loads(stream.read().decode("utf-8"))
    entry = next(e for e in plan["frameworks"] if e["key"] == key)
    if role == "pair":
        from envforge_smoke import cross

        code = cross.pair(folder.split(","), plan, entry)
        sys.stdout.flush()
        os._exit(code)
    events = Events(int(descriptor))
    os.makedirs(os.path.join(folder, key), exist_ok=True)
    if role == "worker":
        run_worker(plan, entry, folder, set(done.split(",")) - {""}, events)
    else:
        run_reload(plan, entry, folder, events)
    events.stream.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Leave without the framework's own tear-down: several hang or crash there, and nothing is left to save.
    os._exit(0)
