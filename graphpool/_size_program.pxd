from libc.stdint cimport int64_t

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
