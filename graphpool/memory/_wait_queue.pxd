from libc.stdint cimport int64_t

from graphpool.memory._gate cimport Gate


# A thread in the queue; lives on that thread's stack, guarded by the gate's mutex.
cdef struct Waiter:
    bint is_creating
    Waiter *next


cdef class WaitQueue:
    cdef Gate gate
    cdef Waiter *head
    cdef int64_t length
    # To the end of the queue, as one who sleeps at the gate.
    cdef void join(self, Waiter *me) noexcept nogil
    # Whether `me` waits longest. Those who create are passed: they look at nothing, and need no turn.
    cdef bint is_next(self, Waiter *me) noexcept nogil
    # Out of the queue; the next one looks. Absent after a fork in a signal handler: then nothing is left to do.
    cdef void leave(self, Waiter *me) noexcept nogil
    # Nobody waits: in a forked child.
    cdef void reset(self) noexcept nogil
