"""``envforge show``: one spec fully expanded, each choice with its reason."""

from __future__ import annotations

import argparse
from typing import Any

from envforge.commands._common import add_spec_arguments, spec_from
from envforge.console import Console
from envforge.errors import EXIT_OK
from envforge.resolve import Resolution

EXAMPLE = "envforge show torch-cu124"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)


def document(found: Resolution, variants: tuple[str, ...]) -> dict[str, Any]:
    """The JSON form (schema 1)."""
    cuda = found.cuda
    return {
        "schema": 1,
        "name": found.name,
        "description": found.description,
        "kind": found.kind,
        "verdict": found.verdict,
        "python": found.python,
        "platform": found.platform,
        "base": {
            "image": found.base.image,
            "digest": found.base.digest,
            "system": found.base.system,
            "glibc": found.base.glibc,
            "python_from": found.base.python_from,
        },
        "cuda": None
        if cuda is None
        else {
            "version": cuda.version,
            "from": cuda.source,
            "toolchain": cuda.toolchain,
            "compat": cuda.compat,
            "cudnn": cuda.cudnn,
        },
        "frameworks": [
            {
                "name": item.name,
                "distribution": item.distribution,
                "version": item.version,
                "accelerator": item.accelerator,
                "cuda": item.cuda,
                "index": item.index,
            }
            for item in found.frameworks
        ],
        "packages": {
            "pip": [{"requirement": r.text, "index": r.index, "why": r.why} for r in found.requirements],
            "constraints": [{"requirement": r.text, "index": r.index, "why": r.why} for r in found.constraints],
            "apt": list(found.apt),
            "conda": list(found.conda),
        },
        "indexes": dict(found.indexes),
        "env": dict(found.env),
        "user": {"name": found.user.name, "uid": found.user.uid, "gid": found.user.gid},
        "workdir": found.workdir,
        "files": [{"source": f.source, "target": f.target, "install": f.install} for f in found.files],
        "hooks": [{"name": h.name, "command": list(h.command), "after": h.after} for h in found.hooks],
        "smoke": {
            "level": found.smoke.level,
            "timeout": found.smoke.timeout,
            "without": dict(found.smoke.without),
        },
        "variants": list(variants),
        "reasons": [{"field": r.field, "value": r.value, "why": r.why} for r in found.reasons],
    }


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import compat
    from envforge.resolve import resolve

    spec = spec_from(args)
    found = resolve(spec, compat.load())
    console.document(document(found, spec.variants))
    if not console.json_mode:
        _print(found, spec.variants, console)
    return EXIT_OK


def _print(found: Resolution, variants: tuple[str, ...], console: Console) -> None:
    console.result(console.style(found.name, "bold") + (f"  {found.description}" if found.description else ""))
    console.result(f"  verdict: {found.verdict}   platform: {found.platform}")
    if variants:
        console.result("  variants: " + ", ".join(f"@{name}" for name in variants))
    width = max((len(reason.field) for reason in found.reasons), default=0)
    for reason in found.reasons:
        console.result(f"  {reason.field.ljust(width)}  {reason.value}")
        console.result(" " * (width + 4) + console.style(f"{reason.why}", "dim"))
    told = {reason.value for reason in found.reasons}
    console.result("  packages")
    for item in (*found.requirements, *found.constraints):
        mark = "" if item in found.requirements else "  (bound only)"
        console.result(f"    {item.text}{mark}" + (f"  from {item.index}" if item.index != "default" else ""))
        if item.text not in told:
            console.result("      " + console.style(item.why, "dim"))
    for package in found.apt:
        console.result(f"    {package}  (apt)")
    owner = f"{found.user.name} ({found.user.uid}:{found.user.gid})"
    console.result(f"  user: {owner}   workdir: {found.workdir}   smoke level: {found.smoke.level}")
