from libc.stdint cimport int64_t


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
    cdef object __weakref__
    cdef void *acquire(self) noexcept nogil
    cdef void release(self) noexcept nogil
    cdef void drop(self) noexcept
