"""``envforge import``: a file people already have becomes a spec; each line is accounted for and judged."""

from __future__ import annotations

import argparse
from pathlib import Path

from envforge.console import Console
from envforge.errors import EXIT_OK, SpecError, UsageError
from envforge.importers import FORMATS

EXAMPLE = "envforge import requirements.txt -o envs/mylab.yaml"

_STYLE = {"kept": "green", "changed": "yellow", "ignored": "dim", "not-understood": "red"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to read and where to write."""
    parser.add_argument("file", metavar="FILE", help="requirements.txt, environment.yml, Dockerfile, a lock …")
    parser.add_argument("--format", choices=tuple(FORMATS), help="when the name of the file does not tell")
    parser.add_argument("--name", help="name of the spec (default: from the file or its folder)")
    parser.add_argument("--platform", choices=("linux/amd64", "linux/arm64"), default="linux/amd64")
    parser.add_argument("--strict", action="store_true", help="refuse what pip would refuse, with line and column")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the spec there (default: show it)")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def write(path: Path, text: str, *, force: bool) -> None:
    """Write a new file. Raises UsageError ``file-exists`` unless ``force``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError("file-exists", f"{path} exists", hint="give another name, or --force") from None


def _inside(folder: Path, name: str) -> str | None:
    """The text of a file below the folder of the imported one or beside it; None when it cannot be read."""
    path = folder / name
    try:
        if not path.resolve().is_relative_to(folder.resolve().parent) or path.stat().st_size > 4_000_000:
            return None
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return None


def run(args: argparse.Namespace, console: Console) -> int:
    """Exit 3 only when nothing can be read."""
    from envforge import compat, importers
    from envforge.commands.check import show
    from envforge.importers.finish import name_of
    from envforge.spec_text import dumps
    from envforge.verdict import judge, request_from_spec

    path = Path(args.file)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecError("import-unreadable", f"{path}: {error.strerror or error}", hint="is the path right?") from None
    generic = path.stem.lower() in ("requirements", "environment", "dockerfile", "pyproject", "cog", "uv", "poetry")
    # A spec is found by its file name, so the file it is written to names it.
    written = Path(args.output).stem if args.output else None
    name = args.name or written or (path.resolve().parent.name if generic and path.resolve().parent.name else path.stem)
    found = importers.read(
        data,
        place=args.file,
        reader=lambda wanted: _inside(path.parent, wanted),
        form=args.format,
        name=name_of(name),
        strict=args.strict,
        platform=args.platform,
    )
    header = (f"Imported from {path.name} ({found.format}).", *(f"{n.severity}: {n.message}" for n in found.notes))
    text = dumps(found.spec, header=header, why=found.why)
    if args.output:
        write(Path(args.output), text, force=args.force)
    verdict = judge(request_from_spec(found.spec), compat.load())
    console.document(
        {
            "schema": 1,
            "path": args.output,
            "format": found.format,
            "spec": text,
            "verdict": verdict.document(),
            "lines": [line.document() for line in found.lines],
            "notes": [note.document() for note in found.notes],
            "counts": found.counts,
        }
    )
    if console.json_mode:
        return EXIT_OK
    for line in found.lines:
        where = f"{line.file}:{line.number}" if line.file else str(line.number)
        shown = console.style(f"{line.fate:<14}", _STYLE[line.fate])
        console.result(f"{shown} {where:>4}  {line.text}" + (f"  ({line.why})" if line.why else ""))
    console.result(", ".join(f"{number} {what}" for what, number in found.counts.items()))
    for note in found.notes:
        console.result(f"  {'!' if note.severity == 'warning' else '·'} {note.message}")
        if note.hint:
            console.result(f"    {console.style('→ ' + note.hint, 'dim')}")
    if args.output:
        console.result(f"written to {args.output}")
    else:
        console.result()
        console.result(text)
    show(verdict, console)
    return EXIT_OK
