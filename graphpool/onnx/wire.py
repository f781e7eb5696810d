"""Finds the weights inside a serialised ONNX model, so that they can stay in the file or the buffer.

A protobuf parser copies every weight to the heap. This one walks the wire format of the three messages around them and
copies all but the large weights, which a mapped file or the caller's buffer then provides.
Source: "Encoding", the protocol buffers documentation; field numbers from onnx.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""

_GRAPH, _INITIALIZER, _DATA_TYPE, _RAW_DATA = 7 << 3 | _BYTES, 5 << 3 | _BYTES, 2 << 3 | _VARINT, 9 << 3 | _BYTES
"""Tags of the fields of ModelProto, GraphProto, TensorProto, TensorProto; a field of another wire type is none."""

_TYPED = {4 << 3 | _BYTES: 1, 10 << 3 | _BYTES: 11}
"""Tags of packed float_data and double_data, which hold what raw_data would, and the data types that have them."""

_OTHER_TYPED = frozenset({5, 6, 7, 11})
"""Numbers of the fields for integers and strings."""

WHOLE_BYTES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20})
"""Data types whose elements are one or more bytes each."""

NIBBLES = frozenset({21, 22})
"""Data types of which two elements take a byte."""

_LARGE = 2**10
"""Weights from this size on stay where they are. Unit: bytes."""


@dataclass
class Outline:
    """A ModelProto, serialised, without its large weights; `places` is number of the initialiser -> (offset, size).

    Unit: bytes.
    """

    model: bytes
    places: dict[int, tuple[int, int]] = field(default_factory=dict)


def outline(data: memoryview) -> Outline:
    """A serialised ModelProto without the large weights, and where these lie.

    All of it where the data is no such message: its parser then says what is wrong. Cost: microseconds an initialiser
    and node; reads no page of a mapped weight.
    """
    try:
        return _outline(data)
    except (IndexError, ValueError):
        return Outline(bytes(data))


def _outline(data: memoryview) -> Outline:
    found = Outline(b"")
    parts: list[bytes] = []
    has_graph = False
    for tag, start, begin, end in _fields(data, 0, len(data)):
        is_graph = tag == _GRAPH and not has_graph  # a second one is merged into the first, behind its initialisers
        has_graph = has_graph or is_graph
        parts.append(_message(tag, _graph(data, begin, end, found)) if is_graph else bytes(data[start:end]))
    found.model = b"".join(parts)
    return found


def _graph(data: memoryview, begin: int, end: int, found: Outline) -> bytes:
    """The graph without large weights; notes their places."""
    parts: list[bytes] = []
    count, copied = 0, begin
    for tag, start, inner, stop in _fields(data, begin, end):
        if tag != _INITIALIZER:
            continue
        raw = _large_raw_data(data, inner, stop)
        if raw is not None:
            cut, first, last = raw
            found.places[count] = first, last - first
            parts.append(bytes(data[copied:start]))
            parts.append(_message(tag, bytes(data[inner:cut]) + bytes(data[last:stop])))
            copied = stop
        count += 1
    parts.append(bytes(data[copied:end]))
    return b"".join(parts)


def _large_raw_data(data: memoryview, begin: int, end: int) -> tuple[int, int, int] | None:
    """Start of the field, begin and end of the content of a tensor, if it is large and one field."""
    found, data_type = [], 0
    if end - begin < _LARGE:
        return None
    for tag, start, inner, stop in _fields(data, begin, end):
        if tag == _RAW_DATA or tag in _TYPED:
            found.append((tag, start, inner, stop))
        elif tag == _DATA_TYPE:
            data_type, _ = _varint(data, inner)
        elif tag >> 3 in _OTHER_TYPED:
            return None
    if len(found) != 1:
        return None
    [(tag, start, inner, stop)] = found
    is_raw = data_type in WHOLE_BYTES or data_type in NIBBLES if tag == _RAW_DATA else data_type == _TYPED[tag]
    return (start, inner, stop) if is_raw and stop - inner >= _LARGE else None


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Tag of each field of a message, where it starts, and where its value begins and ends."""
    while at < end:
        start = at
        tag, at = (data[at], at + 1) if data[at] < 128 else _varint(data, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            begin, (_, at) = at, _varint(data, at)
        elif wire_type == _BYTES:
            nbytes, begin = (data[at], at + 1) if data[at] < 128 else _varint(data, at)
            at = begin + nbytes
        elif wire_type in (_FIXED64, _FIXED32):
            begin, at = at, at + (8 if wire_type == _FIXED64 else 4)
        else:
            raise ValueError(f"wire type {wire_type}")
        if at > end:
            raise ValueError("the field ends behind its message")
        yield tag, start, begin, at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than ten bytes")


def _message(tag: int, content: bytes) -> bytes:
    """A field that holds a message."""
    return _encoded(tag) + _encoded(len(content)) + content


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
