"""`envforge smoke`: the ladder in a built environment, an image, or any interpreter."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge.console import Console
from envforge.errors import EXIT_OK, EXIT_SMOKE, UsageError

if TYPE_CHECKING:
    from envforge.engine import Engine, GpuRequest
    from envforge.smoke import SmokePlan, SmokeReport

EXAMPLE = "envforge smoke torch-cu124 --gpus all --level 5 --junit smoke.xml"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|IMAGE", help="a built environment, or any image or prefix")
    parser.add_argument("--python", type=Path, metavar="PATH", help="test this interpreter; without NAME what it holds")
    parser.add_argument("--engine", choices=["auto", "docker", "local"], default="auto", help="default: auto")
    parser.add_argument(
        "--gpus", default="auto", help="none | auto | all | COUNT | device=0,2 | device=UUID (default: auto)"
    )
    parser.add_argument("--level", type=int, choices=range(6), help="highest level (default: the spec's, else 4)")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML too")
    parser.add_argument("--timeout", type=int, metavar="SECONDS", help="limit for one check")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import passthrough

    gpus = passthrough.parse_gpus(args.gpus)
    if args.name is None and args.python is None:
        raise UsageError("usage", "name an environment or image, or give --python PATH", hint="see: envforge list")
    report = _python(args, gpus, console) if args.python is not None else _engine(args, gpus, console)
    from envforge import paths, record

    document = report.document()
    document["record"] = str(record.write(_record_name(report), report.inputs_digest, document))
    if args.junit is not None:
        from envforge import junit

        paths.write_atomic(args.junit, junit.render([document]))
    console.document(document)
    _print(document, console)
    return EXIT_OK if report.status == "passed" else EXIT_SMOKE


def _record_name(report: SmokeReport) -> str:
    """A folder name: an image or a path is no good one as it stands."""
    import re

    return re.sub(r"[^A-Za-z0-9@._-]+", "-", report.name).strip("-") or "smoke"


def _plan(args: argparse.Namespace, gpus: GpuRequest) -> SmokePlan | None:
    """The plan of a NAME that envforge knows; None when it names no spec."""
    from dataclasses import replace

    from envforge import lock, pipeline, smoke
    from envforge.errors import SpecError
    from envforge.spec import load

    try:
        spec = load(args.name)
    except SpecError as error:
        if error.reference != "spec-not-found":
            raise
        return None
    resolution = pipeline.resolved(spec)
    level = args.level if args.level is not None else resolution.smoke.level
    plan = smoke.make_plan(resolution, lock.read(resolution.name), level=level, gpus=gpus)
    return replace(plan, timeout=args.timeout) if args.timeout else plan


def _python(args: argparse.Namespace, gpus: GpuRequest, console: Console) -> SmokeReport:
    import shutil
    from dataclasses import replace

    from envforge import smoke

    # Not resolved: the link of a virtual environment is what makes it one.
    found = shutil.which(str(args.python)) if args.python.parent == Path() else str(args.python.absolute())
    python = Path(found or args.python)
    if args.name is not None:
        plan = _plan(args, gpus)
        if plan is None:
            raise UsageError("usage", f"{args.name!r} names no spec; --python goes with a spec's NAME or alone")
    else:
        answer = smoke.probe_python(python)
        level = args.level if args.level is not None else smoke.DEFAULT_LEVEL
        plan = smoke.make_plan(None, None, level=level, gpus=gpus, found=answer, name=str(args.python))
        if not plan.frameworks:
            return smoke.run_python(python, console=console, level=level, gpus=gpus)  # raises: nothing to test
        if args.timeout:
            plan = replace(plan, timeout=args.timeout)
    console.note(f"smoke: {python}, levels 0-{plan.level} …")
    return smoke.run_python(python, plan, console=console)


def _engine(args: argparse.Namespace, gpus: GpuRequest, console: Console) -> SmokeReport:
    from envforge import pipeline, smoke
    from envforge.errors import EngineError

    plan = _plan(args, gpus)
    engine = pipeline.choose_engine(args.engine, console)
    if plan is None:
        image = engine.inspect(args.name).image
        plan = _plan_of_image(args, gpus, engine, image)
    else:
        found = _built(engine, plan)
        if found is None:
            raise EngineError(
                "not-built", f"{plan.name!r} is not built in this engine", hint=f"envforge build {args.name}"
            )
        image = found
    console.note(f"smoke: {image}, levels 0-{plan.level} …")
    return smoke.run_in_engine(engine, image, plan, console=console)


def _built(engine: Engine, plan: SmokePlan) -> str | None:
    """The newest environment of this identity, tagged or not (an image that failed its tests has no tag)."""
    if not plan.inputs_digest:
        return None
    found = engine.find(plan.inputs_digest)
    if found is not None:
        return found.image
    same = [i for i in engine.images() if i.labels.get("envforge.inputs-digest") == plan.inputs_digest]
    return max(same, key=lambda item: item.created).image if same else None


def _plan_of_image(args: argparse.Namespace, gpus: GpuRequest, engine: Engine, image: str) -> SmokePlan:
    """A plan for an image of unknown making: the frameworks found in it."""
    from envforge import smoke
    from envforge.engine import RunRequest
    from envforge.errors import EngineError, NothingSelected

    answer = engine.run(
        image,
        RunRequest(argv=("python", "/envforge/smoke_tests/run.py", "--probe"), files=smoke.suite(), timeout=120),
    )
    found = smoke.parse(answer.stdout)[0]
    if not found:
        raise EngineError(
            "no-interpreter",
            f"{args.name} has no `python` that answers",
            context=tuple((answer.stdout + answer.stderr).splitlines()[-10:]),
        )
    level = args.level if args.level is not None else smoke.DEFAULT_LEVEL
    plan = smoke.make_plan(None, None, level=level, gpus=gpus, found=found[-1], name=args.name)
    if not plan.frameworks:
        raise NothingSelected("no-framework", f"{args.name} holds none of the known frameworks")
    from dataclasses import replace

    return replace(plan, scope="image", timeout=args.timeout or plan.timeout)


_MARKS = {
    "passed": ("ok", "green"),
    "failed": ("FAILED", "red"),
    "error": ("ERROR", "red"),
    "unavailable": ("–", "yellow"),
    "not_run": ("not run", "dim"),
}


def _print(document: dict[str, Any], console: Console) -> None:
    for check in document["checks"]:
        mark, color = _MARKS[check["outcome"]]
        label = f"{check['framework']} {check['name']}".strip()
        line = f"  {check['level']}  {label:<44}{mark:<9}{check['seconds']:7.2f} s"
        if check["detail"] and (check["outcome"] != "passed" or console.verbosity >= 1):
            line += f"  {check['detail']}"
        console.result(console.style(line, color) if check["outcome"] != "passed" else line)
    counts: dict[str, int] = {}
    for check in document["checks"]:
        counts[check["outcome"]] = counts.get(check["outcome"], 0) + 1
    said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    console.result(f"{document['name']}: {document['status']} — {said}")
    if document["status"] == "passed" and not document["gpu_tested"]:
        console.result("not tested on a GPU")
    if document["interrupted"]:
        console.result(document["interrupted"])
    console.result(f"record: {document['record']}")
