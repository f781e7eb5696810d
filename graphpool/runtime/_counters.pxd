from libc.stdint cimport int64_t


cdef class Jobs:
    cdef dict running           # thread -> what tells the bytes that the budget counts for it between runs
    cdef readonly int64_t begun
    cdef readonly object alone


cdef class UseClock:
    cdef int64_t ticks


cdef class UseCount:
    cdef UseClock clock
    cdef object others
    cdef readonly int64_t uses
    cdef readonly int64_t last
    cdef readonly double interval
    cdef int64_t last_ns
    cpdef touch(self)
