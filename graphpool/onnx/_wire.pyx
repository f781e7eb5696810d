"""Finds weights and long lists inside a serialised ONNX model, so that they can stay in the file or the buffer.

A protobuf parser copies every weight to the heap. This one walks the wire format of the messages around them and copies
all but the large weights and the long lists of attributes, which a mapped file or the caller's buffer then provides.
Source: "Encoding", the protocol buffers documentation; field numbers from onnx.proto.
"""

from libc.stdint cimport uint8_t, uint64_t

from ._fields cimport BYTES, VARINT, Field, next_field, read_varint

from ._lists import split

cdef enum:
    GRAPH = 7  # of ModelProto
    FUNCTION = 25
    NODE = 1  # of GraphProto
    INITIALIZER = 5
    INPUT = 1  # of NodeProto
    OUTPUT = 2
    OP_TYPE = 4
    ATTRIBUTE = 5
    DOMAIN = 7
    ATTRIBUTE_NAME = 1  # of AttributeProto
    VALUE = 5
    DATA_TYPE = 2  # of TensorProto
    FLOAT_DATA = 4
    TENSOR_NAME = 8
    RAW_DATA = 9
    DOUBLE_DATA = 10
    FLOAT = 1  # data types, of which two of these fields hold what raw_data would
    DOUBLE = 11

    LARGE = 1024

WHOLE_BYTES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20})
"""Data types whose elements are one or more bytes each."""

NIBBLES = frozenset({21, 22})
"""Data types of which two elements take a byte."""

cdef object _IS_RAW = WHOLE_BYTES | NIBBLES


cdef class Outline:
    """A ModelProto, serialised, without its large weights; `places` is number of the initialiser -> (offset, size).

    `lists` is number of the node -> number of its attribute -> (offset, end, elements, size of their texts) of an
    attribute whose long list is left out too; none in a model with functions, whose nodes get other numbers. Large are
    weights of 1,024 bytes, and lists of as many elements. Unit: bytes.
    """

    cdef readonly bytes model
    cdef readonly dict places, lists

    def __init__(self, bytes model not None):
        self.model, self.places, self.lists = model, {}, {}


def outline(const uint8_t[::1] data not None):
    """A serialised ModelProto without large weights and long lists, and where these lie.

    Large tensors of nodes Constant become initialisers.

    All of it where the data is no such message: its parser then says what is wrong. Cost: some 50 ns an initialiser and
    node; reads no page of a mapped weight.
    """
    cdef Outline found = Outline(b"")
    try:
        found.model = _outline(data, found)
    except ValueError:
        return Outline(bytes(data))
    return found


cdef bytes _outline(const uint8_t[::1] data, Outline found):
    cdef Field field
    cdef Py_ssize_t at = 0
    cdef bint has_functions = False, has_graph = False
    cdef list parts = []
    while at < data.shape[0]:
        _read(data, &at, data.shape[0], &field)
        has_functions = has_functions or _is(&field, FUNCTION)
    at = 0
    while at < data.shape[0]:
        _read(data, &at, data.shape[0], &field)
        if _is(&field, GRAPH) and not has_graph:  # a second one is merged into the first, behind its initialisers
            has_graph = True
            parts.append(_message(GRAPH, _graph(data, field.begin, field.end, found, not has_functions)))
        else:
            parts.append(_slice(data, field.start, field.end))
    return b"".join(parts)


cdef bytes _graph(const uint8_t[::1] data, Py_ssize_t begin, Py_ssize_t end, Outline found, bint has_lists):
    """The graph without large weights, nor, if `has_lists`, long lists; notes their places."""
    cdef Field field
    cdef Py_ssize_t at = begin, copied = begin
    cdef int ninitializers = 0, nnodes = 0, number
    cdef list parts = []
    cdef bytes short
    cdef bint is_large
    while at < end:
        _read(data, &at, end, &field)
        is_large, number, short = field.end - field.begin >= LARGE, INITIALIZER, None
        if _is(&field, INITIALIZER):
            place = _large_raw_data(data, field.begin, field.end) if is_large else None
            if place is not None:
                cut, first, last = place
                found.places[ninitializers] = first, last - first
                short = _slice(data, field.begin, cut) + _slice(data, last, field.end)
            ninitializers += 1
        elif _is(&field, NODE):
            tensor = _constant_of(data, field.begin, field.end) if is_large else None
            if tensor is not None:
                short, found.places[ninitializers] = tensor
                ninitializers += 1
            else:
                if is_large and has_lists:
                    number, short = NODE, _without_lists(data, &field, found.lists.setdefault(nnodes, {}))
                nnodes += 1
        if short is not None:
            parts.append(_slice(data, copied, field.start))
            parts.append(_message(number, short))
            copied = field.end
    parts.append(_slice(data, copied, end))
    return b"".join(parts)


cdef object _constant_of(const uint8_t[::1] data, Py_ssize_t begin, Py_ssize_t end):
    """The large tensor that a node Constant gives, as an initialiser without its content, and the place of that."""
    cdef dict node = _single_fields(data, begin, end), attribute
    if node is None or INPUT in node or OUTPUT not in node or ATTRIBUTE not in node:
        return None
    inner, stop = node[ATTRIBUTE]
    attribute, output = _single_fields(data, inner, stop), _part(data, node, OUTPUT)
    if _part(data, node, OP_TYPE) != b"Constant" or not output or attribute is None or VALUE not in attribute:
        return None
    if _part(data, node, DOMAIN) not in (b"", b"ai.onnx") or _part(data, attribute, ATTRIBUTE_NAME) != b"value":
        return None
    inner, stop = attribute[VALUE]
    place = _large_raw_data(data, inner, stop)
    if place is None:
        return None
    cut, first, last = place
    content = _slice(data, inner, cut) + _slice(data, last, stop)
    return content + _message(TENSOR_NAME, output), (first, last - first)


cdef dict _single_fields(const uint8_t[::1] data, Py_ssize_t begin, Py_ssize_t end):
    """Where the value of each field lies, by number if it has a length; None if a message has one twice."""
    cdef Field field
    cdef Py_ssize_t at = begin
    cdef dict found = {}
    cdef object key
    while at < end:
        _read(data, &at, end, &field)
        key = field.number
        if field.wire_type != BYTES:
            key = (key, field.wire_type)
        if key in found:
            return None
        found[key] = field.begin, field.end
    return found


cdef bytes _part(const uint8_t[::1] data, dict fields, int number):
    """The value of a field; none of it where there is no such field."""
    place = fields.get(number)
    return b"" if place is None else _slice(data, place[0], place[1])


cdef bytes _without_lists(const uint8_t[::1] data, Field *node, dict places):
    """The node without long lists; notes their places."""
    cdef Field field
    cdef Py_ssize_t at = node.begin
    cdef int number = 0
    cdef list parts = []
    while at < node.end:
        _read(data, &at, node.end, &field)
        found = None
        if _is(&field, ATTRIBUTE) and field.end - field.begin >= LARGE:
            found = split(data, field.begin, field.end)
        if found is not None and found[1] >= LARGE:
            short, count, nbytes = found
            places[number] = field.begin, field.end, count, nbytes
            parts.append(_message(ATTRIBUTE, short))
        else:
            parts.append(_slice(data, field.start, field.end))
        number += _is(&field, ATTRIBUTE)
    return b"".join(parts)


cdef object _large_raw_data(const uint8_t[::1] data, Py_ssize_t begin, Py_ssize_t end):
    """Start of the field, begin and end of the content of a tensor, if it is large and one field."""
    cdef Field field, content
    cdef Py_ssize_t at = begin
    cdef uint64_t data_type = 0
    cdef bint has_content = False
    content = Field(0, 0, 0, 0, 0)
    while at < end:
        _read(data, &at, end, &field)
        if field.wire_type == BYTES and field.number in (FLOAT_DATA, RAW_DATA, DOUBLE_DATA):
            if has_content:
                return None
            has_content, content = True, field
        elif field.number == DATA_TYPE and field.wire_type == VARINT:
            read_varint(&data[0], &field.begin, field.end, &data_type)
        elif 5 <= field.number <= 7 or field.number == 11:  # integers and strings
            return None
    if not has_content or content.end - content.begin < LARGE:
        return None
    if content.number == RAW_DATA:
        is_whole = data_type in _IS_RAW
    else:
        is_whole = data_type == (FLOAT if content.number == FLOAT_DATA else DOUBLE)
    return (content.start, content.begin, content.end) if is_whole else None


cdef int _read(const uint8_t[::1] data, Py_ssize_t *at, Py_ssize_t end, Field *field) except -1:
    """The field at a place in a message that ends within the data."""
    if not next_field(&data[0], at, end, field):
        raise ValueError("no message of protobuf")
    return 0


cdef inline bint _is(Field *field, uint64_t number) noexcept:
    """Whether it is the field of this number that has a length."""
    return field.number == number and field.wire_type == BYTES


cdef bytes _slice(const uint8_t[::1] data, Py_ssize_t begin, Py_ssize_t end):
    return (<const char *>&data[0])[begin:end] if begin < end else b""


cdef bytes _message(int number, bytes content):
    """A field that holds a message."""
    return _encoded(number << 3 | BYTES) + _encoded(len(content)) + content


cdef bytes _encoded(uint64_t value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
