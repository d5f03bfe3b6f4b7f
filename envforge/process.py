"""The only module that starts programs: list arguments, explicit environment, time limit, masked secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a finished program left: exit code (negative: killed by that signal), text, seconds."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    def tail(self, lines: int = 40) -> tuple[str, ...]:
        """The last lines of stdout followed by stderr, for error context."""
        return tuple((self.stdout + self.stderr).splitlines()[-lines:])


def mask(text: str, secrets: Sequence[str]) -> str:
    """``text`` with every secret replaced by ``***``."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it started; SIGTERM first, SIGKILL after three seconds."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        try:
            if hasattr(os, "killpg"):
                os.killpg(child.pid, number)
            else:
                child.terminate()
        except (ProcessLookupError, PermissionError):
            return
        try:
            child.wait(timeout=3)
            return
        except subprocess.TimeoutExpired:
            continue


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    secrets: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
) -> Outcome:
    """Run a program to its end and return its :class:`Outcome`; never raises for a non-zero exit.

    ``env`` replaces the whole environment (``None``: inherit). ``on_line`` hears each line of stdout and
    stderr as it comes (then both are merged into ``stdout``). ``timeout`` in seconds ends the whole
    process group. Raises ``FileNotFoundError`` when the program does not exist. KeyboardInterrupt ends
    the process group first and is then raised again.
    """
    words = tuple(str(word) for word in argv)
    start = time.monotonic()
    child = subprocess.Popen(
        words,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if on_line else subprocess.PIPE,
        start_new_session=os.name == "posix",
    )
    timed_out = False
    out = err = b""
    try:
        if on_line is None:
            try:
                out, err = child.communicate(stdin, timeout=timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
                _kill_group(child)
                out, err = child.communicate()
        else:
            out, timed_out = _stream(child, stdin, timeout, start, secrets, on_line)
    except BaseException:
        _kill_group(child)
        raise
    return Outcome(
        argv=tuple(mask(word, secrets) for word in words),
        code=child.returncode,
        stdout=mask(out.decode("utf-8", "replace"), secrets),
        stderr=mask(err.decode("utf-8", "replace"), secrets),
        seconds=time.monotonic() - start,
        timed_out=timed_out,
    )


def _stream(
    child: subprocess.Popen[bytes],
    stdin: bytes | None,
    timeout: float | None,
    start: float,
    secrets: Sequence[str],
    on_line: Callable[[str], None],
) -> tuple[bytes, bool]:
    """Feed stdin, hand each output line on, stop at the time limit."""
    import threading

    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _kill_group(child)

    timer = threading.Timer(max(0.0, timeout - (time.monotonic() - start)), expire) if timeout else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        if stdin is not None and child.stdin is not None:
            child.stdin.write(stdin)
            child.stdin.close()
        lines = []
        assert child.stdout is not None
        for raw in child.stdout:
            lines.append(raw)
            on_line(mask(raw.decode("utf-8", "replace").rstrip("\r\n"), secrets))
        child.wait()
    finally:
        if timer:
            timer.cancel()
    return b"".join(lines), expired.is_set()


def run_attached(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Run a program on this terminal (stdin, stdout and stderr are ours) and return its exit code.

    Ctrl-C reaches the program itself; this process waits for it to end.
    """
    child = subprocess.Popen([str(word) for word in argv], env=dict(env) if env is not None else None, cwd=cwd)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue  # the program has received the signal too and decides


def replace(argv: Sequence[str | Path], *, env: Mapping[str, str]) -> None:
    """Become this program: signals, terminal and exit code are its own. Returns only by an error.

    It is looked up on the PATH of ``env``. Raises ``FileNotFoundError`` when it does not exist.
    """
    words = [str(word) for word in argv]
    os.execvpe(words[0], words, dict(env))
