"""Structs of C as bytes, such as parameter blocks: their numbers, in place."""

import math
from functools import cache
from operator import itemgetter
from sys import intern

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.number cimport PyNumber_Index
from libc.stdint cimport INT32_MAX, INT32_MIN, UINT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from graphpool._sizes cimport Real, Size

from graphpool._sizes import hint_of

from ._dispatch import describe

cdef dict _NUMBERS = {
    "int32_t": ("i", 4), "uint32_t": ("I", 4), "int64_t": ("q", 8), "uint64_t": ("Q", 8), "float": ("f", 4),
    "double": ("d", 8),
}
cdef object _PLACE = itemgetter(0)

cdef struct Number:
    int32_t offset, nbytes
    char letter  # of the module `struct`


cdef class Block:
    """The bytes of a struct of which some numbers vary.

    Attributes
    ----------
    data : bytes
        With the values that the numbers have now.
    patches : tuple of (int, str, Size or Real)
        Of each number that varies its offset in bytes, its letter for `struct`, and what it is.
    """

    cdef readonly bytes data
    cdef readonly tuple patches

    def __init__(self, bytes data not None, tuple patches not None):
        self.data = data
        self.patches = patches

    def __add__(self, other):
        return join_blocks([self, other])

    def __radd__(self, other):
        return join_blocks([other, self])

    def __len__(self):
        return len(self.data)


def join_blocks(blocks):
    """Blocks one behind the other: bytes where nothing varies, else a `Block`."""
    cdef list parts = [], patches = []
    cdef Py_ssize_t end = 0
    for block in blocks:
        if type(block) is Block:
            for offset, letter, size in (<Block>block).patches:
                patches.append((end + offset, letter, size))
            block = (<Block>block).data
        parts.append(block)
        end += len(block)
    data = b"".join(parts)
    return Block(data, tuple(patches)) if patches else data


cdef struct Slot:  # where a field has its numbers: the first of them, how many to a row, all, and how many axes
    Py_ssize_t start, pitch, count, naxes


cdef class Record:
    """A C struct with the alignment that compilers give it; immutable. Cost: about 10 ns a field.

    `fields` are what C declares: numbers, arrays of numbers with one axis or two, and structs that `record` knows.

    >>> from graphpool._kernels.core.records import Record
    >>> Record("int32_t n, sizes[3];").pack({"n": 1, "sizes": [2]}).hex()
    '01000000020000000000000000000000'
    """

    cdef readonly Py_ssize_t nbytes
    cdef Py_ssize_t _alignment, _count
    cdef dict _fields  # name -> number of the field
    cdef list _inners  # the struct of each field, None for numbers
    cdef Slot *_slots
    cdef Number *_numbers

    def __init__(self, str fields not None):
        cdef Record inner
        cdef Slot *slot
        cdef Py_ssize_t alignment, nbytes
        cdef list listed = _declared(fields)
        if self._numbers is not NULL:
            raise TypeError("a record is made once")
        self._fields = {}
        self.nbytes, self._alignment = 0, 1
        self._inners = [None if kind in _NUMBERS else record(kind) for kind, _, _ in listed]
        self._slots = <Slot *>calloc(len(listed) or 1, sizeof(Slot))
        self._numbers = <Number *>calloc(sum([math.prod(shape) for _, _, shape in listed]) or 1, sizeof(Number))
        if self._slots is NULL or self._numbers is NULL:
            raise MemoryError
        for (kind, name, shape), inner in zip(listed, self._inners):
            letter, nbytes = ("s", inner.nbytes) if inner is not None else _NUMBERS[kind]
            alignment = inner._alignment if inner is not None else nbytes
            self.nbytes += -self.nbytes % alignment
            slot = &self._slots[len(self._fields)]
            slot.start, slot.count, slot.naxes = self._count, math.prod(shape), len(shape)
            slot.pitch = shape[-1] if shape else 1
            self._fields[intern(name)] = len(self._fields)  # as they stand in the code that packs
            for _ in range(slot.count):
                self._numbers[self._count] = Number(self.nbytes, nbytes, <char>ord(letter))
                self.nbytes += nbytes
                self._count += 1
            self._alignment = max(self._alignment, alignment)
        self.nbytes += -self.nbytes % self._alignment

    def __dealloc__(self):
        free(self._slots)
        free(self._numbers)

    def pack(self, dict values not None):
        """The struct with these values as bytes, a `Block` where some vary; what is missing is zero, also in arrays.

        By field: mappings for structs, sequences for arrays. Floats beyond the range of f32 become infinite. KeyError:
        there is no such field; ValueError: it has no room for so many numbers, or for one of this size.
        """
        cdef Slot *slot
        cdef Py_ssize_t number, at, end
        cdef Record inner
        cdef list patches = []
        cdef bytes data = _zeros(self.nbytes)
        cdef char *out = PyBytes_AS_STRING(data)
        for name, value in values.items():
            number = self._fields[name]
            slot = &self._slots[number]
            at = slot.start
            if slot.naxes == 0:
                inner = self._inners[number]
                _put(out, &self._numbers[at], value if inner is None else inner.pack(value), patches)
                continue
            end = at + slot.count
            for row in value if slot.naxes > 1 else (value,):
                if len(row) > slot.pitch or at >= end:
                    raise ValueError(f"{name}: {len(row)} numbers in a row of {slot.pitch}, of {slot.count} in all")
                _put_row(out, &self._numbers[at], slot.pitch, row, patches)
                at += slot.pitch
        return _block(data, patches)

    def pack_rows(self, rows):
        """Structs one behind the other, each from all its numbers in order; floats as in `pack`."""
        return join_blocks([self._pack_row(row) for row in rows])

    def read(self, bytes block not None, str name not None):
        """The number of a field of a struct's bytes."""
        cdef Number *place = &self._numbers[self._slots[<Py_ssize_t>self._fields[name]].start]
        cdef const char *at = PyBytes_AS_STRING(block) + place.offset
        if place.offset + place.nbytes > PyBytes_GET_SIZE(block):
            raise ValueError(f"{name}: behind the end of a block of {len(block)} bytes")
        if place.letter == b"i":
            return (<int32_t *>at)[0]
        if place.letter == b"I":
            return (<uint32_t *>at)[0]
        if place.letter == b"q":
            return (<int64_t *>at)[0]
        if place.letter == b"Q":
            return (<uint64_t *>at)[0]
        if place.letter == b"f":
            return (<float *>at)[0]
        return (<double *>at)[0] if place.letter == b"d" else at[:place.nbytes]

    def place_of(self, str name not None):
        """Where a field begins; None where there is none of that name. Unit: bytes."""
        number = self._fields.get(name)
        return None if number is None else self._numbers[self._slots[<Py_ssize_t>number].start].offset

    cdef object _pack_row(self, row):
        cdef list patches = []
        cdef bytes data = _zeros(self.nbytes)
        if len(row) != self._count:
            raise ValueError(f"{len(row)} numbers for a struct of {self._count}")
        _put_row(PyBytes_AS_STRING(data), self._numbers, self._count, row, patches)
        return _block(data, patches)


@cache
def record(name):
    """The C struct of that name (``GP_RECORD``); KeyError where there is none."""
    fields, nbytes = describe(name)
    found = Record(fields)
    if found.nbytes != nbytes:
        raise AssertionError(f"{name}: struct of {nbytes} bytes, read as {found.nbytes} from {fields}")
    return found


cdef list _declared(str fields):
    """Type, name and sizes of each field of a C struct."""
    found = []
    for declaration in fields.strip("{} ").split(";")[:-1]:
        kind, declarators = declaration.split(None, 1)
        for declarator in declarators.split(","):
            name, *sizes = declarator.replace("]", "").split("[")
            found.append((kind, name.strip(), tuple([int(size) for size in sizes])))
    return found


cdef bytes _zeros(Py_ssize_t nbytes):
    """Bytes that nobody else has seen yet."""
    data = PyBytes_FromStringAndSize(NULL, nbytes)
    memset(PyBytes_AS_STRING(data), 0, nbytes)
    return data


cdef object _block(bytes data, list patches):
    """The bytes, with what varies in them in the order in which it lies there."""
    if not patches:
        return data
    patches.sort(key=_PLACE)
    return Block(data, tuple(patches))


cdef int _put_row(char *out, Number *place, Py_ssize_t room, object row, list patches) except -1:
    """Write numbers into places that follow each other."""
    cdef Py_ssize_t k = 0
    for number in row:
        if k >= room:
            raise ValueError(f"more numbers than {room}")
        _put(out, &place[k], number, patches)
        k += 1
    return 0


cdef int _put(char *out, Number *place, object number, list patches) except -1:
    """Write a number as it is now; `patches` is extended if it varies."""
    cdef char letter = place.letter
    cdef object kind = type(number)
    if letter == b"s":
        if kind is Block:
            for offset, inner, size in (<Block>number).patches:
                patches.append((place.offset + offset, inner, size))
            number = (<Block>number).data
        if len(<bytes?>number) != place.nbytes:
            raise ValueError(f"{len(number)} bytes for a struct of {place.nbytes}")
        memcpy(out + place.offset, PyBytes_AS_STRING(number), place.nbytes)
        return 0
    if kind is Size or (kind is Real and (letter == b"f" or letter == b"d")):
        patches.append((place.offset, chr(letter), number))
        number = hint_of(number)
    _write(out + place.offset, letter, number)
    return 0


cdef int _write(char *out, char letter, object number) except -1:
    """Write a number; ValueError where its type has no room for it."""
    cdef int64_t whole
    if letter == b"f":
        (<float *>out)[0] = <float><double>number
        return 0
    if letter == b"d":
        (<double *>out)[0] = number
        return 0
    if type(number) is not int:
        number = PyNumber_Index(number)
    try:
        if letter == b"Q":
            (<uint64_t *>out)[0] = number
            return 0
        whole = number
    except OverflowError:
        raise _no_room(number, letter) from None
    if letter == b"q":
        (<int64_t *>out)[0] = whole
    elif letter == b"i":
        if not INT32_MIN <= whole <= INT32_MAX:
            raise _no_room(number, letter)
        (<int32_t *>out)[0] = <int32_t>whole
    else:
        if not 0 <= whole <= <int64_t>UINT32_MAX:
            raise _no_room(number, letter)
        (<uint32_t *>out)[0] = <uint32_t>whole
    return 0


cdef object _no_room(object number, char letter):
    return ValueError(f"{number} has no room in a number of type {chr(letter)!r}")
