from libc.stdint cimport int64_t

from graphpool._atomic cimport gp_count_down, gp_count_hit, gp_fetch_add, gp_load

cdef extern from *:
    """
    #define GPC_EVICTED ((int64_t)1 << 32)
    #define GPC_USERS (GPC_EVICTED - 1)
    """
    const int64_t EVICTED "GPC_EVICTED"
    const int64_t USERS "GPC_USERS"


cdef class ConstantBuffer:
    cdef char *data
    cdef readonly int64_t nbytes
    cdef readonly int64_t alignment
    cdef readonly object owner
    cdef readonly object resource
    cdef bint frozen
    cdef object __weakref__


cdef class ConstantHandle:
    cdef int64_t word
    cdef void *address
    cdef int64_t hits
    cdef ConstantBuffer buffer
    cdef readonly object key
    cdef readonly object resource
    cdef object __weakref__
    cdef void *acquire(self) noexcept nogil
    cdef void release(self) noexcept nogil
    cdef void drop(self) noexcept


# What the methods `acquire` and `release` do, without a call.
cdef inline void *acquire_handle(ConstantHandle handle) noexcept nogil:
    """The address, counting a user; NULL, counting none, if the entry is not cached."""
    if gp_load(&handle.word) & EVICTED:
        return NULL
    if gp_fetch_add(&handle.word, 1) & EVICTED:
        release_handle(handle)
        return NULL
    gp_count_hit(&handle.hits)
    return handle.address


cdef inline void release_handle(ConstantHandle handle) noexcept nogil:
    """One user less; the last one of an evicted entry lets go of the buffer."""
    cdef int64_t word = gp_count_down(&handle.word, USERS)
    if word >= 0 and word & EVICTED and not word & USERS:
        with gil:
            handle.drop()
