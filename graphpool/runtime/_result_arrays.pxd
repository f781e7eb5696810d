from libc.stdint cimport int64_t

from graphpool.memory._arrays cimport ArrayAllocator


cdef class ResultArrays:
    cdef readonly object budget
    cdef readonly str holder
    cdef public int64_t most_nbytes     # of all of one run, of forms so far; the queue's
    cdef bint grows
    cdef dict owners            # key -> memory that arrays of the key were made of
    cdef dict largest           # key -> size of the largest of its arrays so far
    cdef object allocators      # weakly
    cdef object lock
    cdef int64_t last_ns        # when a large array was asked for last
    cdef object __weakref__
    cpdef list take(self, list keys, list wanted, ArrayAllocator arrays, int64_t most, int64_t nbytes)
    cdef object _find(self, object key, int64_t nbytes)
    cdef int64_t _room(self, object key, int64_t nbytes, int64_t most) except -1
    cdef object _make(self, object key, tuple shape, object dtype, int64_t size, object room, bint has_room,
                      ArrayAllocator arrays)
    cdef int _drop_idle(self, list owners, int64_t most_nbytes) except -1
