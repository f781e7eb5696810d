from libc.stdint cimport int64_t

from graphpool.memory._gate cimport Gate

cdef enum:
    SLOTS_PER_CHUNK = 8


# One arena's place; padded to a cache line so that two threads' slots do not share one.
cdef struct Slot:
    int64_t word            # generation * 8 + state; a generation is one lease
    void *address
    int64_t owner           # thread that leased, creates or frees it: read in a forked child
    int64_t idle_since_ns
    int64_t is_charged      # its bytes are counted in the budget
    int64_t padding[3]


cdef struct Chunk:
    Slot slots[SLOTS_PER_CHUNK]
    void *next


# A thread in the queue of a pool; lives on that thread's stack, guarded by the gate's mutex.
cdef struct Waiter:
    bint is_creating
    Waiter *next


cdef class ArenaPool:
    cdef readonly object resource
    cdef readonly object budget
    cdef readonly int64_t nbytes
    cdef readonly int64_t alignment
    cdef readonly str name
    cdef object __weakref__
    cdef Gate gate
    cdef Chunk first
    cdef Waiter *head
    cdef int64_t max_arenas
    cdef int64_t timeout_ns
    cdef int64_t arenas
    cdef int64_t peak_arenas
    cdef int64_t retiring
    cdef int64_t floor
    cdef int64_t queued
    cdef int64_t created
    cdef int64_t waits
    cdef int64_t faults
    cdef int64_t closed
    cdef bint is_poisoned

    # A free arena, or NULL when none is free (or others queue for one): never blocks.
    cdef void *acquire_fast(self) noexcept nogil
    # An arena: free, new, or waited for. Raises StateError or OutOfMemoryError.
    cdef void *acquire(self) except NULL
    # Give an arena back, from any thread; the caller holds a reference to the pool.
    cdef void release(self, void *arena) noexcept nogil

    # Reserve one more arena if as many exist already; take one reservation back, if there is one.
    cdef bint reserve_warm(self) noexcept nogil
    cdef bint unreserve_one(self) noexcept nogil

    cdef Slot *_take(self) noexcept nogil
    cdef Slot *_find(self, void *arena) noexcept nogil
    cdef bint _give(self, Slot *slot, int64_t word) noexcept nogil
    cdef Slot *_acquire_slot(self, int64_t deadline_ns) except NULL
    cdef Slot *_wait_for_slot(self, Waiter *me, int64_t deadline_ns) except NULL
    cdef bint _is_next(self, Waiter *me) noexcept nogil
    cdef void _join(self, Waiter *me) noexcept nogil
    cdef void _leave(self, Waiter *me) noexcept nogil
    cdef Slot *_claim(self) except NULL
    cdef Slot *_create(self, bint *is_budgeted) except NULL
    cdef bint _may_get_memory_back(self, bint is_budgeted) except -1
    cdef int _forget(self, Slot *slot) except -1
    cdef int _free(self, Slot *slot) except -1
    cdef int64_t _retire(self, int64_t idle_before_ns, int64_t keep, bint takes_reserved=*) except -1
    cdef int64_t _count(self, int state, bint is_charged) noexcept nogil
    cdef bint _is_intact(self, Slot *slot) noexcept nogil


cdef class Lease:
    cdef readonly ArenaPool pool
    cdef Slot *slot
    cdef int64_t word
    cdef int64_t live
    cdef bint _holds(self) noexcept nogil
    cdef bint _return(self) noexcept nogil
