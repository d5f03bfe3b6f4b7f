"""environment.yml: channels, conda packages, the pip section with its options. Pure."""

from __future__ import annotations

from envforge import spec as specs
from envforge.importers import packages
from envforge.importers.records import Draft, fits
from envforge.importers.requirements import read as read_requirements
from envforge.importers.yaml_entries import leaves, tree


def read(draft: Draft, text: str) -> None:
    """Every entry of the file, in its order: conda first, then pip."""
    for path, value, number in leaves(tree(draft, text)):
        top = path[0] if path else ""
        if top == "name":
            draft.name = value
            draft.line(number, f"name: {value}", "kept")
        elif top == "channels":
            good = fits(specs.CHANNEL, value)
            if good:
                draft.channels.append(value)
            draft.line(number, value, "kept" if good else "not-understood", "" if good else "not a channel")
        elif path[:2] == ("dependencies", "[]") and len(path) == 2:
            draft.line(number, value, *packages.conda(draft, value))
        elif path[:3] == ("dependencies", "[]", "pip"):
            _pip(draft, value, number)
        elif top == "variables" and len(path) == 2 and fits(specs.ENV_KEY, path[1]):
            draft.env[path[1]] = value
            draft.line(number, f"{path[1]}={value}", "kept")
        elif top in ("prefix", "platforms"):
            draft.line(number, f"{top}: {value}", "ignored", "a place or platform of another machine")
        else:
            draft.line(number, f"{'.'.join(path)}: {value}", "not-understood", "not a key of an environment file")


def _pip(draft: Draft, value: str, number: int) -> None:
    """A list item of the pip section: a requirement or an option, numbered as in the file."""
    from dataclasses import replace

    before = len(draft.lines)
    outer = draft.file
    read_requirements(draft, value)
    for i in range(before, len(draft.lines)):
        if draft.lines[i].file == outer:
            draft.lines[i] = replace(draft.lines[i], number=number)
    if len(draft.lines) == before:
        draft.line(number, value, "ignored", "empty or a comment")
