"""Framework guide: bottleneck, target and constraints in; framework, export route and a ready spec out.

The knowledge is data (envforge/data/choose.yaml); this module filters and ranks it. Pure once the table is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envforge.errors import ConflictError, UsageError

SCHEMA = 1
# Whether a catalogue name works where it must run: (name) -> verdict text.
Judge = Callable[[str], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One way from a framework to where a model runs. ``scores``: 0 (no help) to 3 (the reason to take it)."""

    id: str
    framework: str
    export: str
    targets: tuple[str, ...]
    scores: Mapping[str, int]
    gives: tuple[str, ...]
    specs: Mapping[str, tuple[str, ...]]
    gains: tuple[str, ...]
    costs: tuple[str, ...]
    source: tuple[str, ...]
    checked: str
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Guide:
    """The whole table: the words one may ask with, each with its meaning, and the routes."""

    bottlenecks: Mapping[str, str]
    targets: Mapping[str, str]
    constraints: Mapping[str, str]
    routes: tuple[Route, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One proposal: a route, the spec named for it, that spec's verdict, and why the route stands where it does."""

    route: Route
    spec: str
    verdict: str
    why: tuple[str, ...]

    def document(self, target: str) -> dict[str, Any]:
        """The JSON form."""
        return {
            "framework": self.route.framework,
            "route": self.route.id,
            "export": self.route.export,
            "spec": self.spec,
            "verdict": self.verdict,
            "why": list(self.why),
            "gains": list(self.route.gains),
            "costs": list(self.route.costs),
            "note": self.route.notes.get(target, ""),
            "source": list(self.route.source),
        }


def _route(row: Mapping[str, Any]) -> Route:
    return Route(
        id=row["id"],
        framework=row["framework"],
        export=row["export"],
        targets=tuple(row["targets"]),
        scores=row["scores"],
        gives=tuple(row["gives"]),
        specs={target: tuple(names) for target, names in row["specs"].items()},
        gains=tuple(row["gains"]),
        costs=tuple(row["costs"]),
        source=tuple(row["source"]),
        checked=row["checked"],
        notes=row.get("notes", {}),
    )


def parse(document: Mapping[str, Any]) -> Guide:
    """The table of a parsed document. Raises ``ValueError`` with every row that contradicts another."""
    guide = Guide(
        bottlenecks=document["bottlenecks"],
        targets=document["targets"],
        constraints=document["constraints"],
        routes=tuple(_route(row) for row in document["routes"]),
    )
    problems = []
    for route in guide.routes:
        if set(route.specs) != set(route.targets):
            problems.append(f"{route.id}: targets and specs differ")
        if set(route.scores) != set(guide.bottlenecks) or not all(0 <= n <= 3 for n in route.scores.values()):
            problems.append(f"{route.id}: scores need a number from 0 to 3 for each bottleneck")
        unknown = set(route.targets) - set(guide.targets) | set(route.gives) - set(guide.constraints)
        problems += [f"{route.id}: unknown word {word!r}" for word in sorted(unknown)]
        if not (route.source and route.costs and route.gains):
            problems.append(f"{route.id}: a route names its source, gains and costs")
    if len({route.id for route in guide.routes}) != len(guide.routes):
        problems.append("two routes share an id")
    if problems:
        raise ValueError("; ".join(problems))
    return guide


def load() -> Guide:
    """The shipped guide."""
    import yaml

    from envforge.resources import data

    with data("choose.yaml").open(encoding="utf-8") as stream:
        return parse(yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _known(kind: str, word: str, words: Mapping[str, str]) -> str:
    if word in words:
        return word
    import difflib

    near = difflib.get_close_matches(word, words, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(words)}"
    raise UsageError("choose-word", f"{word!r} is no {kind}", hint=hint)


def choose(
    guide: Guide,
    *,
    bottleneck: str,
    target: str,
    constraints: Sequence[str] = (),
    framework: str | None = None,
    judge: Judge,
) -> tuple[Choice, ...]:
    """Every route that fits, best first. UsageError for an unknown word; ConflictError when nothing fits.

    Ranked by the score for the bottleneck, then by deployment, then by the sum of scores, then by name.
    """
    _known("bottleneck", bottleneck, guide.bottlenecks)
    _known("target", target, guide.targets)
    for word in constraints:
        _known("constraint", word, guide.constraints)
    found: list[Choice] = []
    refused: list[str] = []
    for route in guide.routes:
        if target not in route.targets or (framework and route.framework != framework):
            continue
        missing = [word for word in constraints if word not in route.gives]
        if missing:
            refused.append(f"{route.id}: does not give {', '.join(missing)}")
            continue
        verdicts = {name: judge(name) for name in route.specs[target]}
        name = next((n for n, v in verdicts.items() if v != "conflict"), None)
        if name is None:
            refused.append(f"{route.id}: none of {', '.join(verdicts)} works on that driver and GPU")
            continue
        why = [f"{guide.bottlenecks[bottleneck]}: {route.scores[bottleneck]} of 3"]
        why += [f"gives {word} ({guide.constraints[word]})" for word in constraints]
        why += [f"{other} does not work there" for other, v in verdicts.items() if v == "conflict"][:3]
        found.append(Choice(route=route, spec=name, verdict=verdicts[name], why=tuple(why)))
    if not found:
        raise ConflictError(
            "choose-nothing",
            f"no route fits {bottleneck} on {target}"
            + (f" with {', '.join(constraints)}" if constraints else "")
            + (f" and {framework}" if framework else ""),
            hint="leave out a constraint, or another target",
            context=tuple(refused),
        )
    return tuple(sorted(found, key=lambda c: _rank(c.route, bottleneck)))


def _rank(route: Route, bottleneck: str) -> tuple[int, int, int, str]:
    scores = route.scores
    return (-scores[bottleneck], -scores["deployment"], -sum(scores.values()), route.id)
