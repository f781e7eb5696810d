from libc.stdint cimport int64_t

from graphpool.memory._slots cimport Slot, Slots


cdef class Lease:
    cdef readonly Slots pool
    cdef readonly int64_t nbytes
    cdef Slot *slot             # NULL: of no bytes
    cdef int64_t word
    cdef int64_t live
    # Make it the right to this slot, which the caller has leased.
    cdef void hold(self, Slots pool, Slot *slot) noexcept
    cdef bint _holds(self) noexcept nogil
    cdef bint _return(self) noexcept nogil
