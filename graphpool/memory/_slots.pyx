"""Slots: the arenas of a pool and the state of each, changed by one compare-and-swap at a time.

Each arena has a slot whose word holds a generation and a state:

    EMPTY -> CREATING -> LEASED <-> FREE -> RETIRING -> EMPTY

Taking an arena raises its generation, so a stale token never matches and no address is compared (no ABA). Slots are
never freed before the pool is.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from graphpool._atomic cimport gp_cas, gp_cas_ptr, gp_load, gp_load_ptr
from graphpool.memory._gate cimport Gate, coarse_clock_ns

cdef extern from "<pthread.h>" nogil:
    size_t pthread_self()  # a pointer on macOS: cast where it is used


cdef class Slots:
    """What `ArenaPool` and `Lease` share: taking an arena and giving it back, without a lock or a Python call."""

    def __cinit__(self):
        self.gate = Gate()

    def __dealloc__(self):
        cdef void *chunk = self.first.next
        cdef void *following
        while chunk != NULL:
            following = (<Chunk *>chunk).next
            free(chunk)
            chunk = following

    cdef Slot *take(self) noexcept nogil:
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t word
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            word = gp_load(&slot.word)
            if state_of(word) == FREE and gp_cas(&slot.word, word, word + STATES - FREE + LEASED):
                slot.owner = <int64_t>pthread_self()
                return slot
            slot = next_slot(&chunk, &i)
        return NULL

    cdef bint give(self, Slot *slot, int64_t word) noexcept nogil:
        if gp_load(&slot.word) != word:
            return False
        slot.idle_since_ns = coarse_clock_ns()
        if not gp_cas(&slot.word, word, word - LEASED + FREE):
            return False
        if gp_load(&self.closed):
            with gil:
                self.free_idle()
        self.gate.notify()
        return True

    cdef bint give_address(self, void *arena) noexcept nogil:
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t word
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL and gp_load_ptr(&slot.address) != arena:
            slot = next_slot(&chunk, &i)
        if slot == NULL:
            return False
        word = gp_load(&slot.word)
        return state_of(word) == LEASED and self.give(slot, word)

    cdef Slot *claim(self) except NULL:
        cdef Chunk *chunk = &self.first
        cdef Chunk *last
        cdef int i = 0
        cdef int64_t word
        cdef void *fresh
        cdef Slot *slot
        while True:
            last = chunk
            slot = next_slot(&chunk, &i)
            if slot == NULL:
                fresh = calloc(1, sizeof(Chunk))
                if fresh == NULL:
                    raise MemoryError
                if not gp_cas_ptr(&last.next, NULL, fresh):
                    free(fresh)
                chunk, i = last, SLOTS_PER_CHUNK
                continue
            word = gp_load(&slot.word)
            if state_of(word) == EMPTY and gp_cas(&slot.word, word, word + CREATING):
                slot.owner = <int64_t>pthread_self()
                return slot

    cdef Slot *longest_idle(self, int64_t before_ns) noexcept nogil:
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef Slot *found = NULL
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            if state_of(gp_load(&slot.word)) == FREE and slot.idle_since_ns <= before_ns:
                if found == NULL or slot.idle_since_ns <= found.idle_since_ns:  # same tick: the coldest
                    found = slot
            slot = next_slot(&chunk, &i)
        return found

    cdef int64_t count(self, int states, bint is_charged) noexcept nogil:
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t n = 0
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            if states >> state_of(gp_load(&slot.word)) & 1 and (slot.is_charged != 0 or not is_charged):
                n += 1
            slot = next_slot(&chunk, &i)
        return n

    cdef int64_t count_leases(self) noexcept nogil:
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t n = 0
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            n += gp_load(&slot.word) // STATES
            slot = next_slot(&chunk, &i)
        return n

    cdef int free_idle(self) except -1:
        raise NotImplementedError
