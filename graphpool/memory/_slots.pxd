from libc.stdint cimport int64_t

from graphpool._atomic cimport gp_load_ptr
from graphpool.memory._gate cimport Gate

cdef enum:
    SLOTS_PER_CHUNK = 8

cdef enum:
    EMPTY = 0
    CREATING = 1
    FREE = 2
    LEASED = 3
    RETIRING = 4
    STATES = 8      # states per generation
    ANY = 31        # bits of all states


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


cdef inline int state_of(int64_t word) noexcept nogil:
    return word % STATES


cdef inline Slot *next_slot(Chunk **chunk, int *i) noexcept nogil:
    """Iterate over slots, lowest (warmest) first, from their first chunk and 0 on; NULL at the end."""
    if i[0] == SLOTS_PER_CHUNK:
        chunk[0] = <Chunk *>gp_load_ptr(&chunk[0].next)
        i[0] = 0
        if chunk[0] == NULL:
            return NULL
    i[0] += 1
    return &chunk[0].slots[i[0] - 1]


cdef class Slots:
    cdef readonly int64_t nbytes
    cdef readonly int64_t alignment
    cdef object __weakref__
    cdef Gate gate
    cdef Chunk first
    cdef int64_t closed

    # FREE -> LEASED for the lowest free slot; NULL when none is free.
    cdef Slot *take(self) noexcept nogil
    # LEASED -> FREE for the lease that `word` stands for, which whoever sleeps hears of; False for a stale one.
    cdef bint give(self, Slot *slot, int64_t word) noexcept nogil
    # The same by the address of the arena; False where it is not leased.
    cdef bint give_address(self, void *arena) noexcept nogil
    # EMPTY -> CREATING; adds a chunk of slots when all are taken.
    cdef Slot *claim(self) except NULL
    # Of the slots that are free since `before_ns` the one that is so the longest, or NULL.
    cdef Slot *longest_idle(self, int64_t before_ns) noexcept nogil
    # Slots in any of some states, a bit each (only those whose bytes are charged, if asked).
    cdef int64_t count(self, int states, bint is_charged) noexcept nogil
    cdef int64_t count_leases(self) noexcept nogil
    # What a closed pool does with an arena that comes back.
    cdef int free_idle(self) except -1
