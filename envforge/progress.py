"""Build progress: a live table on a terminal, plain lines elsewhere, and the steps for the record.

:class:`Steps` is the model both builders feed (BuildKit's trace or the classic builder's text); a
:class:`Display` shows it. Nothing here knows Docker.
"""

from __future__ import annotations

import codecs
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from envforge.buildkit_trace import Trace
from envforge.engine import BuildStep

if TYPE_CHECKING:
    from rich.table import Table

# Steps of BuildKit's own that tell a person nothing.
_INTERNAL = ("[internal]", "copy /context", "load remote build context")


@dataclass(kw_only=True, slots=True)
class Step:
    """A step under way. ``bytes_done``/``bytes_total`` add up what its parts report (0: nothing reported)."""

    key: str
    name: str
    started: float | None = None
    completed: float | None = None
    cached: bool = False
    error: str = ""
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    last_line: str = ""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=400))

    @property
    def internal(self) -> bool:
        return any(mark in self.name for mark in _INTERNAL)

    @property
    def seconds(self) -> float:
        if self.started is None or self.completed is None:
            return 0.0
        return max(0.0, self.completed - self.started)

    @property
    def bytes_done(self) -> int:
        return sum(done for done, _ in self.parts.values())

    @property
    def bytes_total(self) -> int:
        return sum(total for _, total in self.parts.values())


class Display(Protocol):
    """Hears of changes; must not raise."""

    def changed(self, step: Step) -> None: ...

    def line(self, step: Step, text: str) -> None: ...

    def close(self) -> None: ...


def human_bytes(count: int) -> str:
    """``1.5 GB`` (powers of ten, as package indexes count)."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def short_name(name: str, width: int = 78) -> str:
    """A step's name on one line: mount options left out, blanks joined, cut to ``width`` characters."""
    words = [word for word in name.split() if not word.startswith("--mount=")]
    text = " ".join(words)
    return text if len(text) <= width else text[: width - 1] + "…"


class PlainDisplay:
    """One line when a step starts and one when it ends; long steps report every ``interval`` seconds."""

    def __init__(
        self, write: Callable[[str], None], *, interval: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._interval = interval
        self._clock = clock
        self._said: dict[str, str] = {}
        self._last: dict[str, float] = {}

    def changed(self, step: Step) -> None:
        if step.internal:
            return
        state = _state(step)
        if state != self._said.get(step.key):
            self._said[step.key] = state
            self._last[step.key] = self._clock()
            if state == "running":
                self._write(short_name(step.name))
            elif state != "waiting":
                self._write(f"{short_name(step.name, 60)}: {state}{_amount(step)}")
        elif state == "running":
            self._heartbeat(step)

    def line(self, step: Step, text: str) -> None:
        if not step.internal and _state(step) == "running":
            self._heartbeat(step)

    def _heartbeat(self, step: Step) -> None:
        if self._clock() - self._last.get(step.key, 0.0) < self._interval:
            return
        self._last[step.key] = self._clock()
        detail = short_name(step.last_line, 60)
        self._write(f"  …{_amount(step)} {detail}".rstrip())

    def close(self) -> None:
        return None


def _state(step: Step) -> str:
    if step.error:
        return "failed"
    if step.cached:
        return "cached"
    if step.completed is not None:
        return f"done in {step.seconds:.1f} s"
    return "running" if step.started is not None else "waiting"


def _amount(step: Step) -> str:
    if not step.bytes_done:
        return ""
    total = f" of {human_bytes(step.bytes_total)}" if step.bytes_total else ""
    return f" {human_bytes(step.bytes_done)}{total}"


class LiveDisplay:
    """A table that redraws itself on a terminal: steps so far, bytes, and the newest output line."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._steps: dict[str, Step] = {}
        self._origin = time.time()
        self._console = Console(file=stream, highlight=False)
        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=5, transient=False)
        self._live.start()

    def _table(self) -> Table:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        for step in list(self._steps.values())[-20:]:
            state = _state(step)
            seconds = step.seconds or (time.time() - step.started if step.started and state == "running" else 0.0)
            mark: object = {"failed": Text("✗", style="red"), "cached": Text("=", style="dim")}.get(
                state, Spinner("dots") if state == "running" else Text("✓", style="green")
            )
            table.add_row(
                mark,  # type: ignore[arg-type]
                Text(short_name(step.name, max(20, self._console.width - 34))),
                Text(_amount(step).strip(), style="cyan"),
                Text("cached" if state == "cached" else f"{seconds:.1f} s", style="dim"),
            )
            if state == "running" and step.last_line:
                table.add_row("", Text(short_name(step.last_line, self._console.width - 10), style="dim"), "", "")
        return table

    def changed(self, step: Step) -> None:
        if not step.internal and step.started is not None:
            self._steps[step.key] = step

    def line(self, step: Step, text: str) -> None:
        return None

    def close(self) -> None:
        self._live.stop()


def open_display(write: Callable[[str], None] | None, stream: TextIO | None = None) -> Display:
    """The display for one build: lines to ``write`` when given, else by what ``stream`` (stderr) is."""
    if write is not None:
        return PlainDisplay(write)
    target = stream if stream is not None else sys.stderr
    if target.isatty():
        return LiveDisplay(target)

    def to_stream(text: str) -> None:
        target.write(text + "\n")
        target.flush()

    return PlainDisplay(to_stream)


class Steps:
    """Collects what the builder reports, hands it to the display and writes every output line to the log.

    Use as a context manager: leaving it flushes half lines and closes the display.
    """

    def __init__(self, display: Display, log: Callable[[str], None]) -> None:
        self._display = display
        self._log = log
        self._steps: dict[str, Step] = {}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._pending: dict[str, str] = {}

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for key in list(self._pending):
            self._flush(key)
        self._display.close()

    def step(self, key: str, name: str = "") -> Step:
        """The step with this key, made on first sight."""
        if key not in self._steps:
            self._steps[key] = Step(key=key, name=name or key)
        return self._steps[key]

    def apply(self, trace: Trace) -> None:
        """Take in one BuildKit message."""
        for vertex in trace.vertexes:
            step = self.step(vertex.digest, vertex.name)
            if vertex.started is not None and step.started is None:
                self._log(f"#> {vertex.name}")
            step.started = vertex.started if vertex.started is not None else step.started
            finished = vertex.completed is not None and step.completed is None
            step.completed = vertex.completed if vertex.completed is not None else step.completed
            step.cached = step.cached or vertex.cached
            step.error = vertex.error or step.error
            if finished:
                self._flush(vertex.digest)
                self._log(f"#< {'cached' if step.cached else f'{step.seconds:.1f} s'} {vertex.name}")
                if vertex.error:
                    self._log(f"#! {vertex.error}")
            self._display.changed(step)
        for status in trace.statuses:
            step = self.step(status.vertex)
            if status.current or status.total:
                step.parts[status.id] = (status.current, status.total)
                self._display.changed(step)
        for log in trace.logs:
            self.output(log.vertex, log.message)

    def output(self, key: str, data: bytes) -> None:
        """Bytes printed by a step; cut into lines here (half characters and half lines wait for the rest)."""
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._pending.get(key, "") + decoder.decode(data)
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._pending[key] = rest
        for line in lines:
            self._line(key, line)

    def note(self, text: str) -> None:
        """A line of no step (the classic builder's chatter, our own remarks)."""
        self._log(text)

    def _line(self, key: str, text: str) -> None:
        step = self.step(key)
        self._log(text)
        step.tail.append(text)
        if text.strip():
            step.last_line = text.strip()
            self._display.line(step, text)

    def _flush(self, key: str) -> None:
        decoder = self._decoders.pop(key, None)
        rest = self._pending.pop(key, "") + (decoder.decode(b"", final=True) if decoder else "")
        if rest:
            self._line(key, rest)

    def changed(self, step: Step) -> None:
        """Tell the display that the caller altered a step."""
        self._display.changed(step)

    @property
    def failed(self) -> Step | None:
        """The step that ended with an error (not one that was merely cancelled because another failed)."""
        wrong = [step for step in self._steps.values() if step.error]
        real = [step for step in wrong if "context canceled" not in step.error]
        return next(iter(real or wrong), None)

    def finished(self) -> tuple[BuildStep, ...]:
        """Completed steps in order, for the record."""
        return tuple(
            BuildStep(name=short_name(step.name, 200), seconds=round(step.seconds, 3), cached=step.cached)
            for step in self._steps.values()
            if step.completed is not None and not step.internal
        )
