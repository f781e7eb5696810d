"""Finds weights and long lists inside a serialised ONNX model, so that they can stay in the file or the buffer.

A protobuf parser copies every weight to the heap. This one walks the wire format of the messages around them and copies
all but the large weights and the long lists of attributes, which a mapped file or the caller's buffer then provides.
Source: "Encoding", the protocol buffers documentation; field numbers from onnx.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field

from ._lists import split

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""

_GRAPH, _INITIALIZER, _DATA_TYPE, _RAW_DATA = 7 << 3 | _BYTES, 5 << 3 | _BYTES, 2 << 3 | _VARINT, 9 << 3 | _BYTES
"""Tags of the fields of ModelProto, GraphProto, TensorProto, TensorProto; a field of another wire type is none."""

_NODE, _ATTRIBUTE, _FUNCTION = 1 << 3 | _BYTES, 5 << 3 | _BYTES, 25 << 3 | _BYTES
"""Tags of fields of GraphProto, NodeProto and ModelProto."""

_INPUT, _OUTPUT, _OP_TYPE, _DOMAIN = 1 << 3 | _BYTES, 2 << 3 | _BYTES, 4 << 3 | _BYTES, 7 << 3 | _BYTES
"""Other tags of fields of NodeProto."""

_ATTRIBUTE_NAME, _VALUE, _TENSOR_NAME = 1 << 3 | _BYTES, 5 << 3 | _BYTES, 8 << 3 | _BYTES
"""Tags of the name and the tensor of an AttributeProto, and of the name in a TensorProto."""

_TYPED = {4 << 3 | _BYTES: 1, 10 << 3 | _BYTES: 11}
"""Tags of packed float_data and double_data, which hold what raw_data would, and the data types that have them."""

_OTHER_TYPED = frozenset({5, 6, 7, 11})
"""Numbers of the fields for integers and strings."""

WHOLE_BYTES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20})
"""Data types whose elements are one or more bytes each."""

NIBBLES = frozenset({21, 22})
"""Data types of which two elements take a byte."""

_LARGE = 2**10
"""Weights from this size on stay where they are, and lists of so many elements. Unit: bytes."""


@dataclass
class Outline:
    """A ModelProto, serialised, without its large weights; `places` is number of the initialiser -> (offset, size).

    `lists` is number of the node -> number of its attribute -> (offset, end, elements, size of their texts) of an
    attribute whose long list is left out too; none in a model with functions, whose nodes get other numbers. Unit:
    bytes.
    """

    model: bytes
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    lists: dict[int, dict[int, tuple[int, int, int, int]]] = field(default_factory=dict)


def outline(data: memoryview) -> Outline:
    """A serialised ModelProto without large weights and long lists, and where these lie.

    Large tensors of nodes Constant become initialisers.

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
    fields = list(_fields(data, 0, len(data)))
    has_functions, has_graph = any(tag == _FUNCTION for tag, *_ in fields), False
    for tag, start, begin, end in fields:
        is_graph = tag == _GRAPH and not has_graph  # a second one is merged into the first, behind its initialisers
        has_graph = has_graph or is_graph
        graph = _graph(data, begin, end, found, not has_functions) if is_graph else None
        parts.append(bytes(data[start:end]) if graph is None else _message(tag, graph))
    found.model = b"".join(parts)
    return found


def _graph(data: memoryview, begin: int, end: int, found: Outline, has_lists: bool) -> bytes:
    """The graph without large weights, nor, if `has_lists`, long lists; notes their places."""
    parts: list[bytes] = []
    ninitializers, nnodes, copied = 0, 0, begin
    for tag, start, inner, stop in _fields(data, begin, end):
        short = None
        if tag == _INITIALIZER:
            raw = _large_raw_data(data, inner, stop)
            if raw is not None:
                cut, first, last = raw
                found.places[ninitializers] = first, last - first
                short = bytes(data[inner:cut]) + bytes(data[last:stop])
            ninitializers += 1
        elif tag == _NODE:
            is_large = stop - inner >= _LARGE
            tensor = _constant_of(data, inner, stop) if is_large else None
            if tensor is not None:
                tag, short, found.places[ninitializers] = _INITIALIZER, *tensor
                ninitializers += 1
            else:
                if is_large and has_lists:
                    short = _without_lists(data, inner, stop, found.lists.setdefault(nnodes, {}))
                nnodes += 1
        if short is not None:
            parts.append(bytes(data[copied:start]))
            parts.append(_message(tag, short))
            copied = stop
    parts.append(bytes(data[copied:end]))
    return b"".join(parts)


def _constant_of(data: memoryview, begin: int, end: int) -> tuple[bytes, tuple[int, int]] | None:
    """The large tensor that a node Constant gives, as an initialiser without its content, and the place of that."""
    node = _single_fields(data, begin, end)
    if node is None or _INPUT in node or not {_OUTPUT, _OP_TYPE, _ATTRIBUTE} <= node.keys():
        return None
    output, op_type, domain = (bytes(_part(data, node.get(tag))) for tag in (_OUTPUT, _OP_TYPE, _DOMAIN))
    attribute = _single_fields(data, *node[_ATTRIBUTE])
    if op_type != b"Constant" or domain not in (b"", b"ai.onnx") or not output or attribute is None:
        return None
    if bytes(_part(data, attribute.get(_ATTRIBUTE_NAME))) != b"value" or _VALUE not in attribute:
        return None
    inner, stop = attribute[_VALUE]
    raw = _large_raw_data(data, inner, stop)
    if raw is None:
        return None
    cut, first, last = raw
    content = bytes(data[inner:cut]) + bytes(data[last:stop])
    return content + _message(_TENSOR_NAME, output), (first, last - first)


def _single_fields(data: memoryview, begin: int, end: int) -> dict[int, tuple[int, int]] | None:
    """Where the value of each field of a message lies, by its tag; None if it has one twice."""
    found: dict[int, tuple[int, int]] = {}
    for tag, _, inner, stop in _fields(data, begin, end):
        if tag in found:
            return None
        found[tag] = inner, stop
    return found


def _part(data: memoryview, place: tuple[int, int] | None) -> memoryview:
    """The part of the data; none of it for None."""
    return data[slice(*place)] if place else data[:0]


def _without_lists(data: memoryview, begin: int, end: int, places: dict[int, tuple[int, int, int, int]]) -> bytes:
    """The node without long lists; notes their places."""
    parts: list[bytes] = []
    number = 0
    for tag, start, inner, stop in _fields(data, begin, end):
        found = split(data, inner, stop) if tag == _ATTRIBUTE and stop - inner >= _LARGE else None
        if found is not None and found[1] >= _LARGE:
            short, count, nbytes = found
            places[number] = inner, stop, count, nbytes
            parts.append(_message(tag, short))
        else:
            parts.append(bytes(data[start:stop]))
        number += tag == _ATTRIBUTE
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
