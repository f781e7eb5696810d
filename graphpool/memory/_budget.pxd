from libc.stdint cimport int64_t

from graphpool.memory._gate cimport Gate


cdef class Budget:
    cdef readonly Gate gate
    cdef object __weakref__
    cdef object _lock
    cdef list _holders
    cdef object _expectant
    cdef int64_t _limit
    cdef int64_t _in_use
    cdef int64_t _peak
    cdef int64_t _reclaims
    cdef int64_t _refusals
    cdef int64_t _demand(self) except -1
    cdef bint _try_charge(self, int64_t nbytes) noexcept nogil
    cdef bint _try_uncharge(self, int64_t nbytes) noexcept nogil
