"""``envforge check``: will it work, on which driver and GPU, and why not."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

from envforge.commands._common import add_spec_arguments
from envforge.compat import Tables, load
from envforge.console import Console
from envforge.errors import EXIT_CONFLICT, EXIT_OK, UsageError
from envforge.judging.frameworks import index_cuda, label_cuda
from envforge.verdict import FrameworkRequest, Request, Verdict, judge, request_from_spec
from envforge.versions import key, split_local

EXAMPLE = "envforge check torch-cu118 --driver 535.104.05 --gpu A100"

_STYLE = {"ok": "green", "ok-with-limits": "yellow", "unverified": "yellow", "conflict": "red"}
_MARK = {"conflict": "✗", "unverified": "?", "limit": "!", "warning": "!", "info": "·"}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    parser.add_argument(
        "--package", action="append", default=[], metavar="SPEC", help="a further package; repeatable"
    )
    parser.add_argument("--platform", choices=("linux/amd64", "linux/arm64"), help="platform of the image")
    target = parser.add_argument_group("where it must run")
    target.add_argument("--driver", metavar="VERSION", help="NVIDIA driver, e.g. 535.104.05")
    target.add_argument(
        "--gpu", action="append", default=[], metavar="MODEL", help="A100, sm_90 …; repeatable"
    )
    target.add_argument("--fleet", metavar="FILE", help="a file of hosts: one verdict per host")
    target.add_argument("--host", action="store_true", help="take driver and GPUs of this machine")


def request_from_flags(args: argparse.Namespace, tables: Tables) -> Request:
    """The request that ``--framework … --cuda … --python …`` amounts to. Raises UsageError for a malformed flag.

    A driver or GPU without ``--cuda`` asks for the CUDA build that a plain install gives; without ``--python`` the
    newest Python up to 3.11 that the frameworks have wheels for is taken.
    """
    if args.cudnn is not None and args.cuda is None:
        raise UsageError("usage", "--cudnn needs --cuda", hint="--cuda 11.8 --cudnn 8.7")
    cuda = None if args.cuda in (None, "none") else args.cuda
    if cuda is not None and not re.fullmatch(r"\d+(\.\d+){0,2}", cuda):
        raise UsageError("usage", f"--cuda {cuda!r} is not a CUDA version", hint="write it like 12.4")
    asked = tuple(_framework(text) for text in args.framework)
    names = [tables.framework_name(item.name)[0] or item.name for item in asked]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                "usage", f"--framework {name} stands twice", hint="one version of a framework per environment"
            )
    wants_gpu = bool(args.gpu or args.driver or args.fleet or args.host)
    if wants_gpu and args.cuda is None:
        asked = tuple(_on_gpu(item, tables) for item in asked)
    return Request(
        name="-".join(item.name + (split_local(item.version)[0] if item.version else "") for item in asked),
        python=args.python or _python(asked, tables),
        platform=args.platform or "linux/amd64",
        base=_base(args.base),
        cuda=cuda,
        cudnn=args.cudnn,
        frameworks=asked,
        packages=tuple(args.package),
    )


def _base(text: str | None) -> str:
    if text is None:
        return "auto"
    system = re.fullmatch(r"(ubuntu|debian)-?:?(\d+(?:\.\d+)?)", text.strip().lower())
    return f"{system[1]}:{system[2]}" if system else text.strip()


def _framework(text: str) -> FrameworkRequest:
    match = re.fullmatch(r"\s*([A-Za-z0-9_-]+)\s*(?:\[([^\]]*)\])?\s*(?:={1,2}\s*(\S+))?\s*", text)
    if match is None:
        raise UsageError("usage", f"--framework {text!r}: write NAME or NAME=VERSION", hint="--framework torch=2.6.0")
    extras = tuple(part.strip() for part in (match[2] or "").split(",") if part.strip())
    return FrameworkRequest(name=match[1].lower(), version=match[3], extras=extras)


def _on_gpu(item: FrameworkRequest, tables: Tables) -> FrameworkRequest:
    name, implied = tables.framework_name(item.name)
    if name is None or implied == "cpu" or item.extras or name == "keras":
        return item
    label = split_local(item.version)[1] if item.version else None
    if label == "cpu" or label_cuda(label) or index_cuda(item.index):
        return item
    return replace(item, accelerator="cuda")


def _python(asked: tuple[FrameworkRequest, ...], tables: Tables) -> str:
    """3.11 when every framework has a wheel for it, else the newest older or oldest newer one that suits all."""
    sets = []
    for item in asked:
        name, _ = tables.framework_name(item.name)
        row = tables.release(name, item.version) if name and item.version else None
        if row is not None:
            sets.append(set(row.python))
    common = set.intersection(*sets) if sets else {"3.11"}
    if not common or "3.11" in common:
        return "3.11"
    older = [text for text in common if key(text) < key("3.11")]
    return max(older, key=key) if older else min(common, key=key)


def _requested(args: argparse.Namespace, tables: Tables) -> Request:
    flags = [f"--{name}" for name in ("cuda", "python", "cudnn", "base") if getattr(args, name) is not None]
    if args.name:
        if args.framework or flags:
            given = "--framework" if args.framework else flags[0]
            raise UsageError("usage", f"NAME and {given} exclude each other", hint="flags describe a whole environment")
        from envforge import spec

        request = request_from_spec(spec.load(args.name))
        if args.package:
            request = replace(request, packages=(*request.packages, *args.package))
        return replace(request, platform=args.platform) if args.platform else request
    if not args.framework and not args.package:
        raise UsageError("usage", "name a spec, or give --framework NAME=VERSION", hint="see: envforge list")
    return request_from_flags(args, tables)


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge.new import first_release

    tables = load()
    request = _requested(args, tables)
    if args.driver:
        if not re.fullmatch(r"[0-9]{3}(\.[0-9]+){0,3}", args.driver):
            raise UsageError(
                "driver-version",
                f"--driver {args.driver!r} is no driver version",
                hint="nvidia-smi shows it, for example 535.104.05; a branch such as 535 is read as its first release",
            )
        request = replace(request, driver=first_release(args.driver, tables))
    if any(not gpu.strip() for gpu in args.gpu or ()):
        raise UsageError("empty-gpu", "--gpu names no GPU", hint="give a model or sm_XX, e.g. --gpu A100")
    if args.gpu:
        request = replace(request, gpus=tuple(args.gpu))
    if args.host:
        request = _this_host(request, console)
    if args.fleet:
        return _fleet(request, args.fleet, tables, console)
    found = judge(request, tables)
    if args.name and not args.driver and found.works:
        found = _newest_driver(args.name, request, found, tables)
    console.document(found.document())
    if not console.json_mode:
        show(found, console)
    return EXIT_CONFLICT if found.verdict == "conflict" else EXIT_OK


def _newest_driver(name: str, request: Request, found: Verdict, tables: Tables) -> Verdict:
    """A spec may name several drivers: the oldest was judged; the newest may have dropped one of its GPUs."""
    from envforge import spec

    drivers = spec.load(name).targets.drivers
    if len(drivers) < 2 or not request.gpus:
        return found
    other = judge(replace(request, driver=max(drivers, key=key)), tables)
    return found if other.works else other


def _this_host(request: Request, console: Console) -> Request:
    """Driver and GPUs of this machine; what the command line already says stays."""
    from envforge import host

    facts = host.probe(engine=False)
    driver = facts.nvml.driver or facts.driver.module_version or None
    gpus = tuple(gpu.name for gpu in facts.nvml.gpus)
    if driver is None and not gpus:
        console.warn("no NVIDIA driver was found on this machine")
    return replace(request, driver=request.driver or driver, gpus=request.gpus or gpus)


def _fleet(request: Request, path: str, tables: Tables, console: Console) -> int:
    from importlib import import_module
    from pathlib import Path

    answer: dict[str, Any] = import_module("envforge.fleet").check(request, Path(path), tables)
    console.document(answer)
    for host in answer["hosts"]:
        mark = console.style(f"{host['verdict']:<15}", _STYLE.get(host["verdict"], "bold"))
        console.result(f"{mark} {host['name']}")
    return EXIT_CONFLICT if answer["verdict"] == "conflict" else EXIT_OK


def show(found: Verdict, console: Console) -> None:
    """The human form: verdict, driver, GPUs, causes, what would work."""
    style = _STYLE[found.verdict]
    parts = [f"{item.name} {item.version}" + (f"+{item.label}" if item.label else "") for item in found.chosen]
    cuda = f"CUDA {found.cuda}" if found.cuda else "CPU"
    console.result(
        f"{console.style(found.verdict, style, 'bold')}  {found.request.name}: "
        f"{', '.join(parts) or 'no framework'} · {cuda} · Python {found.request.python}"
    )
    _hardware(found, console)
    for item in found.findings:
        quiet = item.reference == "no-nvcc" or found.verdict == "conflict"
        if item.severity == "info" and console.verbosity < 1 and quiet:
            continue
        tone = {"conflict": "red", "unverified": "yellow", "limit": "yellow"}.get(item.severity, "dim")
        console.result(f"  {console.style(_MARK[item.severity], tone)} {item.message}")
        if item.hint:
            console.result(f"    {console.style('→ ' + item.hint, 'dim')}")
    if found.nearest:
        console.result("  nearest that works:")
        for near in found.nearest:
            console.result(f"    {console.style('✓', 'green')} {' + '.join(near.changes)}  ({near.verdict})")
    elif found.verdict == "conflict":
        console.result("  no small change makes it work")


def _hardware(found: Verdict, console: Console) -> None:
    driver = found.driver
    if driver["floor"] is not None:
        floors = f"{driver['floor']} or newer"
        if driver["minor_version_floor"] != driver["floor"]:
            floors += f" ({driver['minor_version_floor']} in minor-version compatibility)"
        answer = f"{driver['given']}: {driver['answer']}; needs " if driver["given"] else "needs "
        console.result(f"  driver  {answer}{floors}")
    for gpu in found.gpus:
        text = f" ({gpu['capability']})" if gpu["capability"] else ""
        console.result(f"  gpu     {gpu['model']}{text}: {gpu['answer']}")
