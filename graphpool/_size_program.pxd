from libc.stdint cimport int32_t, int64_t

from graphpool._sizes cimport Term, Trace


cdef class SizeProgram:
    cdef Trace trace
    cdef Term *terms
    cdef Term *checks
    cdef int64_t nterms, nchecks, nhard
    cdef readonly int64_t nsymbols
    cdef int64_t evaluate(self, const int64_t *values, int64_t *results) noexcept nogil
    cdef int64_t _first_failing(self, int64_t nterms, const int64_t *results) noexcept nogil


cdef class SizeValues:
    cdef Trace trace
    cdef int64_t *values
    cdef int64_t nterms


cdef class Numbers:
    cdef int64_t *numbers
    cdef int64_t count


cdef class SizeTable:
    cdef Numbers plain          # 0 where a size stands
    cdef int32_t *terms         # -1 where a plain number does
    cdef Trace trace            # of the sizes, if there are any
    cdef int64_t most           # largest of the terms
