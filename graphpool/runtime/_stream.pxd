cdef class Stream:
    cdef readonly object engine
    cdef bint closed


cdef class Event:
    cdef readonly Stream stream
