"""Loops over texts: what is looked up for each, and how often sequences of them come."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from graphpool.runtime._ndarray cimport GP_C_CONTIGUOUS, fields_of, gp_array

from math import prod
from sys import getsizeof

import numpy as np
from numpy import ndarray

from graphpool.runtime.host_room import HostNeed, ValueBound


cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object table, object key) except? NULL


cdef object _OBJECTS = np.dtype(np.object_), _INTEGERS = np.dtype(np.int64)
cdef object _empty = np.empty

cdef enum:
    _LISTED_NBYTES = 8 + 32     # of a list with numbers or texts, for each


cdef Py_ssize_t _count(gp_array *array) noexcept:
    """How many elements it has."""
    cdef Py_ssize_t k, count = 1
    for k in range(array.nd):
        count *= array.dimensions[k]
    return count


cdef list _items(x):
    """The elements of an array in a list."""
    cdef PyObject **objects
    cdef Py_ssize_t k
    cdef gp_array *array
    if type(x) is not ndarray:
        x = np.asarray(x)
    array = fields_of(x)
    if not array.flags & GP_C_CONTIGUOUS:
        return list(x.flat) if array.descr == <PyObject *>_OBJECTS else [item.item() for item in x.flat]
    if array.descr != <PyObject *>_OBJECTS:
        return x.reshape(-1).tolist()
    objects = <PyObject **>array.data
    return [<object>objects[k] if objects[k] != NULL else None for k in range(_count(array))]


cdef object _need_of(result, count):
    """Of a function that makes a list of so many elements, and a result."""
    return HostNeed([result], result.nbytes, _LISTED_NBYTES * count)


cdef object _place_for(target, dtype, Py_ssize_t count):
    """The array that a function is given for its result, if elements of the type can be written there in order."""
    if type(target) is not ndarray:
        return None
    cdef gp_array *array = fields_of(target)
    if array.descr != <PyObject *>dtype and <object>array.descr != dtype:
        return None
    return target if _count(array) == count and array.flags & GP_C_CONTIGUOUS else None


cdef class TextFunction:
    """A host function of one input, which gives one output of a type.

    Parameters
    ----------
    place : int or None
        Of the input among those of a call.
    content : array
        The input where it has no place: it is known.
    dtype : dtype
        Of the output; None if it is not always the same.

    Attributes
    ----------
    nbytes : int
        Memory of its tables. Unit: bytes.
    """

    cdef Py_ssize_t _place
    cdef object _content
    cdef readonly object dtype
    cdef readonly int64_t nbytes
    gives_fresh = True

    def __call__(self, inputs, outputs):
        """The output alone; written to the array for it, where there is one."""
        x = self._content if self._place < 0 else inputs[self._place]
        return [self.apply(x, outputs[0] if outputs else None)]

    def bound(self, inputs, outputs):
        """As `HostFunction.bound`."""
        if self._place < 0:
            return self.need(ValueBound.of_array(self._content.shape, self._content.itemsize))
        value = inputs[self._place]
        return None if value is None or value.shape is None else self.need(value)

    cdef object place(self):
        """The first argument of all of them again."""
        return None if self._place < 0 else self._place

    cdef object apply(self, x, target):
        raise NotImplementedError

    cdef object need(self, value):
        """What it takes of an input as large as this; None where only a run tells."""
        return None

    cdef _settle(self, place, content, dtype):
        self._place, self._content = -1 if place is None else place, content
        self.dtype = None if dtype is None else np.dtype(dtype)


cdef class OneHot(TextFunction):
    """A row of f32 for each element, with a one where a table says.

    Parameters
    ----------
    place, content
    table : dict
        Element -> column; those that are missing get no one, or are an error unless `has_zeros`.
    width : int
        How many columns there are.
    has_zeros : bool
    """

    cdef dict _table
    cdef Py_ssize_t _width
    cdef bint _has_zeros
    cdef object _numbers, _columns  # those of the table in order, and their columns; None where some are no integers

    def __init__(self, place, content, dict table not None, Py_ssize_t width, bint has_zeros):
        self._settle(place, content, np.float32)
        self._table, self._width, self._has_zeros = table, width, has_zeros
        if not all(0 <= column < width for column in table.values()):
            raise IndexError("a column beyond the last one")
        self.nbytes = getsizeof(table) + sum(map(getsizeof, table))
        self._numbers = None
        if table and all(type(key) is int and -(2**63) <= key < 2**63 for key in table):
            self._numbers = np.array(sorted(table), np.int64)
            self._columns = np.array([table[key] for key in sorted(table)], np.int64)
            self.nbytes += self._numbers.nbytes + self._columns.nbytes

    def __reduce__(self):
        return OneHot, (self.place(), self._content, self._table, self._width, self._has_zeros)

    cdef object need(self, value):
        return _need_of(ValueBound.of_array((*value.shape, self._width), 4), prod(value.shape))

    cdef object apply(self, x, target):
        cdef bint are_integers = self._numbers is not None and type(x) is ndarray and x.dtype == _INTEGERS
        items = np.ascontiguousarray(x) if are_integers else _items(x)
        cdef Py_ssize_t count = _count(fields_of(items)) if are_integers else len(items)
        rows = _place_for(target, self.dtype, count * self._width)
        if rows is None:
            rows = _empty((*x.shape, self._width), self.dtype)
        cdef float *into = <float *>fields_of(rows).data
        memset(into, 0, count * self._width * sizeof(float))
        cdef Py_ssize_t nfound = self._mark_integers(items, into) if are_integers else self._mark(items, into)
        if nfound < count and not self._has_zeros:
            raise ValueError("an element that is none of the categories")
        return rows

    cdef Py_ssize_t _mark(self, list items, float *into) except -1:
        """Write the ones into rows of zeros; how many there are."""
        cdef Py_ssize_t number, nfound = 0
        cdef PyObject *found
        for number in range(len(items)):
            found = PyDict_GetItemWithError(self._table, items[number])
            if found != NULL:
                into[number * self._width + <Py_ssize_t><object>found] = 1
                nfound += 1
        return nfound

    cdef Py_ssize_t _mark_integers(self, x, float *into) except -1:
        """As `_mark`, without an object for each element."""
        cdef Py_ssize_t number, low, left, half, nfound = 0
        cdef Py_ssize_t nkeys = fields_of(self._numbers).dimensions[0]
        cdef const int64_t *keys = <const int64_t *>fields_of(self._numbers).data
        cdef const int64_t *columns = <const int64_t *>fields_of(self._columns).data
        cdef const int64_t *items = <const int64_t *>fields_of(x).data
        for number in range(_count(fields_of(x))):
            low, left = 0, nkeys
            while left > 1:     # the greatest key up to the element
                half = left // 2
                if keys[low + half] <= items[number]:
                    low += half
                left -= half
            if keys[low] == items[number]:
                into[number * self._width + columns[low]] = 1
                nfound += 1
        return nfound


cdef class Lookup(TextFunction):
    """The value of each element of an array.

    Parameters
    ----------
    place, content
    keys, values : sequence
        Side by side; the first of equal keys counts.
    default : object
        The value of what is no key.
    dtype : dtype
        Of the values.
    """

    cdef dict _places
    cdef Py_ssize_t _of_nan, _itemsize
    cdef object _values
    cdef list _objects

    def __init__(self, place, content, keys, values, default, dtype):
        self._settle(place, content, dtype)
        self._places = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
        self._of_nan = next((number for number, key in enumerate(keys) if key != key), len(keys))
        self._values = np.array([*values, default], self.dtype)
        self._itemsize = self._values.itemsize
        self._objects = [*values, default] if self.dtype.hasobject else None
        self.nbytes = getsizeof(self._places) + sum(map(getsizeof, keys)) + self._values.nbytes
        if self._objects is not None:
            self.nbytes += getsizeof(self._objects) + sum(map(getsizeof, self._objects))

    cdef object need(self, value):
        return _need_of(ValueBound.of_array(value.shape, self._itemsize), prod(value.shape))

    cdef object apply(self, x, target):
        cdef list items = _items(x)
        cdef Py_ssize_t number, at, count = len(items), last = fields_of(self._values).dimensions[0] - 1
        cdef const char *values = fields_of(self._values).data
        cdef char *into
        cdef PyObject *found
        result = None if self._objects is not None else _place_for(target, self.dtype, count)
        if result is None:
            result = _empty(x.shape, self.dtype)
        into = fields_of(result).data
        for number in range(count):
            item = items[number]
            found = PyDict_GetItemWithError(self._places, item)
            if found != NULL:
                at = <Py_ssize_t><object>found
            else:
                at = self._of_nan if type(item) is float and item != item else last
            if self._objects is None:
                memcpy(into + number * self._itemsize, values + at * self._itemsize, self._itemsize)
            else:
                _put(<PyObject **>into + number, self._objects[at])
        return result


cdef class Either(TextFunction):
    """Texts as numbers, or numbers as texts, as what it is given says.

    Parameters
    ----------
    place, content
    there, back : Lookup
        Of texts, and of numbers.
    """

    cdef Lookup _there, _back

    def __init__(self, place, content, Lookup there not None, Lookup back not None):
        self._settle(place, content, None)
        self._there, self._back, self.nbytes = there, back, there.nbytes + back.nbytes

    cdef object apply(self, x, target):
        return (self._there if x.dtype.kind in "OU" else self._back).apply(x, target)

    cdef object need(self, value):
        return self._there.need(value)    # both take as much


cdef class Pick(TextFunction):
    """The items of a list at the places that an array of integers says; negative ones count from its end.

    Parameters
    ----------
    place, content
    items : list
    """

    cdef list _from

    def __init__(self, place, content, list items not None):
        self._settle(place, content, _OBJECTS)
        self._from, self.nbytes = items, getsizeof(items)

    cdef object need(self, value):
        return _need_of(ValueBound.of_array(value.shape, sizeof(PyObject *)), prod(value.shape))

    cdef object apply(self, x, target):
        cdef list places = _items(x)
        cdef Py_ssize_t k, at, count = len(self._from)
        for k in range(len(places)):
            at = places[k]
            at += count if at < 0 else 0
            if not 0 <= at < count:
                raise IndexError(f"index {places[k]} of {count} items")
            places[k] = self._from[at]
        return texts_of(places, x.shape)


cdef class Maps(TextFunction):
    """A map from keys to the elements of each row of an array, in a list.

    Parameters
    ----------
    place, content
    keys : list
    """

    cdef list _keys
    cdef dict _empty

    def __init__(self, place, content, list keys not None):
        self._settle(place, content, _OBJECTS)
        self._keys, self._empty = keys, dict.fromkeys(keys)
        self.nbytes = getsizeof(self._empty) + sum(map(getsizeof, keys))

    def __reduce__(self):
        return Maps, (self.place(), self._content, self._keys)

    cdef object need(self, value):
        nrows, width = prod(value.shape) // max(len(self._keys), 1), len(self._keys)
        return HostNeed([None], 0, nrows * (64 + getsizeof(self._empty) + width * _LISTED_NBYTES))

    cdef object apply(self, x, target):
        cdef Py_ssize_t k, at, width = len(self._keys)
        cdef list items = _items(x), keys = self._keys, found = []
        cdef dict row
        if x.shape[-1] != width:
            raise ValueError(f"{x.shape[-1]} scores in a row for {width} labels")
        for at in range(0, len(items), max(width, 1)):
            row = self._empty.copy()
            for k in range(width):
                row[keys[k]] = items[at + k]
            found.append(row)
        return found


def texts_of(list items not None, shape):
    """An array of objects of a shape, which has as many elements."""
    cdef Py_ssize_t number, count = len(items)
    array = _empty(shape, _OBJECTS)
    if array.size != count:
        raise IndexError(count)
    cdef PyObject **into = <PyObject **>fields_of(array).data
    for number in range(count):
        _put(into + number, items[number])
    return array


cdef class Normaliser(TextFunction):
    """Texts but for stop words, in one case; one empty text where none is left.

    Parameters
    ----------
    place, content
    case : callable or None
        What gives a text its case.
    stop : frozenset of str
        Stop words, lower ones unless `is_sensitive`.
    is_sensitive : bool
    """

    makes_texts = True
    cdef object _case
    cdef frozenset _stop
    cdef bint _is_sensitive

    def __init__(self, place, content, case, frozenset stop not None, bint is_sensitive):
        self._settle(place, content, _OBJECTS)
        self._case, self._stop, self._is_sensitive = case, stop, is_sensitive

    cdef object apply(self, x, target):
        cdef list items = _items(x)
        shape = x.shape
        if self._stop:
            items = [item for item in items if (item if self._is_sensitive else item.lower()) not in self._stop] or [""]
            shape = (1,) * (x.ndim != 1) + (len(items),)
        if self._case is not None:
            items = [self._case(item) for item in items]
        return texts_of(items, shape)


cdef class Words(TextFunction):
    """The words of each text along a new last axis, which has room for those of the longest.

    Parameters
    ----------
    place, content
    split : callable
        Takes texts in a list; of each the words, in lists.
    is_marked : bool
        Whether a mark stands before and behind the words.
    filler : str
        What stands behind the words of shorter texts.
    """

    makes_texts = True
    cdef object _split, _filler
    cdef bint _is_marked

    def __init__(self, place, content, split, bint is_marked, filler):
        self._settle(place, content, _OBJECTS)
        self._split, self._is_marked, self._filler = split, is_marked, filler

    cdef object apply(self, x, target):
        cdef list rows = self._split(_items(x)), row
        cdef Py_ssize_t number, count, k, width = 0
        if self._is_marked:
            rows = [["\x02", *row, "\x03"] for row in rows]
        for row in rows:
            width = max(width, len(row))
        array = _empty((*x.shape, width), _OBJECTS)
        if array.size != len(rows) * width:
            raise IndexError(len(rows))
        cdef PyObject **into = <PyObject **>fields_of(array).data
        for number in range(len(rows)):
            row = rows[number]
            count = len(row)
            for k in range(count):
                _put(into + number * width + k, row[k])
            for k in range(count, width):
                _put(into + number * width + k, self._filler)
        return array


cdef inline void _put(PyObject **at, object item) noexcept:
    cdef PyObject *before = at[0]
    Py_INCREF(item)
    at[0] = <PyObject *>item
    Py_XDECREF(before)


cdef struct Branch:
    uint64_t key    # the node of a tree that is left, and a word, plus 1; 0 where there is none
    int32_t node


cdef class Sequences:
    """A tree of sequences of words, each with a column. Threads may share it.

    Parameters
    ----------
    items : sequence of (sequence of word, int)
        Sequences, none of them empty, and their columns; a later one takes the place of an equal one.
    width : int
        How many columns there are.

    Attributes
    ----------
    nbytes : int
        Memory of the tree. Unit: bytes.
    """

    cdef dict _words
    cdef readonly int64_t nbytes
    cdef Branch *_branches
    cdef uint64_t _mask
    cdef int32_t *_columns     # of nodes; -1 for those at which no sequence ends
    cdef Py_ssize_t _nnodes, _longest, _width

    def __cinit__(self, items, Py_ssize_t width):
        cdef Py_ssize_t nwords = sum([len(words) for words, _ in items]), size = 16
        self._words, self._width = {}, width
        for words, _ in items:
            self._longest = max(self._longest, len(words))
            for word in words:
                self._words.setdefault(word, len(self._words))
        self._nnodes = len(self._words)    # those of single words come first
        if width > 2**31 - 1 or nwords + self._nnodes > 2**31 - 1:
            raise ValueError("more sequences than can be counted")
        while size < 2 * nwords:
            size *= 2
        self._mask = size - 1
        self._branches = <Branch *>calloc(size, sizeof(Branch))
        self._columns = <int32_t *>malloc((nwords + self._nnodes + 1) * sizeof(int32_t))
        if self._branches == NULL or self._columns == NULL:
            raise MemoryError()
        memset(self._columns, -1, (nwords + self._nnodes + 1) * sizeof(int32_t))
        for words, column in items:
            if not 0 <= column < width:
                raise ValueError(f"column {column} of {width}")
            self._columns[self._enter(words)] = column
        self.nbytes = size * sizeof(Branch) + (nwords + self._nnodes + 1) * sizeof(int32_t)
        self.nbytes += getsizeof(self._words) + sum(map(getsizeof, self._words))

    def __dealloc__(self):
        free(self._branches)
        free(self._columns)

    cdef Py_ssize_t _enter(self, words) except -1:
        """The node of a sequence, made if need be."""
        cdef Py_ssize_t node = -1, word
        cdef Branch *branch
        for item in words:
            word = self._words[item]
            if node < 0:
                node = word
                continue
            branch = self._branch(node, word)
            if branch.key == 0:
                branch.key, branch.node = _key(node, word), self._nnodes
                self._nnodes += 1
            node = branch.node
        return node

    cdef Branch *_branch(self, Py_ssize_t node, Py_ssize_t word) noexcept nogil:
        """Where the branch of a node by a word is, or would be."""
        cdef uint64_t key = _key(node, word), at = (key * <uint64_t>0x9E3779B97F4A7C15) >> 20
        while True:
            at &= self._mask
            if self._branches[at].key in (0, key):
                return self._branches + at
            at += 1

    cdef int count(self, list items, Py_ssize_t nwords, Py_ssize_t most_skipped, float *into) except -1:
        """Add how often each sequence comes in each row of so many words to the columns of that row.

        Words that follow one another may have as many between them, always the same number.
        """
        cdef Py_ssize_t number, k, nrows = len(items) // max(nwords, 1)
        cdef int32_t *words = <int32_t *>malloc((nwords + 1) * sizeof(int32_t))
        cdef PyObject *found
        if words == NULL:
            raise MemoryError()
        try:
            for number in range(nrows):
                for k in range(nwords):
                    found = PyDict_GetItemWithError(self._words, items[number * nwords + k])
                    words[k] = -1 if found == NULL else <int32_t><object>found
                with nogil:
                    self._count_row(words, nwords, most_skipped, into + number * self._width)
        finally:
            free(words)
        return 0

    cdef void _count_row(self, int32_t *words, Py_ssize_t count, Py_ssize_t most_skipped, float *into) noexcept nogil:
        cdef Py_ssize_t begin, step, at, node
        cdef Branch *branch
        for begin in range(count):
            node = words[begin]
            if node < 0:
                continue
            if self._columns[node] >= 0:
                into[self._columns[node]] += 1
            for step in range(1, min(most_skipped, count) + 2 if self._longest > 1 else 1):
                node, at = words[begin], begin + step
                for _ in range(1, self._longest):
                    if at >= count or words[at] < 0:
                        break
                    branch = self._branch(node, words[at])
                    if branch.key == 0:
                        break
                    node, at = branch.node, at + step
                    if self._columns[node] >= 0:
                        into[self._columns[node]] += 1


cdef inline uint64_t _key(Py_ssize_t node, Py_ssize_t word) noexcept nogil:
    return ((<uint64_t>node << 32) | <uint64_t>word) + 1


cdef class Counts(TextFunction):
    """How often each of a pool of sequences comes in each row of an array, by weight.

    Parameters
    ----------
    place, content
    sequences : Sequences
    most_skipped : int
        Words that may be between two of a sequence.
    weights : array of f32
        Of each column of `sequences`.
    are_flags : bool
        Whether a sequence that comes more than once counts once.
    spend : callable or None
        Told how many words will be read again for sequences, before they are.
    """

    cdef Sequences _sequences
    cdef Py_ssize_t _most_skipped, _width
    cdef object _weights, _spend
    cdef bint _are_flags

    def __init__(self, place, content, Sequences sequences not None, most_skipped, weights, bint are_flags, spend):
        self._settle(place, content, np.float32)
        self._sequences, self._most_skipped, self._width = sequences, most_skipped, sequences._width
        self._weights = np.ascontiguousarray(weights, np.float32)
        self._are_flags, self._spend = are_flags, spend
        if self._weights.shape != (self._width,):
            raise ValueError(f"{self._weights.shape} weights for {self._width} columns")
        self.nbytes = sequences.nbytes + self._weights.nbytes

    cdef object need(self, value):
        return _need_of(ValueBound.of_array((*value.shape[:-1], self._width), 4), prod(value.shape))

    cdef object apply(self, x, target):
        cdef list items = _items(x)
        cdef Py_ssize_t nwords = x.shape[-1] if items else 0
        cdef Py_ssize_t nrows = len(items) // nwords if items else len(x) if x.ndim > 1 else 1
        cdef Py_ssize_t k
        counts = _place_for(target, self.dtype, nrows * self._width)
        if counts is None:
            counts = _empty((nrows,) * (x.ndim > 1) + (self._width,), self.dtype)
        if self._spend is not None:
            self._spend((self._sequences._longest - 1) * len(items) * (1 + min(self._most_skipped, nwords)))
        cdef float *into = <float *>fields_of(counts).data
        cdef const float *weights = <const float *>fields_of(self._weights).data
        memset(into, 0, nrows * self._width * sizeof(float))
        self._sequences.count(items, nwords, self._most_skipped, into)
        for _ in range(nrows):
            for k in range(self._width):
                if self._are_flags:
                    into[k] = weights[k] if into[k] > 0 else 0
                else:
                    into[k] *= weights[k]
            into += self._width
        return counts
