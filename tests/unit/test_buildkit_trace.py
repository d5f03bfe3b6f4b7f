"""BuildKit's progress messages: recorded bytes of a real engine (20.10.24), hand-made ones, and damage."""

from __future__ import annotations

import base64
import struct

import pytest

from envforge.buildkit_trace import Log, Status, TraceError, Vertex, decode, decode_aux

_A = "sha256:6516b65a9de15eb5ce5311339a7f80737cda035ab79b6eb4963564404013ca16"
_B = "sha256:4155ed2bbf4e5a87a8e94e251e87fcb8f530666dba9d0541025e9a5b4a5c4135"

# As the engine sent it: one finished step "copy /context /" with its input.
RECORDED = (
    b"\n\xbf\x01\nG" + _A.encode() + b"\x12G" + _B.encode() + b"\x1a\x0fcopy /context /"
    b"*\x0c\x08\xe3\xa8\xb8\xd8\x06\x10\xed\xd8\xe3\xfb\x01"
    b"2\x0c\x08\xe3\xa8\xb8\xd8\x06\x10\xb5\xf9\x91\xa0\x02"
)


def varint(value: int) -> bytes:
    """An independent encoder."""
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        out.append((value & 0x7F) | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def test_a_recorded_message() -> None:
    trace = decode(RECORDED)
    (vertex,) = trace.vertexes
    assert vertex.digest == _A and vertex.name == "copy /context /" and not vertex.cached and not vertex.error
    assert vertex.started == pytest.approx(1796084835.528018541, abs=1e-3)  # 2026-12-01 00:27:15 UTC
    assert vertex.completed is not None and vertex.started is not None
    assert vertex.completed - vertex.started == pytest.approx(0.0765, abs=1e-3)
    assert trace.statuses == () and trace.logs == ()


def test_every_part_of_a_message() -> None:
    vertex = field(1, b"d") + field(3, "RUN ü".encode()) + field(4, 1) + field(7, b"exit code: 1")
    status = field(1, b"layer") + field(2, b"d") + field(4, 700) + field(5, 1000) + field(8, field(1, 5))
    log = field(1, b"d") + field(3, 2) + field(4, b"half \xc3")
    trace = decode(field(1, vertex) + field(2, status) + field(3, log))
    assert trace.vertexes == (Vertex(digest="d", name="RUN ü", cached=True, error="exit code: 1"),)
    assert trace.statuses == (Status(id="layer", vertex="d", current=700, total=1000, completed=True),)
    assert trace.logs == (Log(vertex="d", message=b"half \xc3"),)


def test_unknown_fields_of_every_wire_type_are_skipped() -> None:
    unknown = (
        field(90, 7) + field(91, b"x") + varint(92 << 3 | 1) + struct.pack("<d", 1.0) + varint(93 << 3 | 5) + b"\0" * 4
    )
    assert decode(unknown + field(3, unknown + field(1, b"v"))).logs == (Log(vertex="v", message=b""),)


def test_negative_numbers() -> None:
    trace = decode(field(2, field(4, -5)))
    assert trace.statuses[0].current == -5


def test_an_empty_message_is_an_empty_trace() -> None:
    assert decode(b"") == decode_aux("")


@pytest.mark.parametrize("length", range(1, len(RECORDED)))
def test_a_message_cut_anywhere_is_an_error_and_not_a_wrong_answer(length: int) -> None:
    with pytest.raises(TraceError):
        decode(RECORDED[:length])


@pytest.mark.parametrize("damaged", [b"\x0b", b"\xff" * 12, b"\x08\x01", b"\x12\x02\x20\xff"])
def test_damage_is_an_error(damaged: bytes) -> None:
    with pytest.raises(TraceError):
        decode(damaged)


def test_aux_is_base64() -> None:
    assert decode_aux(base64.b64encode(RECORDED).decode()) == decode(RECORDED)
    with pytest.raises(TraceError):
        decode_aux("not base64!")
