"""The build stream is cut anywhere; no object, line or error may be lost (report BC-34)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from envforge.json_stream import objects

# As reported: two and a half objects in a chunk, an error after HTTP 200, an object clipped inside a character.
CHUNKS = [
    b'{"stream":"Step 1/6 : FROM python:3.11\\n"}\r\n{"stream":"\\n"}\r\n{"str',
    b'eam":"Collecting torch\\n"}\r\n',
    b'{"aux":{"ID":"sha256:abc"}}\r\n',
    b'{"errorDetail":{"code":1,"message":"non-zero code: 1"},"error":"non-zero code: 1"}\r\n',
    '{"stream":"progress ➤'.encode()[:-1],
]


def test_the_reported_stream() -> None:
    found = list(objects(CHUNKS))
    assert found[:4] == [
        {"stream": "Step 1/6 : FROM python:3.11\n"},
        {"stream": "\n"},
        {"stream": "Collecting torch\n"},
        {"aux": {"ID": "sha256:abc"}},
    ]
    assert found[4]["error"] == "non-zero code: 1"
    assert found[5]["stream"].startswith('{"stream":"progress ')
    assert len(found) == 6


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=12), max_size=3), max_size=6),
    st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=30),
)
def test_any_cut_gives_the_same_objects(values: list[dict[str, str]], sizes: list[int]) -> None:
    whole = b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\r\n" for value in values)

    def cut() -> Iterator[bytes]:
        at = index = 0
        while at < len(whole):
            size = sizes[index % len(sizes)]
            yield whole[at : at + size]
            at += size
            index += 1

    assert list(objects(cut())) == values


def test_chatter_between_objects_is_kept() -> None:
    assert list(objects([b'garbage\n{"a":1}\nmore'])) == [{"stream": "garbage\n"}, {"a": 1}, {"stream": "more"}]


def test_bad_bytes_do_not_raise() -> None:
    assert list(objects([b'{"stream":"\xff"}'])) == [{"stream": "\ufffd"}]
