from libc.stdint cimport int64_t


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass


cdef class Gate:
    cdef pthread_mutex_t mutex
    cdef pthread_cond_t changed
    cdef int64_t epoch
    cdef int64_t waiters
    cdef void reset(self) noexcept nogil
    cdef int64_t enter(self) noexcept nogil
    cdef void leave(self) noexcept nogil
    cdef int64_t now(self) noexcept nogil
    cdef void notify(self) noexcept nogil
    cdef int wait(self, int64_t epoch, int64_t deadline_ns) except -1
    cdef void _sleep(self, int64_t epoch, int64_t until_ns) noexcept nogil


cdef int64_t clock_ns() noexcept nogil
cdef int64_t coarse_clock_ns() noexcept nogil
cdef int64_t nanoseconds(seconds, what) except? -2
cdef int64_t deadline_after(timeout_s, int64_t default_ns) except? -2
