from libc.stdint cimport int64_t

from graphpool.memory._budget cimport Budget


cdef class Jobs:
    cdef dict running           # thread -> what tells the bytes that the budget counts for it between runs
    cdef readonly int64_t begun
    cdef readonly object alone
    cdef bint has_own(self) except -1
    cpdef int64_t begin(self, own_nbytes, by=*) except -2
    cpdef end(self, by=*)


cdef class JobRunner:
    cdef readonly Jobs _jobs
    cdef readonly Budget _budget
    cpdef run(self, work, own_nbytes, tuple given=*, bint is_load=*)


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
