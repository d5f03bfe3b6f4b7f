"""`envforge matrix plan|run|report|emit FILE`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from envforge.console import Console
from envforge.errors import EXIT_OK, EXIT_SMOKE, SpecError, UsageError

EXAMPLE = "envforge matrix run docs/examples/matrix.yaml --jobs 2"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["plan", "run", "report", "emit"], help="what to do with the matrix")
    parser.add_argument("target", help="the matrix file; for emit: github or gitlab, then the file")
    parser.add_argument("file", nargs="?", help="the matrix file (emit only)")
    parser.add_argument("--select", action="append", default=[], metavar="PATTERN", help="cells or builds; repeatable")
    parser.add_argument("--changed", action="store_true", help="plan: what would be rebuilt and retested, and why")
    group = parser.add_argument_group("run")
    group.add_argument("--jobs", type=int, default=0, metavar="N", help="cells at once (default: cores and memory)")
    group.add_argument("--fail-fast", action="store_true", help="start nothing more after the first failure")
    group.add_argument("--fresh", action="store_true", help="do not reuse earlier results")
    group.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of this Dask scheduler")
    group.add_argument(
        "--cluster", choices=["slurm", "pbs", "lsf", "ssh"], help="start workers there (the matrix file's `cluster`)"
    )
    group.add_argument("--cell-timeout", type=float, default=3600.0, metavar="SECONDS", help="limit for one cell")
    group = parser.add_argument_group("report")
    group.add_argument("--html", type=Path, metavar="F", help="one self-contained page")
    group.add_argument("--markdown", type=Path, metavar="F")
    group.add_argument("--junit", type=Path, metavar="F")
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="emit: write here instead of stdout")


def load_plan(path: Path, select: list[str]) -> Any:
    """The plan of a matrix file with the real tables; SpecError when the file cannot be read."""
    from envforge import compat, matrix, spec, verdict

    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecError(
            "matrix-unreadable", f"{path}: {error.strerror}", hint="an example: docs/examples/matrix.yaml"
        ) from error
    tables = compat.load()
    return matrix.plan(
        matrix.loads(text, source=str(path)),
        judge=partial(_judge, tables=tables),
        request_of=verdict.request_from_spec,
        load_spec=partial(spec.load, cwd=path.resolve().parent),
        digest_of=partial(_digest, tables=tables),
        select=select,
    )


def _judge(request: Any, *, tables: Any) -> Any:
    from envforge import verdict

    return verdict.judge(request, tables)


def _digest(spec: Any, *, tables: Any) -> str | None:
    """The inputs digest of a spec's valid lock, else the digest of its resolution."""
    from envforge import lock as lockfile
    from envforge.errors import EnvforgeError
    from envforge.resolve import resolve

    try:
        resolution = resolve(spec, tables)
        found = lockfile.read(resolution.name)
        if found is not None and lockfile.status(found, resolution).verdict == "ok":
            return found.inputs_digest
        return lockfile.resolution_digest(resolution)
    except EnvforgeError:
        return None


def run(args: argparse.Namespace, console: Console) -> int:
    if args.action == "emit":
        return _emit(args, console)
    if args.file:
        raise UsageError("usage", f"matrix {args.action} takes one file", hint="see: envforge matrix --help")
    plan = load_plan(Path(args.target), args.select)
    if args.action == "plan":
        return _plan(args, plan, console)
    if args.action == "run":
        return _run(args, plan, console)
    return _report(args, plan, console)


def _plan(args: argparse.Namespace, plan: Any, console: Console) -> int:
    from envforge import matrix, matrix_changes

    document = matrix.plan_document(plan, estimate=matrix_changes.estimate(plan))
    if args.changed:
        document["changed"] = matrix_changes.changed(plan)
    console.document(document)
    for cell in plan.cells[:200]:
        mark = "○" if cell.status == "planned" else "⊘"
        line = f"{mark} {cell.id}" + (f"  {cell.reason}" if cell.reason else "")
        console.result(console.style(line, "dim") if cell.status == "removed" else line)
    if len(plan.cells) > 200:
        console.result(f"… {len(plan.cells) - 200} more (--json lists all)")
    merged = [build for build in plan.builds if build.merged_into]
    for build in merged[:50]:
        console.result(f"= {build.id} is the same image as {build.merged_into}")
    for row in document.get("changed", ()):
        console.result(f"{row['build']}: {row['action']} — {row['why']}")
    counts = document["counts"]
    estimate = document["estimate"]
    console.result(
        f"{counts['builds']} images, {counts.get('planned', 0)} cells, {counts.get('removed', 0)} removed, "
        f"{len(merged)} merged; about {estimate['download_bytes'] / 1e9:.1f} GB to download, "
        f"{estimate['disk_bytes'] / 1e9:.1f} GB on disk"
    )
    return EXIT_OK


def _run(args: argparse.Namespace, plan: Any, console: Console) -> int:
    from envforge import matrix_report, matrix_run

    options = matrix_run.RunOptions(
        jobs=args.jobs,
        fail_fast=args.fail_fast,
        fresh=args.fresh,
        scheduler=args.scheduler,
        timeout=args.cell_timeout,
    )
    broken_locks = _lock_missing(plan, console)
    if broken_locks is not None:
        plan = load_plan(Path(args.target), args.select)  # with locks, identities are known and equal ones merge
    with _executor(args, plan) as executor:
        document = matrix_run.run(plan, options, console=console, executor=executor, unlockable=broken_locks or {})
    _write(args, plan, document, console)
    console.document(document)
    broken = matrix_run.bad(document)
    for cell in broken:
        console.result(console.style(f"✗ {cell}", "red"))
    console.result(f"{plan.name}: {matrix_report.summary(document)}")
    return EXIT_SMOKE if broken else EXIT_OK


@contextmanager
def _executor(args: argparse.Namespace, plan: Any) -> Iterator[Any]:
    """Where cells run: None for this machine, else the workers of a scheduler or of a cluster started for the run."""
    if args.scheduler and args.cluster:
        raise UsageError("usage", "--scheduler and --cluster exclude each other", hint="give one of them")
    if not (args.scheduler or args.cluster):
        yield None
        return
    from envforge import matrix_cluster

    cluster = matrix_cluster.open_cluster(args.cluster, plan.cluster) if args.cluster else None
    try:
        executor = matrix_cluster.DaskExecutor(
            cluster.scheduler_address if cluster else args.scheduler, grace=plan.cluster.wait if cluster else 20.0
        )
        try:
            yield executor
        finally:
            executor.shutdown()
    finally:
        if cluster is not None:
            cluster.close()


def _lock_missing(plan: Any, console: Console) -> dict[str, str] | None:
    """Make the locks that planned builds lack, as `build` does; None when there was nothing to make.

    Returns the builds whose lock cannot be made, each with the reason: their cells are errors, the rest runs.
    """
    from envforge import compat
    from envforge import lock as lockfile
    from envforge.commands.lock import make_lock
    from envforge.errors import EnvforgeError
    from envforge.resolve import resolve

    tables = compat.load()
    made = False
    broken: dict[str, str] = {}
    for build in plan.builds:
        if build.status != "planned" or build.merged_into or lockfile.exists(build.spec.full_name):
            continue
        made = True
        console.note(f"locking {build.id} …")
        try:
            make_lock(resolve(build.spec, tables), console=console)
        except EnvforgeError as error:
            broken[build.id] = f"{error.reference}: {error.message}"
    return broken if made else None


def _write(args: argparse.Namespace, plan: Any, document: dict[str, Any], console: Console) -> None:
    from envforge import matrix_report, matrix_run, paths
    from envforge.resources import data

    if args.html:
        history = matrix_run.Results(matrix_run.state_folder(plan.name)).history()
        template = data("report.html").read_text(encoding="utf-8")
        paths.write_atomic(args.html, matrix_report.html(document, history, template).encode())
        console.note(f"wrote {args.html}")
    if args.markdown:
        paths.write_atomic(args.markdown, matrix_report.markdown(document).encode())
        console.note(f"wrote {args.markdown}")
    if args.junit:
        paths.write_atomic(args.junit, matrix_report.junit(document).encode())
        console.note(f"wrote {args.junit}")


def _report(args: argparse.Namespace, plan: Any, console: Console) -> int:
    from envforge import matrix_report, matrix_run

    results = matrix_run.Results(matrix_run.state_folder(plan.name))
    suite = matrix_run.suite_digest()
    builds = {build.id: build for build in plan.builds}
    rows: dict[str, dict[str, Any]] = {}
    for cell in plan.cells:
        if cell.status == "removed":
            rows[cell.id] = {"status": "removed", "reason": cell.reason}
            continue
        found = results.read(cell.id)
        key = matrix_run.result_key(builds[cell.build], plan.tests[cell.test], plan.level, suite)
        if found is None:
            rows[cell.id] = {"status": "not_run", "reason": "never run"}
        elif found.get("key") != key:
            rows[cell.id] = {"status": "not_run", "reason": "its inputs changed since it ran"}
        else:
            rows[cell.id] = found
    document = matrix_run.run_document(plan, rows)
    if not (args.html or args.markdown or args.junit or console.json_mode):
        console.result(matrix_report.markdown(document))
    _write(args, plan, document, console)
    console.document(document)
    return EXIT_OK


def _emit(args: argparse.Namespace, console: Console) -> int:
    from envforge import matrix_emit, paths

    if args.target not in ("github", "gitlab") or not args.file:
        raise UsageError("usage", "say where the workflow is for", hint="envforge matrix emit github FILE")
    path = Path(args.file)
    plan = load_plan(path, args.select)
    text = matrix_emit.emit(plan, args.target, matrix_file=path.as_posix())
    if args.output:
        paths.write_atomic(args.output, text.encode())
        console.note(f"wrote {args.output}")
    elif not console.json_mode:
        console.stdout.write(text)
    console.document({"schema": 1, "name": plan.name, "system": args.target, "text": text})
    return EXIT_OK
