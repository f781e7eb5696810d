from libc.stdint cimport int64_t


cdef class Node:
    cdef readonly object key
    cdef readonly object value
    cdef readonly int64_t nbytes
    cdef Recency owner          # None once the entry has left
    cdef Node older
    cdef Node newer
    cdef bint touch(self)


cdef class Recency:
    cdef dict nodes
    cdef Node oldest
    cdef Node newest
    cdef readonly int64_t hits
    cdef void _append(self, Node node)
    cdef void _detach(self, Node node)
