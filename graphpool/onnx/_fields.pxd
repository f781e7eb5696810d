"""Fields of messages in the wire format of protobuf.

Source: "Encoding", the protocol buffers documentation.
"""

from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5

cdef struct Field:
    uint64_t number
    int wire_type
    Py_ssize_t start, begin, end


cdef inline bint read_varint(const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, uint64_t *value) noexcept nogil:
    """Read a number of seven bits a byte, lowest first; 0 where there is none."""
    cdef int shift = 0
    value[0] = 0
    while at[0] < end and shift < 70:
        value[0] |= <uint64_t>(data[at[0]] & 127) << shift if shift < 64 else 0
        at[0] += 1
        if data[at[0] - 1] < 128:
            return True
        shift += 7
    return False


cdef inline bint next_field(const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, Field *found) noexcept nogil:
    """Read the tag of a field, and where its value lies, and go behind it; 0 where there is no such field."""
    cdef uint64_t value
    found.start = at[0]
    if not read_varint(data, at, end, &value):
        return False
    found.number, found.wire_type = value >> 3, value & 7
    found.begin = at[0]
    if found.wire_type == VARINT:
        if not read_varint(data, at, end, &value):
            return False
    elif found.wire_type == BYTES:
        if not read_varint(data, at, end, &value) or value > <uint64_t>(end - at[0]):
            return False
        found.begin = at[0]
        at[0] += <Py_ssize_t>value
    elif found.wire_type == FIXED32 or found.wire_type == FIXED64:
        value = 4 if found.wire_type == FIXED32 else 8
        if <Py_ssize_t>value > end - at[0]:
            return False
        at[0] += <Py_ssize_t>value
    else:
        return False
    found.end = at[0]
    return True
