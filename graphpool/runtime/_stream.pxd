from graphpool._kernels.core._team cimport Team


cdef class Stream:
    cdef readonly object engine
    cdef readonly object queue
    cdef readonly Team team
    cdef bint closed
    cdef object __weakref__


cdef class Event:
    cdef readonly Stream stream
    cdef readonly object mark
