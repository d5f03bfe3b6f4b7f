"""Runs the plan: level 0 here, everything else in worker processes that may hang or die without harm.

Per framework there is one worker (levels 1 to 3, writing the exports, level 5) and one fresh process that reloads
each export as soon as it is written. The reload process imports the framework while the worker is busy, so the
second import costs little time. What a child prints is noise; it reports on a pipe of its own.
"""

import collections
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from envforge_smoke import structure
from envforge_smoke.outcome import Failed, Unavailable, classify, describe

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.py")
RESTARTS = 3


class Reporter(object):
    """Writes marked lines on a private copy of stdout and remembers what was planned and reported."""

    def __init__(self, plan):
        self.marker = plan["marker"]
        self.stream = os.fdopen(os.dup(1), "wb", 0)
        os.dup2(2, 1)  # whatever else writes to stdout from here on is noise and goes to stderr
        self.planned = collections.OrderedDict(((c["framework"], c["name"]), c) for c in plan["checks"])
        self.done = set()

    def line(self, value):
        # A leading newline ends a half line that somebody else may have left on the shared stream.
        self.stream.write(("\n" + self.marker + json.dumps(value) + "\n").encode("utf-8"))

    def check(self, framework, name, outcome, seconds=0.0, detail="", cause="", facts=None):
        key = (framework, name)
        if key not in self.planned or key in self.done:
            return
        self.done.add(key)
        self.line(
            {
                "check": name,
                "framework": framework,
                "level": self.planned[key]["level"],
                "outcome": outcome,
                "seconds": round(seconds, 3),
                "detail": detail,
                "cause": cause,
                "facts": facts or {},
            }
        )

    def open_names(self, framework):
        return [name for key, name in self.planned if key == framework and (key, name) not in self.done]


class Child(object):
    """A worker process, its report pipe, its log, and what it is doing now."""

    def __init__(self, role, entry, plan_path, folder, done=(), extra_env=None):
        self.role = role
        self.current = None  # name of the check in progress
        self.since = time.time()
        self.ready = False
        self.closed = False
        self.buffer = b""
        self.killed_for = ""
        reading, writing = os.pipe()
        self.pipe = reading
        self.log_path = os.path.join(folder, "{0}-{1}.log".format(role, entry["key"]))
        env = dict(os.environ)
        env.update({"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"})
        env.update(entry.get("env") or {})
        env.update(extra_env or {})
        words = [sys.executable, RUN, "--role", role, entry["key"], plan_path, folder, str(writing), ",".join(done)]
        with open(self.log_path, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                start_new_session=True,
                env=env,
            )
        os.close(writing)

    def events(self):
        """The complete events that are waiting; sets ``closed`` at the end of the pipe."""
        chunk = os.read(self.pipe, 65536)
        if not chunk:
            self.closed = True
        self.buffer += chunk
        lines = self.buffer.split(b"\n")
        self.buffer = lines.pop()
        found = []
        for line in lines:
            try:
                found.append(json.loads(line.decode("utf-8")))
            except ValueError:
                continue
        return found

    def send(self, value):
        try:
            self.process.stdin.write((json.dumps(value) + "\n").encode("utf-8"))
            self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # it has died; the closed pipe says so

    def kill(self, reason=""):
        self.killed_for = self.killed_for or reason
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass

    def close(self):
        self.kill()
        try:
            self.process.stdin.close()
        except OSError:
            pass
        self.process.wait()
        os.close(self.pipe)

    def death(self):
        """(cause, text) for a process that ended by itself while it had work."""
        code = self.process.wait()
        tail = self.tail()
        if code == -signal.SIGKILL or code == 137:
            return "out-of-memory", "the process was killed (signal 9): most likely memory ran out"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "signal {0}".format(-code)
            cause, explanation = classify(tail)
            return cause or "crashed", "the process crashed with {0}. {1}{2}".format(name, explanation, _last(tail))
        cause, explanation = classify(tail)
        return cause or "exited", "the process ended with exit code {0}. {1}{2}".format(code, explanation, _last(tail))

    def tail(self, size=4000):
        try:
            with open(self.log_path, "rb") as log:
                log.seek(0, 2)
                log.seek(max(self.log_start, log.tell() - size))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""


def bytecode(folder):
    """Environment variables for the workers, and whether the environment holds no compiled bytecode.

    Images leave it out to be small and their root is read-only here, so every process would compile the whole
    framework again: let them share a cache in the temporary folder instead.
    """
    sites = structure.site_folders()
    compiled = any(os.path.isdir(os.path.join(site, "numpy", "__pycache__")) for site in sites)
    if compiled or sys.version_info < (3, 8):
        return {"PYTHONDONTWRITEBYTECODE": "1"}, False
    return {"PYTHONPYCACHEPREFIX": os.path.join(folder, "pycache"), "PYTHONDONTWRITEBYTECODE": ""}, True


def _last(text, lines=6):
    kept = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    return (" Last output: " + " | ".join(kept))[:700] if kept else ""


class FrameworkRun(object):
    """One framework entry of the plan from import to the last reload."""

    def __init__(self, plan, plan_path, folder, entry, report, python_env=None, cold=False):
        self.python_env = python_env or {}
        self.cold = cold  # no bytecode yet: the reload process waits until the worker has compiled it
        self.plan, self.plan_path, self.folder, self.entry, self.report = plan, plan_path, folder, entry, report
        self.key = entry["key"]
        self.limit = float(plan["timeout"])
        self.worker = None
        self.reloader = None
        self.restarts = 0
        self.reload_failures = 0
        self.written = {}  # route → seconds spent writing, detail
        self.queue = collections.deque()
        self.selector = selectors.DefaultSelector()
        self.barrier = False
        self.exclusive = False  # a GPU in exclusive mode serves one process at a time
        os.makedirs(os.path.join(folder, self.key), exist_ok=True)

    def start(self):
        self.worker = self._spawn("worker")
        if not self.cold:
            self._start_reloader()

    def _start_reloader(self):
        exports = any(name.startswith("export.") for name in self.report.open_names(self.key))
        if exports and (os.cpu_count() or 1) > 1:
            self.reloader = self._spawn("reload")

    def _spawn(self, role):
        done = [name for key, name in self.report.done if key == self.key] if role == "worker" else []
        done += list(self.written) if role == "worker" else []
        child = Child(role, self.entry, self.plan_path, self.folder, done, self.python_env)
        self.selector.register(child.pipe, selectors.EVENT_READ, child)
        return child

    def _drop(self, child):
        self.selector.unregister(child.pipe)
        child.close()

    def finish(self):
        """Run to the end; every open check of this framework is reported afterwards."""
        try:
            while self.worker or self.reloader:
                for key, _ in self.selector.select(0.2):
                    child = key.data
                    for event in child.events():
                        self._hear(child, event)
                    if child.closed:
                        self._ended(child)
                self._expire()
                self._dispatch()
        finally:
            for child in (self.worker, self.reloader):
                if child:
                    child.close()
        for name in self.report.open_names(self.key):
            self.report.check(
                self.key, name, "error", detail="planned, but the tests never reported it", cause="no-report"
            )

    def _hear(self, child, event):
        kind = event.get("event")
        if kind == "ready":
            child.ready, child.since = True, time.time()
        elif kind == "start":
            child.current, child.since = event["name"], time.time()
        elif kind == "end":
            child.current, child.since = None, time.time()
            seconds = event["seconds"]
            if child.role == "reload" and event["name"] in self.written:
                before = self.written.pop(event["name"])
                seconds += before[0]
                if event["outcome"] == "passed" and before[1]:
                    event["detail"] = "; ".join(part for part in (before[1], event["detail"]) if part)
            self.report.check(
                self.key, event["name"], event["outcome"], seconds, event["detail"], event["cause"], event["facts"]
            )
            if self.cold and event["name"] == "visibility.import" and event["outcome"] == "passed":
                self._start_reloader()
        elif kind == "written":
            child.current, child.since = None, time.time()
            self.written[event["name"]] = (event["seconds"], event["detail"])
            self.queue.append(event["name"])
        elif kind == "barrier":
            child.current, child.since, self.barrier = None, None, True
        elif kind == "exclusive":
            self.exclusive = True

    def _ended(self, child):
        """The child closed its pipe: normal at the end of its work, otherwise the check in progress failed."""
        self.selector.unregister(child.pipe)
        open_names = [n for n in self.report.open_names(self.key) if n not in self.written]
        busy = child.current
        if child.role == "worker":
            if busy or (open_names and not self._finished(child)):
                cause, text = (child.killed_for, self._limit_text()) if child.killed_for else child.death()
                name = busy or open_names[0]
                self.report.check(self.key, name, "failed", time.time() - (child.since or time.time()), text, cause)
                self.restarts += 1
                child.close()
                self.worker = None
                if name == "visibility.import":
                    self._give_up("not run: visibility.import failed")
                elif self.restarts >= RESTARTS:
                    self._give_up("not run: the worker died {0} times before".format(self.restarts))
                elif [n for n in self.report.open_names(self.key) if n not in self.written]:
                    self.worker = self._spawn("worker")
                return
            child.close()
            self.worker = None
            return
        if busy or not child.ready:
            cause, text = (child.killed_for, self._limit_text()) if child.killed_for else child.death()
            self.reload_failures += 1
            if busy:
                self.written.pop(busy, None)
                self.report.check(self.key, busy, "failed", time.time() - child.since, "reloading: " + text, cause)
            elif self.reload_failures >= 2:
                for name in list(self.written):
                    self.report.check(self.key, name, "failed", detail="in a fresh process: " + text, cause=cause)
                self.written.clear()
                self.queue.clear()
        child.close()
        self.reloader = None

    @staticmethod
    def _finished(child):
        return child.process.wait() == 0 and not child.killed_for

    def _limit_text(self):
        return "time limit: not finished after {0:.0f} s, stopped".format(self.limit)

    def _give_up(self, why):
        for name in self.report.open_names(self.key):
            if name not in self.written:
                self.report.check(self.key, name, "not_run", detail=why)

    def _expire(self):
        now = time.time()
        for child in (self.worker, self.reloader):
            if child is None or child.since is None or child.killed_for:
                continue
            if child.role == "reload" and child.ready and not child.current:
                continue  # waiting for work
            if now - child.since > self.limit:
                child.kill("time-limit")

    def _dispatch(self):
        """Hand the next written export to the reload process, let the worker pass its barrier, end what is idle."""
        waiting = bool(self.queue)
        if waiting and self.reloader is None and not (self.exclusive and self.worker):
            self.reloader = self._spawn("reload")
        child = self.reloader
        if child is not None and child.ready and not child.current and not child.closed:
            if waiting and not (self.exclusive and self.worker and not self.barrier):
                name = self.queue.popleft()
                child.current, child.since = name, time.time()
                child.send({"name": name})
            elif self.worker is None and not self.queue:
                self._drop(child)
                self.reloader = None
        elif child is not None and not child.ready and self.worker is None and not self.written:
            self._drop(child)  # nothing was exported
            self.reloader = None
        if self.barrier and self.worker is not None and not self.written:
            if self.reloader is not None:
                self._drop(self.reloader)
                self.reloader = None
            self.barrier = False
            self.worker.since = time.time()
            self.worker.send({"go": True})


def run_structure(plan, report):
    for name in report.open_names(""):
        if name not in structure.CHECKS:
            continue
        start, cause, facts = time.time(), "", {}
        try:
            outcome, detail = "passed", structure.CHECKS[name](plan)
        except Failed as failure:
            outcome, detail, cause = "failed", failure.detail, failure.cause
        except Unavailable as missing:
            outcome, detail, cause = "unavailable", missing.detail, missing.cause
        except Exception as error:
            outcome, detail = "error", describe(error)
        report.check("", name, outcome, time.time() - start, detail, cause, facts)


def main(plan_path):
    with open(plan_path, "rb") as stream:
        plan = json.loads(stream.read().decode("utf-8"))
    plan_path = os.path.abspath(plan_path)
    report = Reporter(plan)
    # A stop request must end the workers too: turn it into an exception that runs the clean-up below.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    folder = tempfile.mkdtemp(prefix="envforge-smoke-")
    start = time.time()
    python_env, cold = bytecode(folder)
    try:
        report.line({"event": "begin", "python": sys.version.split()[0], "planned": len(report.planned)})
        first = True
        for entry in plan["frameworks"]:
            if not report.open_names(entry["key"]):
                continue
            run = FrameworkRun(plan, plan_path, folder, entry, report, python_env, cold)
            run.start()
            if first:
                run_structure(plan, report)
                first = False
            run.finish()
        if first:
            run_structure(plan, report)
        for framework, name in list(report.planned):
            report.check(framework, name, "error", detail="planned, but the tests never reported it", cause="no-report")
        report.line({"event": "end", "seconds": round(time.time() - start, 3)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0
