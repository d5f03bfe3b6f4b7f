"""Latency, throughput, memory and cold start of a framework's export routes, side by side.

One model (ResNet-18 for CIFAR-10 input) with the same weights everywhere; what runs inside is ``bench_run.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from envforge import smoke
from envforge.errors import NothingSelected, UsageError

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.engine import GpuRequest
    from envforge.inside import Environment, Said

SCHEMA = 1
SCRIPT = "bench_run.py"
MODEL = "ResNet-18 (CIFAR-10, 3×32×32)"
FRAMEWORKS = ("torch", "tensorflow", "jax")
DROPPED = 10  # warm-up calls, as in bench_run.py
Status = Literal["passed", "failed", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One way out. ``facts`` hold the figures (latency_ms, throughput_per_second, …) when it was measured."""

    name: str
    outcome: smoke.Outcome
    detail: str
    cause: str
    facts: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        figures = {
            "latency_ms": None,
            "throughput_per_second": None,
            "cold_start_seconds": None,
            "load_seconds": None,
            "write_seconds": None,
            "peak_memory_bytes": None,
            "peak_memory_single_bytes": None,
            "device_memory_bytes": None,
            "file_bytes": None,
            "error": None,
        }
        return {
            "name": self.name,
            "outcome": self.outcome,
            "detail": self.detail,
            "cause": self.cause,
            **(figures | {key: value for key, value in self.facts.items() if key in figures}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What was measured in one environment. ``began`` is the inside's own first line: versions, device, GPUs."""

    environment: Mapping[str, Any]
    framework: str
    routes: tuple[Route, ...]
    began: Mapping[str, Any]
    batch: int
    runs: int
    seconds: float
    noise: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        outcomes = {route.outcome for route in self.routes}
        if "failed" in outcomes:
            return "failed"
        return "error" if outcomes & {"error", "not_run"} or "passed" not in outcomes else "passed"

    def document(self) -> dict[str, Any]:
        """The `bench --json` document."""
        return {
            "schema": SCHEMA,
            "name": self.environment["name"],
            "engine": self.environment["engine"],
            "image": self.environment["image"],
            "framework": self.framework,
            "versions": self.began.get("versions"),
            "device": self.began.get("device"),
            "gpus": self.began.get("gpus") or [],
            "model": MODEL,
            "parameters": self.began.get("parameters"),
            "reference_error": self.began.get("reference_error"),
            "batch": self.batch,
            "runs": self.runs,
            "dropped": DROPPED,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "routes": [route.document() for route in self.routes],
            "noise": list(self.noise),
        }


def pick(environment: Environment, wanted: str | None) -> str:
    """The framework to measure: the wanted one, else the first there. Raises UsageError or NothingSelected."""
    have = [name for name in FRAMEWORKS if name in environment.frameworks]
    if wanted is not None and wanted not in have:
        raise UsageError(
            "usage", f"{environment.name} has no {wanted!r} to measure", hint=f"measured are: {', '.join(FRAMEWORKS)}"
        )
    if not have:
        raise NothingSelected(
            "no-framework",
            f"{environment.name} holds {', '.join(environment.frameworks) or 'no framework'}",
            hint=f"measured are: {', '.join(FRAMEWORKS)}",
        )
    return wanted or have[0]


def read(said: Said, wanted: Sequence[str]) -> tuple[tuple[Route, ...], Mapping[str, Any]]:
    """(routes, first line of the inside). Every route that was begun or wanted is there, unreported ones as errors."""
    began = next((line for line in said.lines if "begin" in line), {})
    broken = next((str(line["detail"]) for line in said.lines if "broken" in line), "")
    reported = {str(line["route"]): line for line in said.lines if "route" in line}
    names = list(wanted) or [str(name) for name in began.get("routes", ())] or ["native"]
    found = []
    for name in names:
        line = reported.get(name)
        if line is None:
            why = broken or said.ended or "no report came"
            line = {"outcome": "error", "detail": f"not measured: {why}", "cause": "no-report"}
        outcome = line.get("outcome")
        found.append(
            Route(
                name=name,
                outcome=outcome if outcome in smoke.OUTCOMES else "error",
                detail=str(line.get("detail") or ""),
                cause=str(line.get("cause") or ""),
                facts=line.get("facts") or {},
            )
        )
    return tuple(found), began


def measure(
    environment: Environment,
    *,
    framework: str,
    gpus: GpuRequest,
    console: Console,
    routes: Sequence[str] = (),
    batch: int = 32,
    runs: int = 100,
    seed: int = 0,
    timeout: int = 600,
) -> Bench:
    """Measure one environment; ``routes`` empty: all of the framework's. ``timeout``: seconds for one route.

    Raises EngineError when the engine is lost.
    """
    plan = smoke.SmokePlan(name="bench", level=4, gpus=gpus, checks=(), frameworks=(), seed=seed, scope="interpreter")
    job = {
        "framework": framework,
        "plan": plan.document(),
        "routes": list(routes),
        "batch": batch,
        "runs": runs,
        "timeout": timeout,
    }

    def hear(line: str) -> None:
        for value in smoke.parse(line)[0]:
            if "route" in value:
                console.note(f"  {value['route']}: {value['outcome']}")

    console.note(f"bench: {MODEL} with {framework} in {environment.name} …")
    said = environment.run(SCRIPT, job, gpus=gpus, timeout=60.0 + 9 * timeout, on_line=hear)
    found, began = read(said, routes)
    good = all(route.outcome in ("passed", "unavailable") for route in found)
    return Bench(
        environment=environment.document(),
        framework=framework,
        routes=found,
        began=began,
        batch=batch,
        runs=runs,
        seconds=said.seconds,
        noise=() if good else said.noise,
    )


# -- table and plot ------------------------------------------------------------------------------------------


def _figure(value: Any, scale: float = 1.0, digits: int = 1) -> str:
    return "–" if value is None else f"{value * scale:.{digits}f}"


HEADERS = ("route", "median ms", "p95 ms", "images/s", "peak MB", "device MB", "cold start s", "file MB")


def rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table's cells, one row per route; a route without figures says its outcome."""
    found: list[tuple[str, ...]] = []
    for route in document["routes"]:
        latency = route["latency_ms"] or {}
        name = route["name"].removeprefix("export.")
        if route["outcome"] != "passed":
            name += f" ({route['outcome']})"
        found.append(
            (
                name,
                _figure(latency.get("median"), digits=2),
                _figure(latency.get("p95"), digits=2),
                _figure(route["throughput_per_second"]),
                _figure(route["peak_memory_bytes"], 1e-6, 0),
                _figure(route["device_memory_bytes"], 1e-6, 0),
                _figure(route["cold_start_seconds"]),
                _figure(route["file_bytes"], 1e-6),
            )
        )
    return found


def _title(document: Mapping[str, Any]) -> str:
    versions = document["versions"] or {}
    return f"{document['model']}, {document['framework']} {versions.get('version', '')} on {document['device'] or '?'}"


def markdown(document: Mapping[str, Any]) -> str:
    """The table with what was measured and how, and the reasons of routes without figures."""
    lines = [f"# {document['name']}: {_title(document)}", ""]
    lines += ["| " + " | ".join(HEADERS) + " |", "| --- " + "| ---: " * (len(HEADERS) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(document)]
    lines += [
        "",
        f"Latency: one image, {document['runs']} calls after {document['dropped']} dropped, input and output copied. "
        f"Throughput: batches of {document['batch']}. Peak: of the process, both together. Cold start: from starting "
        "Python to the first answer. Each route in a fresh process.",
    ]
    reasons = [route for route in document["routes"] if route["outcome"] != "passed"]
    if reasons:
        lines += ["", *(f"- {route['name']}: {route['outcome']} — {route['detail']}" for route in reasons)]
    return "\n".join(lines) + "\n"


# title, figure, where its line ends, digits
_PANELS: tuple[tuple[str, Callable[[Any], float], Callable[[Any], float] | None, int], ...] = (
    ("median latency, ms (line: to p95)", lambda r: r["latency_ms"]["median"], lambda r: r["latency_ms"]["p95"], 2),
    ("throughput, images/s", lambda r: r["throughput_per_second"], None, 1),
    ("peak memory, MB", lambda r: r["peak_memory_bytes"] / 1e6, None, 0),
    ("cold start, s", lambda r: r["cold_start_seconds"], None, 1),
)


def _panel(title: str, bars: Sequence[tuple[str, float, float | None]], digits: int, top: int) -> list[str]:
    """One panel of horizontal bars, 30 units of head and 22 per bar; the longest value fills the width."""
    from xml.sax.saxutils import escape

    longest = max(max(value, whisker or 0.0) for _, value, whisker in bars) or 1.0
    found = [f'<text x="16" y="{top + 18}" class="h">{escape(title)}</text>']
    for index, (name, value, whisker) in enumerate(bars):
        y = top + 30 + 22 * index
        width = 420 * value / longest
        end = max(width, 420 * (whisker or 0.0) / longest)
        found.append(f'<text x="190" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
        found.append(f'<rect x="198" y="{y}" width="{width:.1f}" height="16"/>')
        if whisker is not None:
            found.append(f'<path d="M{198 + width:.1f} {y + 8}H{198 + end:.1f}M{198 + end:.1f} {y + 3}v10"/>')
        found.append(f'<text x="{206 + end:.1f}" y="{y + 12}">{value:.{digits}f}</text>')
    return found


def svg(document: Mapping[str, Any]) -> str:
    """The same figures as bars; needs no plotting package."""
    from xml.sax.saxutils import escape

    measured = [route for route in document["routes"] if route["outcome"] == "passed"]
    body: list[str] = [f'<text x="16" y="24" class="t">{escape(document["name"])}: {escape(_title(document))}</text>']
    top = 40
    for title, value, whisker, digits in _PANELS if measured else ():
        bars = [
            (route["name"].removeprefix("export."), float(value(route)), float(whisker(route)) if whisker else None)
            for route in measured
        ]
        body += _panel(title, bars, digits, top)
        top += 44 + 22 * len(bars)
    if not measured:
        body.append('<text x="16" y="58">no route could be measured</text>')
        top = 80
    style = (
        "text{font:12px sans-serif;fill:#222}.t{font-size:15px;font-weight:bold}.h{font-weight:bold}"
        "rect{fill:#3b6ea5}path{stroke:#222;fill:none}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="700" height="{top}" viewBox="0 0 700 {top}">\n'
        f'<style>{style}</style>\n<rect width="700" height="{top}" style="fill:#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )
