"""EnvSpec -> YAML text that reads back as the same spec. Pure. Used by `new`, `import` and the matrix."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from envforge.spec import EnvSpec

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def document(value: Any) -> Any:
    """A record as plain data with YAML keys; fields at their default, and internal ones, are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for item in dataclasses.fields(value):
            if item.metadata.get("internal"):
                continue
            content = getattr(value, item.name)
            default = item.default
            if default is dataclasses.MISSING and item.default_factory is not dataclasses.MISSING:
                default = item.default_factory()
            if content == default and item.name not in ("schema", "name", "python"):
                continue
            found[item.metadata.get("key") or item.name] = document(content)
        return found
    if isinstance(value, Mapping):
        return {str(key): document(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [document(item) for item in value]
    return value


def _scalar(value: Any) -> str:
    """One YAML scalar: text is quoted unless it can be nothing but text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


def _lines(value: dict[str, Any], indent: str, path: str, why: Mapping[str, str]) -> list[str]:
    lines = []
    for key, item in value.items():
        place = f"{path}.{key}" if path else key
        comment = f"  # {why[place]}" if place in why else ""
        flat = _flow(item)
        if isinstance(item, dict) and item and (len(flat) + len(indent) + len(key) > 100 or _explained(place, why)):
            lines.append(f"{indent}{_scalar(key)}:{comment}")
            lines += _lines(item, indent + "  ", place, why)
        elif isinstance(item, list) and item and (len(flat) > 90 or _explained(place, why)):
            lines.append(f"{indent}{_scalar(key)}:{comment}")
            for number, entry in enumerate(item):
                note = why.get(f"{place}[{number}]")
                lines.append(f"{indent}  - {_flow(entry)}" + (f"  # {note}" if note else ""))
        else:
            lines.append(f"{indent}{_scalar(key)}: {flat}{comment}")
    return lines


def _explained(place: str, why: Mapping[str, str]) -> bool:
    return any(key.startswith((place + ".", place + "[")) for key in why)


def dumps(spec: EnvSpec, *, header: tuple[str, ...] = (), why: Mapping[str, str] | None = None) -> str:
    """The spec as YAML. ``header``: comment lines on top; ``why``: spec path -> comment behind that line."""
    one_line = {place: " ".join(text.split()) for place, text in (why or {}).items()}
    head = [f"# {' '.join(line.split())}" if line.strip() else "#" for line in header]
    return "\n".join([*head, *_lines(document(spec), "", "", one_line)]) + "\n"
