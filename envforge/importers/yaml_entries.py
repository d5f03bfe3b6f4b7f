"""YAML of other tools as data, with every leaf and the line it stands in. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from envforge.importers.records import Draft, unreadable
from envforge.yamlmodel import Problems, Tree, parse


def tree(draft: Draft, text: str) -> Tree:
    """The top map. Raises SpecError ``import-unreadable`` for anything else."""
    found = parse(text, source=draft.place, problems=Problems(draft.place))
    if found.kind != "map":
        raise unreadable(draft.place, "not a map of keys and values")
    return found


def leaves(node: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """(path, text, line) of every scalar; list items have ``[]`` in the path."""
    if node.kind == "map":
        for key, value in node.value:
            yield from leaves(value, (*path, str(key.value)))
    elif node.kind == "list":
        for value in node.value:
            yield from leaves(value, (*path, "[]"))
    else:
        yield path, str(node.value), node.line


def texts(node: Tree | None) -> list[Any]:
    """The scalar items of a list (a scalar counts as one), as nodes."""
    if node is None:
        return []
    if node.kind == "list":
        return [item for item in node.value if item.kind == "scalar"]
    return [node] if node.kind == "scalar" else []
