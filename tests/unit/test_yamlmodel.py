"""The strict YAML reader: places, guesses, bounds, and that good text comes through unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from envforge.errors import EXIT_SPEC, SpecError
from envforge.yamlmodel import MAX_BYTES, Pattern, json_schema, load_model, merge, parse, plain, rule, tree_of

VERSION = Pattern(expression=r"\d+\.\d+", meaning="a version", version=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part."""

    version: str = field(metadata=rule(pattern=VERSION))
    count: int = field(default=1, metadata=rule(low=1, high=9))


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """A thing."""

    name: str
    kind: Literal["small", "large"] = "small"
    ratio: float | None = None
    fast: bool = False
    part: Part | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    anything: Any = None
    source: str = field(default="wheels", metadata=rule(key="from"))
    hidden: str = field(default="", metadata=rule(internal=True))


def problems(text: str | bytes) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        load_model(text, Thing, source="thing.yaml")
    assert caught.value.reference == "spec-invalid"
    assert caught.value.exit_code == EXIT_SPEC
    return caught.value.context


def test_good_text_gives_the_record() -> None:
    text = """
name: "on"
kind: large
ratio: 2
fast: yes
part: {version: "3.10"}
parts: {a: {version: "1.0", count: 3}}
words: [x, "1"]
anything: {deep: [1, 2.5, null, true]}
from: base
"""
    found = load_model(text, Thing, source="thing.yaml")
    assert found == Thing(
        name="on",
        kind="large",
        ratio=2,
        fast=True,
        part=Part(version="3.10"),
        parts={"a": Part(version="1.0", count=3)},
        words=("x", "1"),
        anything={"deep": [1, 2.5, None, True]},
        source="base",
    )


def test_every_problem_at_once_with_line_column_and_path() -> None:
    text = "name: 1\nkind: smal\npart: {version: 3.10, count: 12}\nparts: {a: {}}\nword: [x]\nfast: maybe\n"
    assert problems(text) == (
        'thing.yaml:1:7: name: expected text, found a int; quote it: "1"',
        "thing.yaml:2:7: kind: expected one of small, large; did you mean 'small'?",
        'thing.yaml:3:17: part.version: a version must be quoted text; quote it: "3.10" (unquoted it is a number)',
        "thing.yaml:3:30: part.count: 12 is out of range (from 1 to 9)",
        "thing.yaml:4:12: parts.a.version: this key is required",
        "thing.yaml:5:1: word: unknown key; did you mean 'words'?",
        "thing.yaml:6:7: fast: expected true or false, found 'maybe'",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b\n", "thing.yaml:2:1: name: this key stands twice (first in line 1)"),
        ("name: a\nhidden: b\n", "thing.yaml:2:1: hidden: unknown key"),
        ("name: [a]\n", "thing.yaml:1:7: name: expected text, found a list"),
        ("name: a\nwords: b\n", "thing.yaml:2:8: words: expected a list; write [b]"),
        ("name: a\nparts: [b]\n", "thing.yaml:2:8: parts: expected a mapping (key: value)"),
        ("- name\n", "thing.yaml:1:1: expected a mapping with keys such as name, kind, ratio, fast"),
        ('name: "a\\nb"\n', "line breaks and control characters are not allowed"),
        ('name: "a\\0b"\n', "line breaks and control characters are not allowed"),
        ("name: !!python/object/apply:os.system [id]\n", "the YAML tag"),
        ("name: !secret a\n", "the YAML tag '!secret' is not allowed"),
        ("<<: {name: a}\n", "merge keys (<<) are not supported"),
        ("name: a\n? [x]\n: 1\n", "a key must be text"),
        ("name: a\n\tkind: large\n", "a tab is used for indentation"),
        ("name: a\n---\nname: b\n", "more than one YAML document"),
        ("name: 'a\n", "not valid YAML"),
        ("name: *nothing\n", "not valid YAML"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("name: a\x07\n", "character #x0007 is not allowed"),
        (b"name: a\nkind: \xff\xfe\n", "thing.yaml:2:1: not UTF-8 text (byte 0xff)"),
        ("name: a\x00".encode("utf-16"), "not UTF-8 text"),
        ("x" * (MAX_BYTES + 1), "the file is too large"),
        ("[" * 5000, "nested deeper than 40 levels"),
        ("name: " + "{a: " * 60 + "1" + "}" * 60, "nested deeper than 40 levels"),
    ],
)
def test_bad_text_is_told_and_placed(text: str | bytes, expected: str) -> None:
    assert any(expected in line for line in problems(text)), problems(text)


def test_a_yaml_bomb_is_refused_quickly() -> None:
    lines = ["anything:", "  - &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert any("aliases or nesting expand to more than" in line for line in problems("name: a\n" + "\n".join(lines)))


def test_an_alias_to_itself_is_refused() -> None:
    assert any("expand to more than" in line for line in problems("name: a\nanything: &x [*x]\n"))


def test_byte_order_mark_and_crlf_are_read() -> None:
    text = b"\xef\xbb\xbfname: a\r\nwords:\r\n  - b\r\n"
    assert load_model(text, Thing, source="t") == Thing(name="a", words=("b",))


def test_a_check_between_fields_gets_the_place_of_its_path() -> None:
    def check(thing: Thing) -> list[tuple[str, str]]:
        return [("words[1]", "not this one")]

    with pytest.raises(SpecError) as caught:
        load_model("name: a\nwords:\n  - x\n  - y\n", Thing, source="t", check=check)
    assert caught.value.context == ("t:4:5: words[1]: not this one",)


def test_merge_replaces_appends_and_removes() -> None:
    base = tree_of({"a": {"x": 1, "y": 2}, "list": ["p", "q"], "gone": 1}, source="base")
    over = parse("a: {y: 3}\nlist: [q, r]\ngone: null\n", source="over")
    merged = merge(base, over, identity=lambda _path, item: str(item.value))
    assert plain(merged) == {"a": {"x": 1, "y": 3}, "list": ["p", "q", "r"]}
    fresh = merge(base, parse("list: !replace [z]\n", source="over"), identity=lambda _path, item: str(item.value))
    assert plain(fresh)["list"] == ["z"]


def test_json_schema_follows_the_records() -> None:
    found = json_schema(Thing)
    assert found["required"] == ["name"]
    assert found["additionalProperties"] is False
    assert "hidden" not in found["properties"] and "from" in found["properties"]
    assert found["properties"]["parts"]["additionalProperties"] == {"$ref": "#/$defs/Part"}
    assert found["$defs"]["Part"]["properties"]["version"]["pattern"] == r"^(?:\d+\.\d+)$"
    assert found["$defs"]["Part"]["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "default": 1,
    }
