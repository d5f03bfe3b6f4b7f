"""A small strict reader: YAML text -> stdlib dataclasses, every problem at once with its place.

Used for specs, fleets, matrices and configuration files; a place is file, line, column and path
(``frameworks.torch.version``). Why not pydantic: docs/decisions/0002-spec-models.md.

A field says more about itself through ``metadata=rule(...)``; types understood are ``str int float bool``,
``Literal``, ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]``, other dataclasses and ``Any`` (plain data).
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from envforge.errors import SpecError

MAX_BYTES = 1_000_000  # a spec is a page; a larger file is a mistake or an attack
MAX_DEPTH = 40
MAX_NODES = 50_000  # counted after aliases are followed, so a "billion laughs" file ends here

T = TypeVar("T")
_TAG = "tag:yaml.org,2002:"
_SCALARS = ("str", "int", "float", "bool", "null", "timestamp", "binary", "value")
REPLACE = "!replace"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A whole-match rule for text: the regular expression, what it means, and an example."""

    expression: str
    meaning: str
    example: str = ""
    version: bool = False  # a version number: an unquoted one gets its own message

    def accepts(self, text: str) -> bool:
        return re.fullmatch(self.expression, text) is not None


def rule(
    *,
    key: str | None = None,
    pattern: Pattern | None = None,
    keys: Pattern | None = None,
    low: int | None = None,
    high: int | None = None,
    internal: bool = False,
    doc: str = "",
) -> dict[str, Any]:
    """Metadata of a model field.

    ``key``: its name in YAML; ``pattern``: for the text, each item or each value; ``keys``: for the keys of
    a mapping; ``low``/``high``: bounds of a number; ``internal``: never read from YAML.
    """
    return {
        "key": key,
        "pattern": pattern,
        "keys": keys,
        "low": low,
        "high": high,
        "internal": internal,
        "doc": doc,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """A YAML node with its place (``line`` and ``column`` from 1; 0 when it has none).

    ``value``: text for a scalar, (key, node) pairs for a map, nodes for a list. ``tag`` is the short YAML
    type ("str", "float", …), ``plain`` tells an unquoted scalar, ``replace`` a node marked ``!replace``.
    """

    kind: Literal["map", "list", "scalar"]
    value: Any
    tag: str = "str"
    plain: bool = False
    replace: bool = False
    source: str = ""
    line: int = 0
    column: int = 0

    def get(self, name: str) -> Tree | None:
        """The value of a key of a map."""
        if self.kind == "map":
            for key, value in self.value:
                if key.value == name:
                    return typing.cast(Tree, value)
        return None

    def without(self, *names: str) -> Tree:
        """A map without these keys."""
        return dataclasses.replace(self, value=tuple((k, v) for k, v in self.value if k.value not in names))


class Problems:
    """Collects problems in the order of the file and raises them together."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: list[tuple[str, int, int, str]] = []

    def add(self, tree: Tree | None, path: str, message: str) -> None:
        source, line, column = (tree.source, tree.line, tree.column) if tree else (self.source, 0, 0)
        entry = (source, line, column, f"{path}: {message}" if path else message)
        if entry not in self.lines:
            self.lines.append(entry)

    def formatted(self) -> tuple[str, ...]:
        found = sorted(self.lines, key=lambda entry: (entry[0] != self.source, *entry[:3]))
        return tuple(f"{s}:{line}:{column}: {text}" if line else f"{s}: {text}" for s, line, column, text in found)

    def raise_if_any(self, what: str = "file") -> None:
        """Raise SpecError ``spec-invalid`` with one context line per problem."""
        if self.lines:
            count = len(self.lines)
            raise SpecError(
                "spec-invalid",
                f"{self.source}: {count} problem{'s' if count > 1 else ''} in this {what}",
                context=self.formatted(),
                hint="the JSON Schema in envforge/data/spec.schema.json lists every field"
                if what == "spec"
                else "correct the lines above",
            )


def _fail(source: str, message: str, line: int = 0, column: int = 0) -> SpecError:
    place = f"{source}:{line}:{column}" if line else source
    return SpecError(
        "spec-invalid",
        f"{source}: 1 problem in this file",
        context=(f"{place}: {message}",),
        hint="correct the line above",
    )


def decode(text: str | bytes, source: str) -> str:
    """UTF-8 text of bounded size without a byte order mark; SpecError otherwise."""
    size = len(text)
    if size > MAX_BYTES:
        raise _fail(source, f"the file is too large ({size} bytes, at most {MAX_BYTES})")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise _fail(
                source,
                f"not UTF-8 text (byte 0x{error.object[error.start]:02x}); save the file as UTF-8",
                line,
                1,
            ) from error
    text = text.removeprefix("\ufeff")
    from yaml.reader import Reader

    bad = Reader.NON_PRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        raise _fail(source, f"character #x{ord(bad[0]):04x} is not allowed in YAML", line, column)
    return text


def parse(text: str | bytes, *, source: str, problems: Problems | None = None) -> Tree:
    """Read YAML into a :class:`Tree`; SpecError with its place for anything but plain bounded YAML.

    With ``problems``, duplicate keys and foreign tags are added there, to be told together with the rest.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    decoded = decode(text, source)
    try:
        depth = 0
        for event in yaml.parse(decoded, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    mark: Any = event.start_mark
                    raise _fail(source, f"nested deeper than {MAX_DEPTH} levels", mark.line + 1, mark.column + 1)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
        node = yaml.compose(decoded, Loader=loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, decoded, source) from error
    except RecursionError as error:
        raise _fail(source, f"nested deeper than {MAX_DEPTH} levels") from error
    if node is None:
        raise _fail(source, "the file is empty")
    found = problems if problems is not None else Problems(source)
    tree = _Converter(source, found).convert(node, 0, "")
    if problems is None:
        found.raise_if_any()
    return tree


def _syntax(error: Any, text: str, source: str) -> SpecError:
    """A YAML scanner or parser error in our words, with the case of tabs named."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    message = str(error.problem or error.context or error)
    if "nesting depth" in message:
        return _fail(source, f"nested deeper than {MAX_DEPTH} levels", line, column)
    lines = text.splitlines()
    if 0 < line <= len(lines) and "\t" in lines[line - 1][: max(column, 1)] + lines[line - 1][column - 1 : column]:
        message = "a tab is used for indentation; YAML wants spaces"
    elif "another document" in message or "single document" in str(error.context or ""):
        message = "more than one YAML document in the file; keep one"
    return _fail(source, f"not valid YAML: {message}", line, column)


class _Converter:
    """yaml nodes -> Tree: refuses foreign tags, merge keys, duplicate keys, too many nodes after aliases."""

    def __init__(self, source: str, problems: Problems) -> None:
        self.source = source
        self.problems = problems
        self.count = 0

    def convert(self, node: Any, depth: int, path: str) -> Tree:
        import yaml

        mark = node.start_mark
        place = {"source": self.source, "line": mark.line + 1, "column": mark.column + 1}
        self.count += 1
        if self.count > MAX_NODES or depth > MAX_DEPTH:
            raise _fail(
                self.source,
                f"aliases or nesting expand to more than {MAX_NODES} values or {MAX_DEPTH} levels; refused",
                mark.line + 1,
                mark.column + 1,
            )
        replace = node.tag == REPLACE
        tag = node.tag.removeprefix(_TAG) if node.tag.startswith(_TAG) else node.tag
        if isinstance(node, yaml.ScalarNode):
            if tag not in _SCALARS:
                self.problems.add(
                    Tree(kind="scalar", value="", **place), path, f"the YAML tag {node.tag!r} is not allowed"
                )
                tag = "str"
            return Tree(kind="scalar", value=node.value, tag=tag, plain=node.style is None, **place)
        if tag not in ("seq", "map") and not replace:
            self.problems.add(Tree(kind="scalar", value="", **place), path, f"the YAML tag {node.tag!r} is not allowed")
        if isinstance(node, yaml.SequenceNode):
            items = tuple(self.convert(item, depth + 1, f"{path}[{i}]") for i, item in enumerate(node.value))
            return Tree(kind="list", value=items, tag="seq", replace=replace, **place)
        pairs: list[tuple[Tree, Tree]] = []
        seen: dict[str, Tree] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, depth, path)
            inner = f"{path}.{key.value}" if path else str(key.value)
            value = self.convert(value_node, depth + 1, inner)
            if key.value in seen:
                first = seen[key.value]
                self.problems.add(key, inner, f"this key stands twice (first in line {first.line})")
                continue
            seen[key.value] = key
            pairs.append((key, value))
        return Tree(kind="map", value=tuple(pairs), tag="map", replace=replace, **place)

    def _key(self, node: Any, depth: int, path: str) -> Tree:
        key = self.convert(node, depth + 1, path) if node.tag != _TAG + "merge" else None
        if key is None or key.kind != "scalar":
            mark = node.start_mark
            where = Tree(kind="scalar", value="", source=self.source, line=mark.line + 1, column=mark.column + 1)
            what = "merge keys (<<) are not supported; use `extends`" if key is None else "a key must be text"
            self.problems.add(where, path, what)
            return dataclasses.replace(where, value=f"<{mark.line + 1}>")
        return key


def tree_of(value: Any, *, source: str) -> Tree:
    """A Tree from plain Python data (flags, generated specs); its nodes have no line."""
    if isinstance(value, Mapping):
        return Tree(
            kind="map",
            tag="map",
            source=source,
            value=tuple(
                (Tree(kind="scalar", value=str(k), source=source), tree_of(v, source=source)) for k, v in value.items()
            ),
        )
    if isinstance(value, list | tuple):
        return Tree(kind="list", tag="seq", source=source, value=tuple(tree_of(item, source=source) for item in value))
    if value is None:
        return Tree(kind="scalar", tag="null", value="null", source=source)
    if isinstance(value, bool):
        return Tree(kind="scalar", tag="bool", value=str(value).lower(), source=source)
    tag = {int: "int", float: "float"}.get(type(value), "str")
    return Tree(kind="scalar", tag=tag, value=str(value), source=source)


def plain(tree: Tree) -> Any:
    """The tree as plain data: dict, list, str, int, float, bool, None."""
    if tree.kind == "map":
        return {key.value: plain(value) for key, value in tree.value}
    if tree.kind == "list":
        return [plain(item) for item in tree.value]
    if tree.tag == "null":
        return None
    if tree.tag == "bool":
        return tree.value.lower() in ("true", "yes", "on")
    if tree.tag in ("int", "float"):
        return _number(tree.value, float if tree.tag == "float" else int)
    return tree.value


def _number(text: str, kind: type) -> Any:
    try:
        return kind(text.replace("_", ""))
    except ValueError:
        return None


def merge(base: Tree, over: Tree, *, identity: Callable[[str, Tree], str], path: str = "") -> Tree:
    """``over`` laid on ``base``: maps key by key, lists appended, scalars replaced, ``null`` removes.

    A list item with the same ``identity(path, item)`` as an inherited one takes its place. ``!replace`` on
    a map or list of ``over`` drops what was inherited.
    """
    if over.replace or base.kind != over.kind or over.kind == "scalar":
        return over
    if over.kind == "list":
        replaced = {identity(path, item): item for item in over.value}
        kept = [replaced.pop(identity(path, item), item) for item in base.value]
        return dataclasses.replace(over, value=(*kept, *replaced.values()))
    pairs = {key.value: (key, value) for key, value in base.value}
    for key, value in over.value:
        inner = f"{path}.{key.value}" if path else key.value
        if value.kind == "scalar" and value.tag == "null":
            pairs.pop(key.value, None)
        elif key.value in pairs:
            pairs[key.value] = (key, merge(pairs[key.value][1], value, identity=identity, path=inner))
        else:
            pairs[key.value] = (key, value)
    return dataclasses.replace(over, value=tuple(pairs.values()))


# --- Tree -> dataclass -------------------------------------------------------------------------------------


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _yaml_fields(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    """YAML key -> field, without internal ones."""
    return {
        (item.metadata.get("key") or item.name): item
        for item in dataclasses.fields(cls)
        if not item.metadata.get("internal")
    }


_BAD = object()


def build(tree: Tree, cls: type[T], problems: Problems, path: str = "") -> T | None:
    """An instance of ``cls``, or None after adding every problem found to ``problems``."""
    if tree.kind != "map":
        problems.add(tree, path, f"expected a mapping with keys such as {', '.join(list(_yaml_fields(cls))[:4])}")
        return None
    known = _yaml_fields(cls)
    hints = _hints(typing.cast(Any, cls))
    values: dict[str, Any] = {}
    good = True
    for key, value in tree.value:
        inner = f"{path}.{key.value}" if path else key.value
        item = known.get(key.value)
        if item is None:
            problems.add(key, inner, _unknown(key.value, known))
            good = False
            continue
        found = _value(value, hints[item.name], item.metadata, problems, inner)
        if found is _BAD:
            good = False
        else:
            values[item.name] = found
    for name, item in known.items():
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and tree.get(name) is None:
            problems.add(tree, f"{path}.{name}" if path else name, "this key is required")
            good = False
    return cls(**values) if good else None


def _unknown(name: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return "unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(known)}")


def _value(tree: Tree, hint: Any, meta: Mapping[str, Any], problems: Problems, path: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any:
        return plain(tree)
    if origin in (typing.Union, types.UnionType):
        return _union(tree, typing.get_args(hint), meta, problems, path)
    if origin is Literal:
        return _literal(tree, typing.get_args(hint), problems, path)
    if origin is tuple:
        return _sequence(tree, typing.get_args(hint)[0], meta, problems, path)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(tree, typing.get_args(hint), meta, problems, path)
    if dataclasses.is_dataclass(hint):
        found = build(tree, typing.cast(type, hint), problems, path)
        return _BAD if found is None else found
    if tree.kind != "scalar":
        problems.add(tree, path, f"expected {_noun(hint)}, found a {'mapping' if tree.kind == 'map' else 'list'}")
        return _BAD
    return _scalar(tree, hint, meta, problems, path)


def _union(tree: Tree, args: Sequence[Any], meta: Mapping[str, Any], problems: Problems, path: str) -> Any:
    if tree.kind == "scalar" and tree.tag == "null" and type(None) in args:
        return None
    choices = [arg for arg in args if arg is not type(None)]
    if len(choices) > 1:  # text or a mapping: the kind of node decides
        wanted = "scalar" if tree.kind == "scalar" else tree.kind
        kinds = {_kind(arg): arg for arg in choices}
        return _value(tree, kinds.get(wanted, choices[0]), meta, problems, path)
    return _value(tree, choices[0], meta, problems, path)


def _kind(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return "list"
    return "map" if dataclasses.is_dataclass(hint) or (origin and origin is not Literal) else "scalar"


def _literal(tree: Tree, allowed: Sequence[Any], problems: Problems, path: str) -> Any:
    if tree.kind == "scalar":
        for choice in allowed:
            if tree.value == str(choice):
                return choice
    import difflib

    near = (
        difflib.get_close_matches(str(tree.value), [str(choice) for choice in allowed], 1)
        if tree.kind == "scalar"
        else []
    )
    guess = f"; did you mean {near[0]!r}?" if near else ""
    problems.add(tree, path, f"expected one of {', '.join(map(str, allowed))}{guess}")
    return _BAD


def _sequence(tree: Tree, hint: Any, meta: Mapping[str, Any], problems: Problems, path: str) -> Any:
    if tree.kind != "list":
        problems.add(
            tree,
            path,
            f"expected a list; write [{tree.value}]" if tree.kind == "scalar" else "expected a list",
        )
        return _BAD
    found = [_value(item, hint, meta, problems, f"{path}[{i}]") for i, item in enumerate(tree.value)]
    return _BAD if any(item is _BAD for item in found) else tuple(found)


def _mapping(tree: Tree, args: Sequence[Any], meta: Mapping[str, Any], problems: Problems, path: str) -> Any:
    if tree.kind != "map":
        problems.add(tree, path, "expected a mapping (key: value)")
        return _BAD
    good = True
    result: dict[Any, Any] = {}
    for key, value in tree.value:
        inner = f"{path}.{key.value}" if path else key.value
        if typing.get_origin(args[0]) is Literal and key.value not in typing.get_args(args[0]):
            problems.add(key, inner, _unknown(key.value, typing.get_args(args[0])))
            good = False
        elif meta.get("keys") and not meta["keys"].accepts(key.value):
            problems.add(key, inner, f"{key.value!r} is not {meta['keys'].meaning}")
            good = False
        found = _value(value, args[1], meta, problems, inner)
        good = good and found is not _BAD
        result[key.value] = found
    return result if good else _BAD


def _noun(hint: Any) -> str:
    return {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(hint, str(hint))


def _scalar(tree: Tree, hint: Any, meta: Mapping[str, Any], problems: Problems, path: str) -> Any:
    if hint is str:
        return _text(tree, meta.get("pattern"), problems, path)
    wanted = {int: ("int",), float: ("int", "float"), bool: ("bool",)}[hint]
    found = plain(tree) if tree.tag in wanted else None
    if found is None:
        problems.add(tree, path, f"expected {_noun(hint)}, found {tree.value!r}")
        return _BAD
    low, high = meta.get("low"), meta.get("high")
    if (low is not None and found < low) or (high is not None and found > high):
        bounds = f"from {low} to {high}" if high is not None else f"at least {low}"
        problems.add(tree, path, f"{found} is out of range ({bounds})")
        return _BAD
    return found


def _text(tree: Tree, pattern: Pattern | None, problems: Problems, path: str) -> Any:
    if tree.tag != "str":
        if pattern is not None and pattern.version and tree.tag in ("float", "int"):
            problems.add(
                tree,
                path,
                f'a version must be quoted text; quote it: "{tree.value}" (unquoted it is a number)',
            )
        elif tree.tag == "null":
            problems.add(tree, path, "expected text, found nothing")
        else:
            problems.add(tree, path, f'expected text, found a {tree.tag}; quote it: "{tree.value}"')
        return _BAD
    text: str = tree.value
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in text):
        problems.add(tree, path, "line breaks and control characters are not allowed here")
        return _BAD
    if pattern is not None and not pattern.accepts(text):
        shown = text if len(text) <= 80 else text[:77] + "…"
        example = f" (for example {pattern.example})" if pattern.example else ""
        problems.add(tree, path, f"{shown!r} is not {pattern.meaning}{example}")
        return _BAD
    return text


def load_model(
    text: str | bytes,
    cls: type[T],
    *,
    source: str,
    what: str = "file",
    check: Callable[[T], Iterable[tuple[str, str]]] | None = None,
) -> T:
    """Read ``text`` as one ``cls``. SpecError ``spec-invalid`` names every problem.

    ``check`` yields (path, message) for rules between fields; it runs only when every field is good.
    """
    problems = Problems(source)
    tree = parse(text, source=source, problems=problems)
    found = build(tree, cls, problems)
    if found is not None and check is not None:
        for path, message in check(found):
            problems.add(locate(tree, path), path, message)
    problems.raise_if_any(what)
    assert found is not None
    return found


def locate(tree: Tree, path: str) -> Tree:
    """The node at ``a.b[2].c``, or the nearest one above it that exists."""
    for part in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        inner: Tree | None
        if part.startswith("["):
            index = int(part[1:-1])
            inner = tree.value[index] if tree.kind == "list" and index < len(tree.value) else None
        else:
            inner = tree.get(part)
        if inner is None:
            break
        tree = inner
    return tree


# --- JSON Schema -------------------------------------------------------------------------------------------


def json_schema(cls: type, *, title: str | None = None) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a model, made only from the records; one definition per record."""
    definitions: dict[str, Any] = {}
    _definition(cls, definitions)
    top = definitions.pop(cls.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title or cls.__name__,
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _definition(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}
        hints = _hints(cls)
        properties = {}
        required = []
        for key, item in _yaml_fields(cls).items():
            properties[key] = _schema(hints[item.name], item.metadata, definitions)
            if item.metadata.get("doc"):
                properties[key]["description"] = item.metadata["doc"]
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                required.append(key)
            elif isinstance(item.default, str | int | bool) and item.default is not None:
                properties[key]["default"] = item.default
        text = " ".join((cls.__doc__ or "").split()).replace("``", "`")
        found = {
            "type": "object",
            "description": text,
            "properties": properties,
            "additionalProperties": False,
        }
        definitions[cls.__name__] = found | ({"required": required} if required else {})
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _schema(hint: Any, meta: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if arg is type(None) else _schema(arg, meta, definitions) for arg in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0], meta, definitions)}
    if origin is not None and issubclass(origin, Mapping):
        found: dict[str, Any] = {
            "type": "object",
            "additionalProperties": _schema(args[1], meta, definitions),
        }
        if typing.get_origin(args[0]) is Literal:
            found["propertyNames"] = {"enum": list(typing.get_args(args[0]))}
        elif meta.get("keys"):
            found["propertyNames"] = {"pattern": f"^(?:{meta['keys'].expression})$"}
        return found
    if dataclasses.is_dataclass(hint):
        return _definition(typing.cast(type, hint), definitions)
    found = {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]}
    if hint is str and meta.get("pattern"):
        found["pattern"] = f"^(?:{meta['pattern'].expression})$"
    if hint in (int, float):
        found |= {name: meta[at] for name, at in (("minimum", "low"), ("maximum", "high")) if meta.get(at) is not None}
    return found
