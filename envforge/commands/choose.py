"""``envforge choose``: which framework, export route and spec for a task."""

from __future__ import annotations

import argparse
from dataclasses import replace

from envforge import choose as guide_module
from envforge.console import Console
from envforge.errors import EXIT_OK

EXAMPLE = "envforge choose --bottleneck inference-latency --target gpu-server --constraint onnx"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bottleneck", default="training-speed", metavar="WORD",
        help="training-speed (default), inference-latency, memory, debugging, deployment",
    )  # fmt: skip
    parser.add_argument(
        "--target", default="gpu-server", metavar="WORD", help="gpu-server (default), cpu-server, edge, apple, ascend"
    )
    parser.add_argument(
        "--constraint", action="append", default=[], metavar="WORD",
        help="python-free, onnx, keras-api, cuda11, custom-ops, dynamic-control-flow, tpu-later, maintained",
    )  # fmt: skip
    parser.add_argument("--framework", metavar="NAME", help="only routes of this framework")
    parser.add_argument("--driver", metavar="VERSION", help="the spec named must run on this NVIDIA driver")
    parser.add_argument("--gpu", action="append", default=[], metavar="MODEL", help="… and on this GPU; repeatable")


def run(args: argparse.Namespace, console: Console) -> int:
    """Exit 2 for an unknown word, 4 when nothing fits."""
    from envforge import spec
    from envforge.compat import load
    from envforge.verdict import judge, request_from_spec

    tables = load()

    def verdict(name: str) -> str:
        request = request_from_spec(spec.load(name))
        if args.target == "gpu-server":
            request = replace(request, driver=args.driver, gpus=tuple(args.gpu))
        return judge(request, tables).verdict

    framework = None
    if args.framework:
        framework = tables.framework_name(args.framework)[0] or args.framework
    found = guide_module.choose(
        guide_module.load(),
        bottleneck=args.bottleneck,
        target=args.target,
        constraints=tuple(dict.fromkeys(args.constraint)),
        framework=framework,
        judge=verdict,
    )
    rows = [item.document(args.target) for item in found]
    console.document(
        {
            "schema": guide_module.SCHEMA,
            "bottleneck": args.bottleneck,
            "target": args.target,
            "constraints": list(args.constraint),
            "choice": rows[0],
            "alternatives": rows[1:],
        }
    )
    best, *others = found
    console.result(
        f"{console.style(best.spec, 'bold', 'green')}: {best.route.framework}, {best.route.export} ({best.verdict})"
    )
    for text in best.why:
        console.result(f"  · {text}")
    for text in best.route.gains:
        console.result(f"  + {text}")
    for text in best.route.costs:
        console.result(f"  - {text}")
    if note := best.route.notes.get(args.target):
        console.result(f"  ! {note}")
    console.result(f"  next: envforge build {best.spec}")
    for item in others[:4]:
        console.result(f"or {item.spec}: {item.route.framework}, {item.route.export}; but {item.route.costs[0]}")
    return EXIT_OK
