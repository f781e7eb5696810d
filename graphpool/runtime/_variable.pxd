from libc.stdint cimport int32_t, int64_t

from graphpool._size_program cimport Numbers, SizeValues

from ._program cimport Program


cdef struct Patch:
    int64_t place       # in the parameter blocks
    int32_t letter      # for `struct`
    int32_t term
    bint is_real


cdef struct Moved:
    int64_t number      # of the argument
    int64_t home        # temporary in which it lies, or NONE
    int64_t offset      # the part that does not vary
    int64_t term        # the part that does, or NONE
    int64_t stride      # bytes to where it lies in the next trip of a loop, and their term, or NONE
    int64_t stride_term


cdef struct Varied:
    int64_t number      # of the step
    int64_t tasks       # term of its tasks, or NONE
    int64_t block       # where its parameter block lies, or NONE: the original's
    int64_t home        # temporary that is its scratch, or NONE
    int64_t stride      # term of the scratch of a thread, or NONE


cdef class VariableProgram:
    cdef readonly Program program
    cdef Patch *patches
    cdef Moved *moved
    cdef Varied *varied
    cdef int64_t *trips         # of each loop: the term of its trips, or NONE
    cdef int64_t npatches, nmoved, nvaried, nblocks, nhomes
    cdef bytes blocks           # parameter blocks as they were compiled
    # Let an instance be for other sizes, with its temporaries where they are. No run of it may be going on.
    cdef int rewrite(self, Program made, SizeValues values, Numbers offsets) except -1
    cdef int _patch(self, SizeValues values, char *blocks) except -1
