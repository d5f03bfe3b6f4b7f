"""Writes the reference pages of docs/ from the code. ``--check`` changes nothing and exits 1 when a page differs.

docs/errors.md and docs/reference/{commands,spec,exit-codes,json,profiles,catalogue}.md
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from envforge import cli, errors, profiles, spec
from envforge.paths import write_atomic
from envforge.resources import data

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTE = "<!-- Made by tools/gen_docs.py from the code; do not edit. -->\n"

CLASSES: Mapping[str, type[errors.EnvforgeError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.EnvforgeError)
}
# References that are no literal first argument where they are raised: (reference, class), with the place.
BY_HAND: tuple[tuple[str, str], ...] = (
    ("interrupted", "Interrupted"),  # errors.Interrupted gives it itself
    ("lock-stale", "LockError"),  # lock.require: f"lock-{verdict}"
    ("lock-foreign", "LockError"),  # the same
    ("index-unreachable", "NetworkError"),  # lockers.pip_errors: chosen by what uv says
    ("index-error", "NetworkError"),
    ("index-timeout", "NetworkError"),
    ("index-certificate", "NetworkError"),
)
# Places whose first argument is a variable: what it can be is listed above, or is a reference raised elsewhere.
PASSED_ON = {
    "base.py": 1,  # repeats the registry's own error
    "lock.py": 1,
    "pip_errors.py": 1,
    "passthrough.py": 1,  # a key of CAUSES
    "resolve.py": 1,  # the reference of the first conflict
    "spec.py": 1,  # repeats the error of the extended spec
}
SEVERITIES = {"conflict", "unverified", "limit", "warning", "info"}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """Every module of the package."""
    for path in sorted((ROOT / "envforge").rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def literals(node: ast.expr) -> list[str] | None:
    """The texts a first argument can be: a literal, or a choice between literals; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        first, second = literals(node.body), literals(node.orelse)
        return first + second if first is not None and second is not None else None
    return None


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def raised(trees: Iterable[tuple[Path, ast.Module]]) -> tuple[dict[str, set[str]], dict[str, int]]:
    """(reference -> names of classes, file -> count of places whose reference is not a literal)."""
    found: dict[str, set[str]] = {}
    unclear: dict[str, int] = {}
    for path, tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or _called(node) not in CLASSES:
                continue
            if len(node.args) < 2:  # Interrupted, also publish's own class of that name
                continue
            texts = literals(node.args[0])
            if texts is None:
                unclear[path.name] = unclear.get(path.name, 0) + 1
            for text in texts or ():
                found.setdefault(text, set()).add(_called(node))
    return found, unclear


def error_references() -> dict[str, set[str]]:
    """Every error reference with the classes it is raised as."""
    from envforge.passthrough import CAUSES

    found, _ = raised(sources())
    for reference, name in (*BY_HAND, *((reference, "GpuUnavailable") for reference in CAUSES)):
        found.setdefault(reference, set()).add(name)
    return found


def finding_references() -> dict[str, set[str]]:
    """Every reference a finding of ``check`` can have, with its severities."""
    found: dict[str, set[str]] = {}
    for path, tree in sources():
        if path.parent.name != "judging" and path.name != "verdict.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) == "add" and len(node.args) >= 3:
                severities = literals(node.args[0]) or []
                for text in literals(node.args[1]) or ():
                    found.setdefault(text, set()).update(set(severities) & SEVERITIES)
    return found


def paragraphs() -> dict[str, dict[str, str]]:
    """envforge/data/errors.yaml: ``errors`` and ``findings``."""
    document: dict[str, dict[str, str]] = yaml.safe_load(data("errors.yaml").read_text(encoding="utf-8"))
    return document


# ---------------------------------------------------------------------------------------------------- pages


def errors_page() -> str:
    """docs/errors.md"""
    texts = paragraphs()
    lines = [
        NOTE,
        "# Errors",
        "",
        "An error has a reference, a message, a next step and an exit code. With `--json` it is printed as",
        "`{schema, error: {reference, message, hint, exit_code}}`. The exit codes are listed in",
        "[Exit codes](reference/exit-codes.md).",
        "",
    ]
    for reference, classes in sorted(error_references().items()):
        codes = sorted({CLASSES[name].exit_code for name in classes})
        kinds = ", ".join(f"`{name}`" for name in sorted(classes))
        words = f"{kinds}, exit code {' or '.join(map(str, codes))}"
        lines += [f"### {reference}", "", f"*{words}.* {texts['errors'].get(reference, '')}", ""]
    lines += [
        "## Findings of `check`",
        "",
        "`envforge check` answers with findings. A *conflict* ends with exit code 4, and `lock`, `render` and `build`",
        "stop with it too. All others let the work go on.",
        "",
        "| reference | severity | meaning |",
        "| --- | --- | --- |",
    ]
    for reference, severities in sorted(finding_references().items()):
        lines.append(f"| `{reference}` | {', '.join(sorted(severities))} | {texts['findings'].get(reference, '')} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield f"| `{name}` | {_cell(_choice_help(action, name))} |"
                yield from (f"| `{name}` {row[2:]}" for row in _options(child))
            continue
        if action.dest in ("help", "json", "quiet", "verbose") or action.help == argparse.SUPPRESS:
            continue
        shown = action.metavar or (
            action.dest.upper() if not action.choices else "{" + ",".join(map(str, action.choices)) + "}"
        )
        if isinstance(shown, tuple):
            shown = " ".join(shown)
        if action.option_strings:
            value = "" if action.nargs == 0 else f" {shown}"
            word = f"{', '.join(action.option_strings)}{value}"
        else:
            word = shown
        yield f"| `{_cell(word)}` | {_cell((action.help or '').replace('%%', '%'))} |"


def _choice_help(action: Any, name: str) -> str:
    return next((one.help or "" for one in action._choices_actions if one.dest == name), "")


def commands_page() -> str:
    """docs/reference/commands.md"""
    lines = [
        NOTE,
        "# Commands",
        "",
        "Every command also takes `--json` (one document on stdout, logs on stderr), `-q`/`--quiet`,",
        "`-v`/`--verbose` and `--help`. A NAME is a catalogue name, the path of a spec, or a name found in `./envs/`,",
        "each also with `@variant`.",
        "",
    ]
    for name, (module, text) in cli.available().items():
        from importlib import import_module

        example = import_module(f"envforge.commands.{module}").EXAMPLE
        lines += [f"## {name}", "", text[0].upper() + text[1:] + ".", "", "```bash", *example.split("; "), "```", ""]
        rows = list(_options(cli.build_parser(name)))
        if rows:
            lines += ["| argument | meaning |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def _type(node: Mapping[str, Any]) -> str:
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in node:
        return " \\| ".join(f"`{value}`" for value in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    if "anyOf" in node:
        return " or ".join(_type(part) for part in node["anyOf"])
    kind = str(node.get("type", "any"))
    if kind == "array":
        return f"list of {_type(node.get('items', {}))}"
    if kind == "object" and isinstance(node.get("additionalProperties"), Mapping):
        return f"mapping to {_type(node['additionalProperties'])}"
    return kind


# What the fields of a spec mean, where their name does not say it.
MEANINGS: Mapping[str, str] = {
    "schema": "version of this format",
    "name": "small letters, digits, dots and dashes; also names the lock folder and the image",
    "description": "one line for `list` and the image",
    "kind": "`base`: made to be extended, may hold no framework",
    "extends": "another spec whose fields are the start: lists are joined, `!replace` starts anew, null removes",
    "python": "Python of the environment",
    "platform": "what the image is for",
    "base": "base image",
    "cuda": "CUDA the frameworks are built for; left out: CPU",
    "frameworks": "one or several",
    "packages": "further packages",
    "channels": "conda channels, the first one wins",
    "indexes": "package indexes besides the default one, by label",
    "mirrors": "another address for an index, channel or registry",
    "env": "variables of the image",
    "user": "who runs in the image",
    "workdir": "where commands start",
    "files": "own code",
    "hooks": "own build steps, part of the identity",
    "targets": "machines it must run on; checked before each build",
    "smoke": "tests that earn the tag",
    "budget": "limits; exceeding them is exit code 12",
    "apt": "how Debian packages are installed",
    "allow_untested": "let through what the tables do not know",
    "variants": "changes chosen by NAME@variant",
    "FrameworkSpec.version": "exact, perhaps with a label such as +cu118; left out: the newest known",
    "FrameworkSpec.index": "label of `indexes`, or a known one such as pytorch-cu118",
    "FrameworkSpec.accelerator": "`auto`: cuda when the spec has `cuda`",
    "BaseSpec.image": "reference with a tag, or `auto`",
    "BaseSpec.digest": "pins it by hand",
    "CudaSpec.from": "who brings the libraries",
    "CudaSpec.toolchain": "`nvcc`: the compiler; `full`: the whole toolkit",
    "CudaSpec.compat": "add NVIDIA's compatibility package for older drivers (data-centre GPUs)",
    "HookSpec.command": "a list of words, never a shell line",
    "HookSpec.after": "the step it follows",
    "SmokeSpec.level": "highest level",
    "SmokeSpec.timeout": "seconds for one check",
    "SmokeSpec.without": "checks left out, each with its reason",
    "IndexSpec.packages": "patterns of the packages that come from it, and from nowhere else",
    "IndexSpec.find_links": "the address is a flat page of files",
}


def _meaning(owner: str, name: str, node: Mapping[str, Any]) -> str:
    return _cell(MEANINGS.get(f"{owner}.{name}" if owner else name, str(node.get("description", ""))))


def _fields(node: Mapping[str, Any], owner: str = "") -> list[str]:
    required = set(node.get("required", ()))
    rows = ["| field | type | default | |", "| --- | --- | --- | --- |"]
    for name, value in node.get("properties", {}).items():
        default = "required" if name in required else f"`{json.dumps(value['default'])}`" if "default" in value else ""
        rows.append(f"| `{name}` | {_type(value)} | {default} | {_meaning(owner, name, value)} |")
    return [*rows, ""]


def spec_page() -> str:
    """docs/reference/spec.md, from the JSON Schema that is made from the records."""
    schema = spec.schema()
    lines = [
        NOTE,
        "# Spec",
        "",
        "A spec is a YAML file with `schema: 1`. Unknown and duplicate keys are refused, versions are quoted strings,",
        "and all mistakes are reported at once. Editors can use the JSON Schema in `envforge/data/spec.schema.json`.",
        "",
        str(schema.get("description", "")),
        "",
        *_fields(schema),
    ]
    for name, node in sorted(schema.get("$defs", {}).items()):
        lines += [f"## {name}", "", str(node.get("description", "")), ""]
        if "properties" in node:
            lines += _fields(node, name)
        else:
            lines += [_type(node), ""]
    return "\n".join(lines)


def exit_codes_page() -> str:
    """docs/reference/exit-codes.md"""
    lines = [
        NOTE,
        "# Exit codes",
        "",
        "| code | class | meaning |",
        "| --- | --- | --- |",
        "| 0 | | it worked; `check` also with limits and for what is unverified |",
        "| 1 | `EnvforgeError` | a fault of envforge itself |",
    ]
    seen = {errors.EXIT_BUG}
    for name, found in sorted(CLASSES.items(), key=lambda pair: pair[1].exit_code):
        if found.exit_code not in seen or name == "GpuUnavailable":
            text = (found.__doc__ or "").strip().splitlines()[0]
            lines.append(f"| {found.exit_code} | `{name}` | {text} |")
        seen.add(found.exit_code)
    return "\n".join(lines) + "\n"


# The keys that a document has at least: a contract. tests/unit/test_docs.py compares real outputs with it.
JSON_KEYS: Mapping[str, tuple[str, ...]] = {
    "list": ("entries",),
    "show": ("name", "verdict", "python", "cuda", "frameworks", "base", "packages", "reasons"),
    "choose": ("choice", "alternatives"),
    "check": ("name", "verdict", "python", "cuda", "frameworks", "driver", "gpus", "findings", "nearest"),
    "fleet plan": ("images", "machines", "wishes"),
    "lock --check": ("name", "status", "changes", "inputs_digest"),
    "render": ("name", "folder", "form", "locked", "inputs_digest", "base", "image", "files"),
    "build, smoke": ("name", "engine", "image", "inputs_digest", "status", "checks", "record"),
    "doctor": ("findings", "driver", "gpus", "engine"),
    "diagnose": ("matches",),
    "matrix plan, matrix run": ("cells", "counts"),
    "verify": ("status", "differences"),
    "vendor": ("name", "folder", "inputs_digest", "files", "bytes"),
    "export": ("name", "format", "file", "usual_name", "inputs_digest", "content"),
    "base list": ("bases", "made", "registries"),
    "clean": ("items", "removed", "total_bytes"),
}
JSON_PARTS = """
| where | keys of one part |
| --- | --- |
| `list`: `entries` | `name`, `frameworks`, `cuda`, `python`, `locked` |
| `check`: `driver` | `floor`, `minor_version_floor`, `answer` |
| `check`: `gpus` | `model`, `capability`, `answer` |
| `check`: `findings` | `reference`, `severity`, `message`, `hint` |
| `check`: `nearest` | `changes`, `verdict` |
| `build`, `smoke`: `checks` | `name`, `level`, `outcome`, `seconds`, `detail` |
| `doctor`: `findings` | `area`, `severity`, `evidence`, `message`, `hint` |
| `diagnose`: `matches` | `reference`, `cause`, `fix`, `line` |
| `verify`: `differences` | `kind`, `path`, `package`, `detail` |
| `matrix`: `cells` | `id`, `status`, `reason`, `reused` |

`verdict` is `ok`, `ok-with-limits`, `unverified` or `conflict`. The driver's `answer` is `native`, `minor-version`,
`forward-compat`, `too-old`, `unknown` (none was given) or `not-needed`. The `status` of a build is `passed`, `failed`
or `error`; of a cell `planned`, `removed`, `passed`, `failed`, `error`, `unavailable` or `not_run`.
"""


def json_page() -> str:
    """docs/reference/json.md"""
    lines = [
        NOTE,
        "# JSON",
        "",
        "With `--json` one document stands on stdout, and nothing else. Each has `schema`, a whole number, now 1. Keys",
        "may be added; those listed here stay. A negative answer (a conflict, a failed test, differences) is a",
        "document too, with its exit code. Only when there is no answer the document is",
        "`{schema, error: {reference, message, hint, exit_code}}`.",
        "",
        "| command | keys besides `schema` |",
        "| --- | --- |",
        *(f"| `{name}` | {', '.join(f'`{key}`' for key in keys)} |" for name, keys in JSON_KEYS.items()),
        JSON_PARTS,
        "The report of the smoke tests has a JSON Schema: `envforge/data/smoke_report.schema.json`.",
    ]
    return "\n".join(lines) + "\n"


def profiles_page() -> str:
    """docs/reference/profiles.md"""
    document = yaml.safe_load(data("profiles.yaml").read_text(encoding="utf-8"))
    assert profiles.__doc__
    lines = [
        NOTE,
        "# Run profiles",
        "",
        "Named sets of variables for `envforge run --profile P` and `compose --profile P`.",
        "",
    ]
    for one in document["profiles"]:
        lines += [f"## {one['name']}", "", _cell(one["summary"]) + ".", ""]
        if one.get("note"):
            lines += [_cell(one["note"]), ""]
        lines += ["| variable | value | why | frameworks |", "| --- | --- | --- | --- |"]
        for var in one["variables"]:
            names = ", ".join(var["frameworks"])
            lines.append(
                f"| `{var['name']}` | `{_cell(var['value'])}` | [{_cell(var['why'])}]({var['source']}) | {names} |"
            )
        lines.append("")
    return "\n".join(lines)


def catalogue_page() -> str:
    """docs/reference/catalogue.md"""
    lines = [
        NOTE,
        "# Catalogue",
        "",
        "`envforge list` prints it, with the specs of your own project.",
        "",
        "| name | frameworks | CUDA | Python | lock shipped | variants | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in spec.names():
        found = spec.load(name)
        frameworks = ", ".join(f"{key} {item.version or 'newest'}" for key, item in found.frameworks.items())
        cuda = found.cuda.version if found.cuda is not None else ""
        locked = "yes" if (ROOT / "lockfiles" / name / "envforge.lock.yaml").is_file() else "no"
        variants = ", ".join(f"@{one}" for one in found.variants)
        cells = (f"`{name}`", frameworks, cuda, found.python, locked, variants, _cell(found.description))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@functools.cache
def pages() -> dict[Path, str]:
    """Every generated page."""
    reference = DOCS / "reference"
    return {
        DOCS / "errors.md": errors_page(),
        reference / "commands.md": commands_page(),
        reference / "spec.md": spec_page(),
        reference / "exit-codes.md": exit_codes_page(),
        reference / "json.md": json_page(),
        reference / "profiles.md": profiles_page(),
        reference / "catalogue.md": catalogue_page(),
    }


def main(argv: list[str]) -> int:
    """Write, or with ``--check`` compare."""
    code = 0
    for path, text in pages().items():
        same = path.is_file() and path.read_text(encoding="utf-8") == text
        if not same and "--check" in argv:
            print(f"{path.relative_to(ROOT)} differs: run tools/gen_docs.py")
            code = 1
        elif not same:
            write_atomic(path, text.encode())
            print(path.relative_to(ROOT))
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
