"""WaitQueue: the threads that wait for an arena, served in the order of their arrival."""

from graphpool._atomic cimport gp_add
from graphpool.memory._gate cimport Gate, pthread_mutex_t

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)


cdef class WaitQueue:
    """A list through the stacks of those who wait. The gate's mutex guards it, and is never held while Python runs."""

    def __cinit__(self, Gate gate not None):
        self.gate = gate

    cdef void join(self, Waiter *me) noexcept nogil:
        cdef Waiter **end = &self.head
        me.is_creating, me.next = False, NULL
        self.gate.enter()
        pthread_mutex_lock(&self.gate.mutex)
        while end[0] != NULL:
            end = &end[0].next
        end[0] = me
        gp_add(&self.length, 1)
        pthread_mutex_unlock(&self.gate.mutex)

    cdef bint is_next(self, Waiter *me) noexcept nogil:
        cdef Waiter *waiter
        pthread_mutex_lock(&self.gate.mutex)
        waiter = self.head
        while waiter != NULL and waiter != me and waiter.is_creating:
            waiter = waiter.next
        pthread_mutex_unlock(&self.gate.mutex)
        return waiter == me

    cdef void leave(self, Waiter *me) noexcept nogil:
        cdef Waiter **end = &self.head
        pthread_mutex_lock(&self.gate.mutex)
        while end[0] != NULL and end[0] != me:
            end = &end[0].next
        if end[0] == me:
            end[0] = me.next
            gp_add(&self.length, -1)
        pthread_mutex_unlock(&self.gate.mutex)
        self.gate.leave()
        self.gate.notify()

    cdef void reset(self) noexcept nogil:
        self.head, self.length = NULL, 0
