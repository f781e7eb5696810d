from libc.stdint cimport int32_t, int64_t, uintptr_t

from graphpool._size_program cimport SizeProgram, SizeValues


# Why no trip can follow yet.
cdef enum Halt:
    GOES_ON
    OTHER_FORM      # a decision comes out otherwise, or what has to stay the same does not
    MORE_ROOM       # a temporary is larger than planned
    MORE_BYTES      # a state is larger than its buffers


cdef struct Dim:        # of a state
    int64_t now
    int64_t term        # of the input, or NONE
    int64_t plain       # what it must be then
    int64_t next_term   # of the output, or NONE
    int64_t next_plain


cdef struct Held:       # a state
    int64_t first       # of its dimensions
    int64_t rank
    int64_t term        # of the bytes of the output, or NONE
    int64_t nbytes
    int64_t capacity


cdef struct Kept:       # what must stay
    int64_t term
    int64_t value


cdef struct Listed:     # an array of integers, of which a trip takes that at its number
    uintptr_t at
    int64_t stride      # in bytes
    int64_t count
    bint is_wide        # 64 bits, else 32
    int64_t sign


cdef class TripSizes:
    cdef SizeProgram program
    cdef SizeValues values
    cdef list writers           # (VariableProgram, Program, Numbers) of each partition
    cdef list rooms             # (SizeTable, Numbers): what temporaries take, and what they have
    cdef int32_t *sources       # of each symbol: a dimension of a state, or COUNTER, or FIXED, or one of the listed
    cdef Kept *kept
    cdef Dim *dims
    cdef Held *states
    cdef Listed *listed
    cdef int64_t nsymbols, nkept, ndims, nstates, nlisted
    cdef bint is_current        # whether the programs are for these values
    cdef int64_t _term(self, object size) except -2
    cdef int prepare(self, int64_t count) except -1
    cdef bint _is_kept(self) noexcept nogil
    cdef int64_t _number(self, int64_t place, int64_t count) noexcept nogil
    cdef bint _set_symbols(self, int64_t count) noexcept nogil
    cdef bint _have_room(self)
    cdef int64_t nbytes(self, int64_t state) noexcept nogil
    cdef void advance(self) noexcept nogil
