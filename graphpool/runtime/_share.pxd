from libc.stdint cimport int64_t

from graphpool.memory._arena cimport ArenaPool


# Sum over the shares of an engine that have no users. Unit: bytes.
cdef class IdleBytes:
    cdef int64_t nbytes


cdef class PrimitiveShare:
    cdef readonly object primitive
    cdef readonly object manager
    cdef readonly object owner
    cdef readonly ArenaPool arenas
    cdef readonly double idle_since
    cdef object __weakref__
    cdef IdleBytes idle
    cdef int64_t count      # users, or ENDED
    cdef int64_t nbytes     # of the primitive
    # Count a user, whose pool is reserved if it wants one; False where that takes more than a few atomic steps.
    cdef bint enter_warm(self, bint reserves) except -1
    cdef bint _count_in(self) noexcept
    cdef bint _reserve_warm(self) noexcept
    cdef int _count_out(self) except -1
    cpdef int leave(self, bint reserved) except -1
