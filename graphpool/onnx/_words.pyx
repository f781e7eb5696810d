"""Loops over texts: what is looked up for each, and how often sequences of them come."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from graphpool.runtime._ndarray cimport fields_of

import numpy as np


cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object table, object key) except? NULL


def are_texts(list items not None):
    """Whether each item is a ``str``."""
    for item in items:
        if not isinstance(item, str):
            return False
    return True


def places_of(list items not None, dict table not None, int64_t default):
    """The integer that a table has for each item, as an array of s64."""
    cdef Py_ssize_t number, count = len(items)
    cdef PyObject *found
    places = np.empty(count, np.int64)
    cdef int64_t *into = <int64_t *>fields_of(places).data
    for number in range(count):
        found = PyDict_GetItemWithError(table, items[number])
        into[number] = default if found == NULL else <int64_t><object>found
    return places


def mark(list items not None, dict table not None, Py_ssize_t width):
    """An array of f32 with a row of zeros for each item, and a one where the table says; how many ones there are.

    The table's integers are those of columns, of which there are `width`.
    """
    cdef Py_ssize_t number, column, count = len(items), nones = 0
    cdef PyObject *found
    rows = np.zeros((count, width), np.float32)
    cdef float *into = <float *>fields_of(rows).data
    for number in range(count):
        found = PyDict_GetItemWithError(table, items[number])
        if found != NULL:
            column = <Py_ssize_t><object>found
            if not 0 <= column < width:
                raise IndexError(column)
            into[number * width + column] = 1
            nones += 1
    return rows, nones


def filled_up(list rows not None, Py_ssize_t width, filler):
    """An array of objects with the items of lists as rows, filled up to a width."""
    cdef Py_ssize_t number, count, k
    cdef list row
    array = np.empty((len(rows), width), np.object_)
    cdef PyObject **into = <PyObject **>fields_of(array).data
    for number in range(len(rows)):
        row = rows[number]
        count = len(row)
        if count > width:
            raise IndexError(count)
        for k in range(count):
            _put(into + number * width + k, row[k])
        for k in range(count, width):
            _put(into + number * width + k, filler)
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
    """

    cdef dict _words
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

    def count(self, list rows not None, Py_ssize_t most_skipped):
        """How often each sequence comes in each row: an array of f32, of a row each and the columns.

        Words that follow one another may have as many between them, always the same number.
        """
        cdef Py_ssize_t number, count, k, longest_row = 0
        cdef list row
        for number in range(len(rows)):
            count = len(<list?>rows[number])
            longest_row = max(longest_row, count)
        counts = np.zeros((len(rows), self._width), np.float32)
        cdef float *into = <float *>fields_of(counts).data
        cdef int32_t *words = <int32_t *>malloc((longest_row + 1) * sizeof(int32_t))
        cdef PyObject *found
        if words == NULL:
            raise MemoryError()
        try:
            for number in range(len(rows)):
                row = rows[number]
                count = len(row)
                for k in range(count):
                    found = PyDict_GetItemWithError(self._words, row[k])
                    words[k] = -1 if found == NULL else <int32_t><object>found
                with nogil:
                    self._count_row(words, count, most_skipped, into + number * self._width)
        finally:
            free(words)
        return counts

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
