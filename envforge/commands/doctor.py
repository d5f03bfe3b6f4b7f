"""`envforge doctor`: what this host is, what is wrong with it, and how to repair it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envforge.console import Console
from envforge.errors import EXIT_ENGINE, EXIT_OK, EngineError

if TYPE_CHECKING:
    from envforge.doctor import Finding
    from envforge.hostfacts import GpuTest, HostFacts

EXAMPLE = "envforge doctor --gpu-test"
_MARKS = {"ok": ("✓", "green"), "info": ("·", "dim"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu-test", action="store_true", help="start a tiny container with the GPU and look inside")
    parser.add_argument("--gpus", default="all", help="what --gpu-test asks for (default: all)")
    parser.add_argument("--python", metavar="PATH", help="look into this interpreter too: framework, CUDA, libraries")
    parser.add_argument("--fix", action="store_true", help="print the commands that would repair it; nothing is run")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import compat, doctor, host

    facts = host.probe(python=args.python)
    if args.gpu_test:
        facts = replace(facts, gpu_tests=gpu_tests(args.gpus))
    known = compat.load()
    rows = [known.driver_floors(series) for series in known.cuda_series()]
    found = doctor.judge(facts, [row for row in rows if row is not None])
    console.document(document(facts, found))
    _print(found, console)
    if args.fix:
        _print_commands(found, console)
    return EXIT_ENGINE if any(finding.severity == "error" for finding in found) else EXIT_OK


def gpu_tests(gpus: str) -> tuple[GpuTest, ...]:
    """Every form tried with a tiny container, with what came of it."""
    from envforge import passthrough
    from envforge.hostfacts import GpuTest

    request = passthrough.parse_gpus(gpus)
    try:
        from envforge.docker_engine import DockerEngine

        choice = DockerEngine.connect().gpu_choice(request)
    except (EngineError, ImportError) as error:
        return (GpuTest(form="none", error=str(error)),)
    return tuple(
        GpuTest(form=form, error=outcome.error, delivered=outcome.seen if outcome.delivered else ())
        for form, outcome in choice.tried
    )


def document(facts: HostFacts, found: tuple[Finding, ...]) -> dict[str, Any]:
    """The JSON form: findings, and the main facts they rest on."""
    from envforge.doctor import driver_version

    return {
        "schema": 1,
        "findings": [finding.document() for finding in found],
        "driver": {
            "version": driver_version(facts),
            "cuda": facts.nvml.cuda,
            "nvml": facts.nvml.status,
            "nvml_code": facts.nvml.code,
            "module": facts.driver.module_version,
        },
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.name,
                "capability": gpu.capability,
                "memory_bytes": gpu.memory_bytes,
                "mig": gpu.mig,
                "mig_instances": list(gpu.mig_instances),
                "error": gpu.error,
            }
            for gpu in facts.nvml.gpus
        ],
        "engine": {
            "reachable": facts.engine.reachable,
            "address": facts.engine.address,
            "flavour": facts.engine.flavour,
            "version": facts.engine.version,
            "rootless": facts.engine.rootless,
            "runtimes": list(facts.engine.runtimes),
        },
        "host": {
            "system": facts.distribution or facts.system,
            "machine": facts.machine,
            "kernel": facts.kernel,
            "wsl": facts.wsl,
            "in_container": facts.in_container,
            "python": facts.python,
        },
        "gpu_tests": [
            {"form": test.form, "error": test.error, "delivered": list(test.delivered)} for test in facts.gpu_tests
        ],
    }


def _print(found: tuple[Finding, ...], console: Console) -> None:
    area = ""
    for finding in found:
        if finding.area != area:
            area = finding.area
            console.result(console.style(area, "bold"))
        mark, color = _MARKS[finding.severity]
        console.result(f"  {console.style(mark, color)} {finding.message}")
        console.result(f"      {console.style(finding.evidence, 'dim')}")
        if finding.hint and finding.severity in ("warning", "error"):
            console.result(f"      fix: {finding.hint}")
    worst = [finding for finding in found if finding.severity == "error"]
    if worst:
        console.result(f"\nfirst to repair: {worst[0].message} [{worst[0].reference}]")


def _print_commands(found: tuple[Finding, ...], console: Console) -> None:
    rows = [finding for finding in found if finding.commands and finding.severity in ("warning", "error")]
    console.result("\n# commands that would repair it; read them first" if rows else "\n# nothing to repair")
    for finding in rows:
        console.result(f"# {finding.reference}: {finding.message}")
        for line in finding.commands:
            console.result(line)
