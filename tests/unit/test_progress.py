"""Steps and their display: what is said, what is logged, cut characters, cancelled steps."""

from __future__ import annotations

import io

from envforge.buildkit_trace import Log, Status, Trace, Vertex
from envforge.progress import LiveDisplay, PlainDisplay, Steps, human_bytes, open_display, short_name

RUN = Vertex(digest="a", name="[2/3] RUN --mount=type=cache,target=/c uv pip install", started=10.0)
DONE = Vertex(digest="a", name=RUN.name, started=10.0, completed=12.5)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_and_record() -> None:
    said: list[str] = []
    log: list[str] = []
    with Steps(PlainDisplay(said.append), log.append) as steps:
        steps.apply(Trace(vertexes=(Vertex(digest="i", name="[internal] load metadata", started=1.0, completed=2.0),)))
        steps.apply(Trace(vertexes=(RUN,), logs=(Log(vertex="a", message=b"one\ntw"),)))
        steps.apply(Trace(statuses=(Status(id="x", vertex="a", current=500, total=1000),)))
        steps.apply(Trace(vertexes=(DONE,), logs=(Log(vertex="a", message=b"o\n"),)))
        steps.apply(Trace(vertexes=(Vertex(digest="c", name="[3/3] COPY", cached=True, started=1.0, completed=1.0),)))
    assert said == [
        "[2/3] RUN uv pip install",
        "[2/3] RUN uv pip install: done in 2.5 s 500 B of 1 kB",
        "[3/3] COPY: cached",
    ]
    assert "one" in log and any("load metadata" in line for line in log)
    finished = steps.finished()
    assert [(step.name, step.seconds, step.cached) for step in finished] == [
        ("[2/3] RUN uv pip install", 2.5, False),
        ("[3/3] COPY", 0.0, True),
    ]


def test_a_character_cut_in_half_is_put_together() -> None:
    log: list[str] = []
    raw = "Grüße ➤\n".encode()
    with Steps(PlainDisplay(lambda line: None), log.append) as steps:
        for index in range(len(raw)):
            steps.output("a", raw[index : index + 1])
        steps.output("a", b"clipped \xe2")
    assert log == ["Grüße ➤", "clipped \ufffd"]


def test_the_failed_step_is_the_cause_and_not_the_cancelled_one() -> None:
    with Steps(PlainDisplay(lambda line: None), lambda line: None) as steps:
        steps.apply(
            Trace(
                vertexes=(
                    Vertex(digest="x", name="other", started=1.0, completed=2.0, error="context canceled"),
                    Vertex(digest="y", name="RUN false", started=1.0, completed=2.0, error="exit code: 1"),
                )
            )
        )
    assert steps.failed is not None and steps.failed.name == "RUN false"


def test_long_steps_report_now_and_then() -> None:
    said: list[str] = []
    clock = Clock()
    with Steps(PlainDisplay(said.append, interval=10, clock=clock), lambda line: None) as steps:
        steps.apply(Trace(vertexes=(RUN,)))
        for second in range(1, 25):
            clock.now = float(second)
            steps.output("a", f"line {second}\n".encode())
    assert said[1:] == ["  … line 10", "  … line 20"]


def test_what_is_not_a_terminal_gets_plain_lines() -> None:
    stream = io.StringIO()
    display = open_display(None, stream)
    assert isinstance(display, PlainDisplay)
    with Steps(display, lambda line: None) as steps:
        steps.apply(Trace(vertexes=(RUN,)))
    assert stream.getvalue() == "[2/3] RUN uv pip install\n"


def test_a_terminal_gets_a_live_table() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    display = open_display(None, stream)
    assert isinstance(display, LiveDisplay)
    with Steps(display, lambda line: None) as steps:
        steps.apply(Trace(vertexes=(DONE,)))
        steps.apply(Trace(statuses=(Status(id="x", vertex="a", current=5_000_000, total=10_000_000),)))
    assert "uv pip install" in stream.getvalue() and "5.0 MB of 10.0 MB" in stream.getvalue()


def test_sizes_and_names() -> None:
    assert [human_bytes(count) for count in (0, 999, 1500, 2_000_000, 5_820_000_000, 10**13)] == [
        "0 B",
        "999 B",
        "2 kB",
        "2.0 MB",
        "5.8 GB",
        "10.0 TB",
    ]
    assert short_name("x" * 100, 10) == "x" * 9 + "…"
