"""cog.yaml, Compose files and devcontainer.json. Pure."""

from __future__ import annotations

import json
import re

from envforge import spec as specs
from envforge.errors import SpecError
from envforge.importers import packages
from envforge.importers.records import Draft, fits, unreadable
from envforge.importers.yaml_entries import leaves, tree


def cog(draft: Draft, text: str) -> None:
    """cog.yaml: Python, CUDA, packages."""
    for path, value, number in leaves(tree(draft, text)):
        shown, key = f"{'.'.join(path)}: {value}", ".".join(p for p in path if p != "[]")
        if key == "build.python_version":
            draft.line(number, shown, *packages.python(draft, value, "the interpreter"))
        elif key == "build.python_packages":
            draft.line(number, value, *packages.requirement(draft, value))
        elif key == "build.system_packages":
            draft.line(number, value, *packages.apt(draft, value))
        elif key == "build.cuda":
            draft.claim(value, "cog.yaml", "wheels")
            draft.line(number, shown, "kept")
        elif key == "build.gpu":
            draft.line(number, shown, "kept", "the accelerator follows from cuda")
        elif key == "build.python_requirements":
            from envforge.importers.requirements import option

            draft.line(number, shown, *option(draft, "-r", value))
        elif key == "build.run":
            draft.line(number, value, "not-understood", "what this shell line does cannot be known: a hook can run it")
        else:
            draft.line(number, shown, "ignored", "of the serving tool")


def compose(draft: Draft, text: str) -> None:
    """A Compose file: image, GPU reservation, environment. Raises SpecError ``compose-count-and-ids``."""
    found = tree(draft, text)
    paths = list(leaves(found))
    reserved: dict[str, set[str]] = {}
    for path, value, number in paths:
        shown = f"{'.'.join(p for p in path if p != '[]')}: {value}"
        key = path[2] if len(path) > 2 and path[0] == "services" else ""
        if "devices" in path and "reservations" in path:
            reserved.setdefault(path[1], set()).add(
                path[path.index("devices") + 2] if len(path) > path.index("devices") + 2 else ""
            )
            draft.line(number, shown, "kept", "a GPU reservation: `envforge compose` writes it")
        elif key == "image" and fits(specs.IMAGE, value) and draft.base == "auto":
            draft.base = value
            draft.line(number, shown, "kept")
        elif key == "environment":
            _environment(draft, value if path[-1] == "[]" else f"{path[-1]}={value}", number)
        elif key == "user":
            if value in ("root", "0"):
                draft.note(
                    "warning", "runs-as-root", "the service runs as root", "the image of a spec has its own user"
                )
            draft.line(number, shown, "ignored", "the spec has its own user")
        else:
            draft.line(number, shown, "ignored", "how the service is run, not what is in the image")
    for service, keys in reserved.items():
        if {"count", "device_ids"} <= keys:
            raise SpecError(
                "compose-count-and-ids",
                f"{draft.place}: {service}: count and device_ids exclude each other",
                hint="keep one of them",
            )
        if not keys & {"count", "device_ids"}:
            draft.note(
                "info", "reservation-all", f"{service}: no count and no device_ids means all GPUs; driver nvidia"
            )
        draft.note(
            "info",
            "compose-version",
            f"{service}: needs Compose 1.28 or later (an older one says: devices was "
            "unexpected); swarm mode: not supported by swarm",
        )
    if reserved and not re.search(r"shm_size|ipc:", text):
        draft.note("info", "no-shm-size", "no shm_size: data loaders need more than 64 MB", "shm_size: 2gb")


def _environment(draft: Draft, text: str, number: int) -> None:
    name, _, value = text.partition("=")
    if re.search(r"(?i)(password|secret|token|key)$", name):
        if not value or re.fullmatch(r"\$\{\w+\}|\$\w+", value):
            draft.note(
                "warning", "empty-token", f"{name} has no value of its own: it may be empty, and the service open"
            )
        draft.line(number, f"{name}=***", "ignored", "secrets do not belong in a spec")
    elif name.startswith("NVIDIA_") and "$" not in value:
        draft.env[name] = value
        draft.line(number, text, "kept")
    else:
        if name == "GRANT_SUDO" and value.lower() in ("yes", "1", "true"):
            draft.note("warning", "grant-sudo", "the user of the service may become root")
        draft.line(number, text, "ignored", "set when the service is run")


def devcontainer(draft: Draft, text: str) -> None:
    """devcontainer.json (comments and trailing commas allowed)."""
    plain = re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', lambda m: m[1] or "", text, flags=re.S)
    plain = re.sub(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', lambda m: m[1] or "", plain)
    try:
        data = json.loads(plain)
    except (ValueError, RecursionError) as error:
        raise unreadable(draft.place, f"not JSON: {str(error)[:100]}") from None
    if not isinstance(data, dict):
        raise unreadable(draft.place, "not an object")
    for key, value in data.items():
        place = text.find(f'"{key}"')
        number = text.count("\n", 0, max(place, 0)) + 1
        if key == "image" and isinstance(value, str) and fits(specs.IMAGE, value):
            draft.base = value
            draft.line(number, f"image: {value}", "kept")
        elif key in ("build", "dockerFile", "postCreateCommand", "features", "dockerComposeFile"):
            draft.line(number, f"{key}: {json.dumps(value)}", "not-understood", "import the Dockerfile it names, too")
        else:
            draft.line(number, f"{key}: {json.dumps(value)}", "ignored", "of the editor")
