"""Decodes BuildKit's progress messages without a protobuf library. Pure.

The Engine API sends ``{"id": "moby.buildkit.trace", "aux": <base64>}``; the payload is a ``StatusResponse``
of BuildKit's control API. Field numbers are those of ``moby/buildkit api/services/control/control.proto``;
fields not listed here are skipped, so newer engines only add what we do not look at.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Vertex:
    """One build step. Times are seconds since the epoch; None: not yet."""

    digest: str
    name: str
    cached: bool = False
    started: float | None = None
    completed: float | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """A piece of work inside a step (a layer pulled, "exporting layers"); ``total`` 0 when unknown; bytes."""

    id: str
    vertex: str
    current: int = 0
    total: int = 0
    completed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """Output of a step; may end in the middle of a line or of a character, so it stays bytes."""

    vertex: str
    message: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One decoded message."""

    vertexes: tuple[Vertex, ...] = ()
    statuses: tuple[Status, ...] = ()
    logs: tuple[Log, ...] = ()


class TraceError(ValueError):
    """The bytes are no protobuf message; the caller may ignore it, progress is not the result."""


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise TraceError("message ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) pairs; numbers for varints and fixed widths, bytes for everything with a length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif kind in (_BYTES, _FIXED64, _FIXED32):
            size, at = _varint(data, at) if kind == _BYTES else (8 if kind == _FIXED64 else 4, at)
            if at + size > len(data):
                raise TraceError("message ends inside a field")
            chunk = data[at : at + size]
            at += size
            yield number, chunk if kind == _BYTES else int.from_bytes(chunk, "little")
        else:
            raise TraceError(f"wire type {kind} is not used in this protocol")


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _message(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise TraceError("a number stands where a message belongs")


def _signed(value: int | bytes) -> int:
    """An int64 as protobuf sends it: two's complement in 64 bits."""
    if isinstance(value, bytes):
        raise TraceError("text stands where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value


def _time(value: int | bytes) -> float:
    seconds = nanos = 0
    for number, part in _fields(_message(value)):
        if number == 1:
            seconds = _signed(part)
        elif number == 2:
            nanos = _signed(part)
    return seconds + nanos / 1e9


def _vertex(data: bytes) -> Vertex:
    digest = name = error = ""
    cached = False
    started: float | None = None
    completed: float | None = None
    for number, value in _fields(data):
        if number == 1:
            digest = _text(value)
        elif number == 3:
            name = _text(value)
        elif number == 4:
            cached = bool(value)
        elif number == 5:
            started = _time(value)
        elif number == 6:
            completed = _time(value)
        elif number == 7:
            error = _text(value)
    return Vertex(digest=digest, name=name, cached=cached, started=started, completed=completed, error=error)


def _status(data: bytes) -> Status:
    name = vertex = ""
    current = total = 0
    completed = False
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            vertex = _text(value)
        elif number == 4:
            current = _signed(value)
        elif number == 5:
            total = _signed(value)
        elif number == 8:
            completed = True
    return Status(id=name, vertex=vertex, current=current, total=total, completed=completed)


def _log(data: bytes) -> Log:
    vertex, message = "", b""
    for number, value in _fields(data):
        if number == 1:
            vertex = _text(value)
        elif number == 4:
            message = _message(value)
    return Log(vertex=vertex, message=message)


def decode(payload: bytes) -> Trace:
    """One ``StatusResponse``. Raises :class:`TraceError` when the bytes are not one."""
    vertexes: list[Vertex] = []
    statuses: list[Status] = []
    logs: list[Log] = []
    for number, value in _fields(payload):
        if number == 1:
            vertexes.append(_vertex(_message(value)))
        elif number == 2:
            statuses.append(_status(_message(value)))
        elif number == 3:
            logs.append(_log(_message(value)))
    return Trace(vertexes=tuple(vertexes), statuses=tuple(statuses), logs=tuple(logs))


def decode_aux(aux: str) -> Trace:
    """The ``aux`` value of a stream object. Raises :class:`TraceError`."""
    try:
        return decode(base64.b64decode(aux, validate=True))
    except binascii.Error as error:
        raise TraceError(f"not base64: {error}") from error
