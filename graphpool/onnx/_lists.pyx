"""Long lists of attributes of nodes, read from the wire format of protobuf without its objects or Python's.

A field that holds a list of numbers stands in a file once for each number, or once for all of them.
Source: "Encoding", the protocol buffers documentation; field numbers of AttributeProto from onnx.proto.
"""

from array import array

from cpython cimport array as carray
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from ._fields cimport BYTES, FIXED32, VARINT, Field, next_field, read_varint

cdef enum:
    NAME = 1
    FLOATS = 7
    INTS = 8
    STRINGS = 9
    DOC_STRING = 13
    TYPE = 20
    REF_ATTR_NAME = 21

    TYPE_OF_FLOATS = 6  # of AttributeType, and those of integers and texts behind it
    MOST_OTHERS = 64

cdef Py_ssize_t _count_of(const uint8_t *data, Field *field) noexcept nogil:
    """How many elements of a list a field holds; 0 for one of no list, -1 for a list that is none."""
    cdef Py_ssize_t k, count = 0
    if field.number == STRINGS and field.wire_type == BYTES:
        return 1
    if field.number == FLOATS and field.wire_type == FIXED32 or field.number == INTS and field.wire_type == VARINT:
        return 1
    if field.number == FLOATS and field.wire_type == BYTES:
        return (field.end - field.begin) // 4 if (field.end - field.begin) % 4 == 0 else -1
    if field.number == INTS and field.wire_type == BYTES:
        for k in range(field.begin, field.end):
            count += data[k] < 128
        return count if field.end == field.begin or data[field.end - 1] < 128 else -1
    return 0


def split(const uint8_t[::1] data not None, Py_ssize_t begin, Py_ssize_t end):
    """An AttributeProto without its list: what is left of it, how many elements were there, and bytes of their texts.

    None where it has no list, or something beside one, is of another type, or is no such message: the parser is to see
    all of that. `begin` and `end` are where the message lies in `data`. Cost: a few nanoseconds an element.
    """
    cdef Field field
    cdef bint is_type
    cdef Py_ssize_t at = begin, found, count = 0, nbytes = 0
    cdef uint64_t kind = 0, type_ = 0
    cdef const uint8_t *source = &data[0] if data.shape[0] else NULL
    parts = []
    if not 0 <= begin <= end <= data.shape[0]:
        raise ValueError("no part of the data")
    while at < end:
        if not next_field(source, &at, end, &field):
            return None
        found = _count_of(source, &field)
        if found < 0:
            return None
        if found == 0 and (field.number < FLOATS or field.number > STRINGS or field.wire_type != BYTES):
            if field.number not in (NAME, DOC_STRING, TYPE, REF_ATTR_NAME):
                return None
            is_type = field.number == TYPE
            if is_type and (field.wire_type != VARINT or not read_varint(source, &field.begin, end, &type_)):
                return None
            parts.append(data[field.start : field.end])
            if len(parts) > MOST_OTHERS:
                return None
            continue
        if kind not in (0, field.number):
            return None
        kind = field.number
        count += found
        nbytes += field.end - field.begin if kind == STRINGS else 0
    if count == 0 or type_ != kind - FLOATS + TYPE_OF_FLOATS:
        return None
    return b"".join(parts), count, nbytes


cdef class _Walk:
    """Goes over the fields of one list in an AttributeProto."""

    cdef const uint8_t[::1] view
    cdef const uint8_t *data
    cdef Py_ssize_t at, end
    cdef Field field

    def __cinit__(self, const uint8_t[::1] view not None):
        self.view, self.end = view, view.shape[0]
        self.data = &view[0] if self.end else NULL

    cdef bint next(self, uint64_t number) except -1:
        while self.at < self.end:
            if not next_field(self.data, &self.at, self.end, &self.field):
                raise ValueError("a list that is no message of protobuf")
            if self.field.number == number and _count_of(self.data, &self.field) > 0:
                return True
        return False


def read_floats(const uint8_t[::1] data not None, Py_ssize_t count):
    """The `count` elements of the list of floats of an AttributeProto, as an `array` of type f.

    Raises ValueError where there are others. Cost: a pass over the message.
    """
    cdef carray.array found = carray.clone(array("f"), count, False)
    cdef _Walk walk = _Walk(data)
    cdef Py_ssize_t done = 0, nbytes
    while walk.next(FLOATS):
        nbytes = walk.field.end - walk.field.begin
        if done + nbytes // 4 > count:
            raise ValueError("more elements than were counted")
        memcpy(found.data.as_floats + done, walk.data + walk.field.begin, nbytes)
        done += nbytes // 4
    if done != count:
        raise ValueError("fewer elements than were counted")
    return found


def read_ints(const uint8_t[::1] data not None, Py_ssize_t count):
    """The `count` elements of the list of integers of an AttributeProto: an `array` of type i if they fit, else q.

    Raises ValueError where there are others. Cost: a pass over the message, or two.
    """
    narrow = carray.clone(array("i"), count, False)
    if _fill_ints(data, narrow, count, True):
        return narrow
    del narrow
    wide = carray.clone(array("q"), count, False)
    _fill_ints(data, wide, count, False)
    return wide


cdef bint _fill_ints(const uint8_t[::1] data, carray.array found, Py_ssize_t count, bint is_narrow) except -1:
    """Fill an array; 0 where an element does not fit."""
    cdef _Walk walk = _Walk(data)
    cdef Py_ssize_t done = 0, at
    cdef uint64_t value
    while walk.next(INTS):
        at = walk.field.begin
        while at < walk.field.end:
            if done == count or not read_varint(walk.data, &at, walk.field.end, &value):
                raise ValueError("more elements than were counted, or a number of more than ten bytes")
            if not is_narrow:
                found.data.as_longlongs[done] = <int64_t>value
            elif <int64_t>value != <int32_t><int64_t>value:
                return False
            else:
                found.data.as_ints[done] = <int32_t><int64_t>value
            done += 1
    if done != count:
        raise ValueError("fewer elements than were counted")
    return True


def read_texts(const uint8_t[::1] data not None, Py_ssize_t count):
    """The `count` elements of the list of texts of an AttributeProto, as a list of bytes."""
    cdef _Walk walk = _Walk(data)
    found = []
    while walk.next(STRINGS):
        found.append(<bytes>(<char *>walk.data)[walk.field.begin : walk.field.end])
    if len(found) != count:
        raise ValueError("other elements than were counted")
    return found


def read_choices(const uint8_t[::1] data not None, Py_ssize_t count, tuple choices not None):
    """The same list as places in `choices`, fewer than 256 bytes: an `array` of type B.

    Raises LookupError, which has the text, for one that is none of them, and ValueError as the others.
    """
    cdef carray.array found = carray.clone(array("B"), count, False)
    cdef _Walk walk = _Walk(data)
    cdef Py_ssize_t done = 0, nbytes
    cdef int k, nchoices = min(len(choices), 255)
    cdef bytes choice
    while walk.next(STRINGS):
        nbytes = walk.field.end - walk.field.begin
        if done == count:
            raise ValueError("more elements than were counted")
        for k in range(nchoices):
            choice = choices[k]
            if len(choice) == nbytes and memcmp(<char *>choice, walk.data + walk.field.begin, nbytes) == 0:
                break
        else:
            raise LookupError(<bytes>(<char *>walk.data)[walk.field.begin : walk.field.end])
        found.data.as_uchars[done] = k
        done += 1
    if done != count:
        raise ValueError("fewer elements than were counted")
    return found
