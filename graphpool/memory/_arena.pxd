from libc.stdint cimport int64_t

from graphpool.memory._lease cimport Lease
from graphpool.memory._slots cimport Slot, Slots
from graphpool.memory._wait_queue cimport Waiter, WaitQueue


cdef class ArenaPool(Slots):
    cdef readonly object resource
    cdef readonly object budget
    cdef readonly str name
    cdef WaitQueue queue
    cdef int64_t max_arenas
    cdef int64_t timeout_ns
    cdef int64_t arenas
    cdef int64_t peak_arenas
    cdef int64_t retiring
    cdef int64_t floor
    cdef int64_t created
    cdef int64_t waits
    cdef int64_t faults
    cdef bint gives_reserved    # whether some holder of the budget gives back reserved arenas too: they are reclaimable

    # An arena: free, new, or waited for. Raises StateError or OutOfMemoryError.
    cdef void *acquire(self) except NULL
    # The right to a free arena; None when none is free, others queue for one or the pool is closed. Never blocks.
    cdef Lease lease_free(self)
    # Give an arena back, from any thread; the caller holds a reference to the pool.
    cdef void release(self, void *arena) noexcept nogil

    # Reserve one more arena if as many exist already; take one reservation back, if there is one.
    cdef bint reserve_warm(self) noexcept nogil
    cdef bint unreserve_one(self) noexcept nogil

    cdef Slot *_take_in_turn(self) noexcept nogil
    cdef Slot *_acquire_slot(self, int64_t deadline_ns) except NULL
    cdef Slot *_wait_for_slot(self, Waiter *me, int64_t deadline_ns) except NULL
    cdef Slot *_create(self, bint *is_budgeted) except NULL
    cdef bint _may_get_memory_back(self, bint is_budgeted, int64_t epoch) except -1
    cdef int _forget(self, Slot *slot) except -1
    cdef int _free(self, Slot *slot) except -1
    cdef int64_t _retire(self, int64_t idle_before_ns, int64_t keep, bint takes_reserved=*) except -1
