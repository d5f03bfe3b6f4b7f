"""JSON objects out of a byte stream that may be cut anywhere, even inside a character. Pure."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

_MAX_PENDING = 64 * 1024 * 1024  # an object larger than this is no progress message


def objects(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Every JSON object of the stream in order; other JSON values are skipped.

    What cannot be read at the end (a clipped last object) is given as ``{"stream": <raw text>}`` so that
    nothing printed is lost; bytes that are no UTF-8 become U+FFFD instead of an exception.
    """
    decoder = json.JSONDecoder()
    reader = codecs.getincrementaldecoder("utf-8")("replace")
    pending = ""
    for chunk in chunks:
        pending += reader.decode(chunk)
        found, pending = _take(decoder, pending)
        yield from found
        if len(pending) > _MAX_PENDING:
            yield {"stream": pending[:1000]}
            pending = ""
    found, rest = _take(decoder, pending + reader.decode(b"", final=True))
    yield from found
    if rest.strip():
        yield {"stream": rest}


def _take(decoder: json.JSONDecoder, text: str) -> tuple[list[dict[str, Any]], str]:
    """Complete objects at the start of ``text`` and what is left after them."""
    found: list[dict[str, Any]] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at >= len(text):
            return found, ""
        if text[at] != "{":  # chatter between objects: drop that line, keep it if it may still grow
            end = text.find("\n", at)
            if end < 0:
                return found, text[at:]
            found.append({"stream": text[at : end + 1]})
            at = end + 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError:
            return found, text[at:]
        found.append(value)
