"""Matrix files: build axes and test axes -> images to build and cells to test, impossible ones removed. Pure.

An image is built once (a *build*) and tested on several driver/GPU classes (a *cell* = build × test row).
Ids are made here and nowhere else: ``jax0.10.2-py3.11-cpu`` for a build, ``jax0.10.2-py3.11-cpu/docker`` for a cell.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from envforge import yamlmodel
from envforge.errors import NothingSelected, SpecError
from envforge.spec import (
    BaseSpec,
    CudaSpec,
    EnvSpec,
    FrameworkName,
    FrameworkSpec,
    PackagesSpec,
    SmokeSpec,
)
from envforge.yamlmodel import Pattern, rule

if TYPE_CHECKING:
    from envforge.verdict import Request, Verdict

MATRIX_SCHEMA = 1
MAX_CELLS = 1_000_000

Status = Literal["planned", "removed", "passed", "failed", "error", "unavailable", "not_run"]

_TEST_NAME = Pattern(expression=r"[a-z0-9][a-z0-9._-]{0,40}", meaning="a short name", example="a100-r535")
_FRAMEWORK = Pattern(
    expression=r"(torch|tensorflow|jax|keras|paddle|mindspore|mxnet)(\[[a-z0-9,_-]+\])?(==?[0-9][A-Za-z0-9.+]*)?"
    r"(\+(torch|tensorflow|jax|keras|paddle|mindspore|mxnet)(==?[0-9][A-Za-z0-9.+]*)?)*",
    meaning="a framework with its version; several joined by +",
    example="jax=0.10.2",
)
_RESOURCE = Pattern(expression=r"[a-z0-9-]+(=[0-9]{1,4})?", meaning="a worker resource", example="engine-docker=1")
_CUDA = Pattern(expression=r"cpu|none|[0-9]{1,2}\.[0-9]", meaning="a CUDA version or cpu", example="12.4", version=True)
_PYTHON = Pattern(expression=r"3\.[0-9]{1,2}", meaning="a Python version", example="3.11", version=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Build axes: their product, minus ``exclude``, plus ``include``, are the images."""

    framework: tuple[str, ...] = field(default=(), metadata=rule(pattern=_FRAMEWORK))
    cuda: tuple[str, ...] = field(default=("cpu",), metadata=rule(pattern=_CUDA))
    python: tuple[str, ...] = field(default=("3.11",), metadata=rule(pattern=_PYTHON))
    base: tuple[str, ...] = ("auto",)
    platform: tuple[Literal["linux/amd64", "linux/arm64"], ...] = ("linux/amd64",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Combination:
    """One point (``include``) or a filter (``exclude``, where shell patterns are allowed) of the build axes."""

    framework: str | None = None
    cuda: str | None = field(
        default=None,
        metadata=rule(
            pattern=Pattern(expression=r"[0-9a-z.*?]+", meaning="a CUDA version, cpu or a pattern", version=True)
        ),
    )
    python: str | None = field(
        default=None,
        metadata=rule(pattern=Pattern(expression=r"[0-9.*?]+", meaning="a Python version or a pattern", version=True)),
    )
    base: str | None = None
    platform: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TestRow:
    """One test class: where and on what an image is tested. ``labels``: runner labels for emitted CI."""

    __test__ = False  # not a pytest class

    name: str = field(metadata=rule(pattern=_TEST_NAME))
    engine: Literal["auto", "docker", "local"] = "auto"
    driver: str | None = field(
        default=None,
        metadata=rule(
            pattern=Pattern(
                expression=r"[0-9]{3}(\.[0-9]+){0,2}", meaning="a driver version", example="535.104.05", version=True
            )
        ),
    )
    gpu: str | None = None
    gpus: str = "none"
    level: int | None = field(default=None, metadata=rule(low=0, high=5))
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """Workers started for a run by Slurm, PBS, LSF or SSH. ``resources``: what each offers, ``engine-docker=1``.

    ``memory`` as Dask reads it (``16GB``), ``walltime`` as the batch system does; ``python``: the interpreter that
    has envforge on the workers (None: the same path as here).
    """

    jobs: int = field(default=1, metadata=rule(low=1, high=10_000))
    cores: int = field(default=4, metadata=rule(low=1, high=1024))
    memory: str = "16GB"
    walltime: str = "02:00:00"
    queue: str | None = None
    account: str | None = None
    interface: str | None = None
    python: str | None = None
    resources: tuple[str, ...] = field(default=(), metadata=rule(pattern=_RESOURCE))
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    wait: int = field(default=600, metadata=rule(low=1, high=86_400))  # seconds for a fitting worker to appear


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixSpec:
    """A matrix file."""

    schema: int = MATRIX_SCHEMA
    name: str = field(metadata=rule(pattern=_TEST_NAME))
    description: str = ""
    specs: tuple[str, ...] = ()
    axes: Axes = Axes()
    include: tuple[Combination, ...] = ()
    exclude: tuple[Combination, ...] = ()
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tests: tuple[TestRow, ...] = (TestRow(name="default"),)
    require: tuple[str, ...] = ()
    allow_failure: tuple[str, ...] = field(default=(), metadata=rule(key="allow-failure"))
    level: int = field(default=4, metadata=rule(low=0, high=5))
    cluster: ClusterSpec = ClusterSpec()


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One image of the matrix. ``merged_into``: the id of an earlier build with the same inputs."""

    id: str
    spec: EnvSpec | None  # None: removed before a spec could be made
    coordinates: Mapping[str, str]
    status: Status
    reason: str = ""
    digest: str | None = None  # of the lock when there is one, else of the resolution
    merged_into: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One build on one test row (plain positional record: there may be 100,000)."""

    id: str
    build: str
    test: str
    status: Status
    reason: str = ""
    required: bool = False
    allow_failure: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a matrix file means."""

    name: str
    builds: tuple[Build, ...]
    cells: tuple[Cell, ...]
    tests: Mapping[str, TestRow]
    level: int
    cluster: ClusterSpec = ClusterSpec()

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {"builds": sum(b.status == "planned" and not b.merged_into for b in self.builds)}
        for cell in self.cells:
            found[cell.status] = found.get(cell.status, 0) + 1
        return found


def loads(text: str | bytes, *, source: str) -> MatrixSpec:
    """Read a matrix file; SpecError with every problem and its place."""
    matrix = yamlmodel.load_model(text, MatrixSpec, source=source)
    problems = []
    if matrix.schema != MATRIX_SCHEMA:
        problems.append(f"{source}: schema: this envforge reads matrix schema {MATRIX_SCHEMA}, not {matrix.schema}")
    if not (matrix.axes.framework or matrix.specs or matrix.include):
        problems.append(f"{source}: nothing to build: give `axes.framework`, `specs` or `include`")
    names = [row.name for row in matrix.tests]
    problems += [
        f"{source}: tests: the name {n!r} stands twice" for n in sorted({n for n in names if names.count(n) > 1})
    ]
    size = (
        len(matrix.axes.framework)
        * len(matrix.axes.cuda)
        * len(matrix.axes.python)
        * len(matrix.axes.base)
        * len(matrix.axes.platform)
        + len(matrix.specs)
        + len(matrix.include)
    ) * max(1, len(matrix.tests))
    if size > MAX_CELLS:
        problems.append(f"{source}: {size} cells; the most is {MAX_CELLS}")
    if problems:
        raise SpecError("matrix-invalid", f"{source}: {len(problems)} problems in this matrix", context=tuple(problems))
    return matrix


# -- expansion ------------------------------------------------------------------------------------------------------


def _points(matrix: MatrixSpec) -> Iterator[dict[str, str]]:
    axes = matrix.axes
    names = ("framework", "cuda", "python", "base", "platform")
    for values in itertools.product(axes.framework, axes.cuda, axes.python, axes.base, axes.platform):
        point = dict(zip(names, values, strict=True))
        if not any(_excluded(rule_, point) for rule_ in matrix.exclude):
            yield point
    for entry in matrix.include:
        yield {
            "framework": entry.framework or "",
            "cuda": entry.cuda or "cpu",
            "python": entry.python or "3.11",
            "base": entry.base or "auto",
            "platform": entry.platform or "linux/amd64",
        }


def _excluded(entry: Combination, point: Mapping[str, str]) -> bool:
    wanted = {key: getattr(entry, key) for key in ("framework", "cuda", "python", "base", "platform")}
    return all(value is None or fnmatch.fnmatchcase(point[key], value) for key, value in wanted.items())


def build_id(point: Mapping[str, str]) -> str:
    """``jax0.10.2-py3.11-cu12.4``; a base other than auto and a platform other than amd64 are appended."""
    frameworks = point["framework"].replace("==", "=").replace("=", "")
    cuda = "cpu" if point["cuda"] in ("cpu", "none") else f"cu{point['cuda']}"
    parts = [frameworks.replace("[", "-").replace("]", "").replace(",", "-"), f"py{point['python']}", cuda]
    if point["base"] != "auto":
        parts.append(point["base"].replace(":", "").replace("/", "-"))
    if point["platform"] != "linux/amd64":
        parts.append(point["platform"].split("/")[1])
    return "-".join(parts)


def _frameworks(text: str) -> dict[FrameworkName, FrameworkSpec]:
    found: dict[FrameworkName, FrameworkSpec] = {}
    for part in _split_frameworks(text):
        name, _, version = part.replace("==", "=").partition("=")
        name, _, extras = name.partition("[")
        found[name] = FrameworkSpec(  # type: ignore[index]
            version=version or None, extras=tuple(item for item in extras.rstrip("]").split(",") if item)
        )
    return found


def _split_frameworks(text: str) -> list[str]:
    """Split at ``+`` between frameworks, not inside a local label (``torch=2.0.1+cu118``)."""
    parts: list[str] = []
    for piece in text.split("+"):
        starts_framework = piece.split("=")[0].split("[")[0] in PATTERNS_FRAMEWORKS
        if parts and not starts_framework:
            parts[-1] += f"+{piece}"
        else:
            parts.append(piece)
    return parts


PATTERNS_FRAMEWORKS = ("torch", "tensorflow", "jax", "keras", "paddle", "mindspore", "mxnet")


def point_spec(point: Mapping[str, str], matrix: MatrixSpec) -> EnvSpec:
    """The spec of one point of the axes; ``packages`` of each framework in it and of ``*`` are added."""
    frameworks = _frameworks(point["framework"])
    cuda = None if point["cuda"] in ("cpu", "none") else CudaSpec(version=point["cuda"])
    pip = [item for name in ("*", *frameworks) for item in matrix.packages.get(name, ())]
    return EnvSpec(
        name=build_id(point).replace("+", "-").lower(),
        python=point["python"],
        platform=point["platform"],  # type: ignore[arg-type]
        base=BaseSpec(image=point["base"]),
        cuda=cuda,
        frameworks=frameworks,
        packages=PackagesSpec(pip=tuple(dict.fromkeys(pip))),
        smoke=SmokeSpec(level=matrix.level),
    )


# -- planning -------------------------------------------------------------------------------------------------------

Judge = Callable[["Request"], "Verdict"]
Digest = Callable[[EnvSpec], str | None]


def plan(
    matrix: MatrixSpec,
    *,
    judge: Judge,
    request_of: Callable[[EnvSpec], Request],
    load_spec: Callable[[str], EnvSpec],
    digest_of: Digest | None = None,
    select: Sequence[str] = (),
) -> Plan:
    """Expand, judge, merge and select.

    ``judge`` and ``request_of`` are the verdict functions, ``load_spec`` reads a named spec, ``digest_of`` gives the
    identity of a spec when it is known (same identity = one image). Each build is judged once without a machine, and
    once per test row that names a driver or a GPU. Raises NothingSelected when ``select`` matches nothing.
    """
    builds = list(_builds(matrix, judge, request_of, load_spec, digest_of))
    judged: dict[tuple[str, str], str] = {}
    cells: list[Cell] = []
    rows = matrix.tests
    requests = {b.id: request_of(b.spec) for b in builds if b.spec is not None and b.status == "planned"}
    for build in builds:
        if build.merged_into:
            continue
        for row in rows:
            reason = build.reason
            if build.status == "planned":
                reason = _row_conflict(build, row, requests[build.id], judge, judged)
            status: Status = "removed" if reason else "planned"
            cell_id = f"{build.id}/{row.name}"
            cells.append(
                Cell(
                    cell_id,
                    build.id,
                    row.name,
                    status,
                    reason,
                    _matches(cell_id, build.id, matrix.require),
                    _matches(cell_id, build.id, matrix.allow_failure),
                )
            )
    cells = selected(cells, select)
    used = {cell.build for cell in cells}
    return Plan(
        name=matrix.name,
        builds=tuple(build for build in builds if build.id in used or build.merged_into in used),
        cells=tuple(cells),
        tests={row.name: row for row in rows},
        level=matrix.level,
        cluster=matrix.cluster,
    )


def _builds(
    matrix: MatrixSpec,
    judge: Judge,
    request_of: Callable[[EnvSpec], Request],
    load_spec: Callable[[str], EnvSpec],
    digest_of: Digest | None,
) -> Iterator[Build]:
    seen: dict[str, str] = {}
    ids: set[str] = set()
    named = ((name, None) for name in matrix.specs)
    points = ((build_id(point), point) for point in _points(matrix))
    for identifier, point in itertools.chain(named, points):
        if identifier in ids:
            continue
        ids.add(identifier)
        spec = load_spec(identifier) if point is None else point_spec(point, matrix)
        coordinates = _coordinates(spec)
        verdict = judge(request_of(spec))
        if verdict.verdict == "conflict":
            yield Build(id=identifier, spec=spec, coordinates=coordinates, status="removed", reason=_reason(verdict))
            continue
        digest = digest_of(spec) if digest_of else None
        merged = seen.get(digest) if digest else None
        if digest and not merged:
            seen[digest] = identifier
        yield Build(
            id=identifier, spec=spec, coordinates=coordinates, status="planned", digest=digest, merged_into=merged
        )


def _coordinates(spec: EnvSpec) -> dict[str, str]:
    """Where a build stands in the report's grid."""
    return {
        "framework": " + ".join(f"{n} {f.version or 'newest'}" for n, f in spec.frameworks.items()) or spec.name,
        "cuda": spec.cuda.version if spec.cuda else "cpu",
        "python": spec.python,
        "base": spec.base.image,
        "platform": spec.platform,
    }


def _row_conflict(
    build: Build, row: TestRow, request: Request, judge: Judge, judged: dict[tuple[str, str], str]
) -> str:
    """Why this build cannot pass on this row; empty when it can."""
    if row.driver is None and row.gpu is None:
        return ""
    key = (build.id, f"{row.driver}/{row.gpu}")
    if key not in judged:
        verdict = judge(replace(request, driver=row.driver, gpus=(row.gpu,) if row.gpu else ()))
        judged[key] = _reason(verdict) if verdict.verdict == "conflict" else ""
    return judged[key]


def _reason(verdict: Verdict) -> str:
    for finding in verdict.findings:
        if finding.severity == "conflict":
            return f"{finding.reference}: {finding.message}"
    return "no working combination"


def _matches(cell_id: str, build: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(cell_id, p) or fnmatch.fnmatchcase(build, p) for p in patterns)


def selected(cells: list[Cell], select: Sequence[str]) -> list[Cell]:
    """The cells whose id, or whose build's id, matches a pattern. NothingSelected offers the nearest ids."""
    if not select:
        return cells
    found = [cell for cell in cells if _matches(cell.id, cell.build, select)]
    if not found:
        import difflib

        near = difflib.get_close_matches(select[0], [cell.id for cell in cells[:5000]], 3, 0.3)
        raise NothingSelected(
            "nothing-selected",
            f"no cell matches {', '.join(select)}",
            hint=f"nearest: {', '.join(near)}" if near else "see: envforge matrix plan FILE",
        )
    return found


def plan_document(plan_: Plan, *, estimate: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The JSON of `matrix plan`."""
    return {
        "schema": 1,
        "name": plan_.name,
        "cells": [
            {
                "id": cell.id,
                "build": cell.build,
                "test": cell.test,
                "status": cell.status,
                "reason": cell.reason,
                "reused": False,
                "required": cell.required,
                "allow_failure": cell.allow_failure,
            }
            for cell in plan_.cells
        ],
        "builds": [
            {
                "id": build.id,
                "status": build.status,
                "reason": build.reason,
                "digest": build.digest,
                "merged_into": build.merged_into,
                **build.coordinates,
            }
            for build in plan_.builds
        ],
        "counts": plan_.counts(),
        "estimate": dict(estimate or {}),
    }
