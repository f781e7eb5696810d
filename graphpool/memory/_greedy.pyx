"""One greedy pass of the planner: buffers in a given order, each at the best or first place that is free.

Placed buffers are kept by rising offset in blocks of 128. A block knows the hull of its lifetimes, so that a search
skips blocks that live at other times, and an insertion moves at most one block's worth of entries.
"""

import numpy as np

from libc.limits cimport INT_MAX, INT_MIN
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from graphpool.errors import InvalidArgumentError, explain

ORDERS = ("size", "area", "lifetime", "birth", "breadth")
"""Sorting keys of the portfolio, in the order in which they are tried."""

cdef enum:
    BLOCK = 128


# `lower` and `upper` are ranks of times: a scan reads them of every entry, so they are kept small and apart.
cdef struct Entry:
    int64_t offset, end, index


cdef struct Life:
    int lower, upper


cdef struct Block:
    int n
    Life hull
    Block *next
    Life lives[BLOCK]
    Entry entries[BLOCK]


cdef class _Windows:
    """What decides beside whole lifetimes: stated conflicts, or the active windows of buffers that have gaps."""

    cdef const int64_t[:, ::1] windows
    cdef const int64_t[::1] starts
    cdef const unsigned char[:, ::1] conflicts
    cdef bint has_gaps, has_conflicts

    def __init__(self, problem):
        self.has_conflicts = problem.conflicts is not None
        if self.has_conflicts:
            self.conflicts = problem.conflicts
            return
        self.windows = problem.windows
        active = (problem.windows[:, 2] - problem.windows[:, 1]).sum()
        self.has_gaps = active != (problem.upper - problem.lower).sum()
        self.starts = np.searchsorted(problem.windows[:, 0], np.arange(len(problem.size) + 1)).astype(np.int64)

    cdef bint overlap(self, int64_t a, int64_t b) noexcept nogil:
        """Whether both are active at one time, knowing that their whole lifetimes overlap."""
        cdef int64_t i, j
        if self.has_conflicts:
            return self.conflicts[a, b >> 3] >> (b & 7) & 1
        if not self.has_gaps:
            return True
        i, j = self.starts[a], self.starts[b]
        while i < self.starts[a + 1] and j < self.starts[b + 1]:
            if self.windows[i, 1] < self.windows[j, 2] and self.windows[j, 1] < self.windows[i, 2]:
                return True
            if self.windows[i, 2] < self.windows[j, 2]:
                i += 1
            else:
                j += 1
        return False


cdef int64_t _align(int64_t offset, int64_t alignment) noexcept nogil:
    return (offset + alignment - 1) // alignment * alignment


cdef bint _meet(const Life *a, const Life *b) noexcept nogil:
    return a.lower < b.upper and b.lower < a.upper


cdef int64_t _find(
    Block *block, const Life *life, int64_t b, int64_t size, int64_t alignment, bint best_fit, _Windows windows
) noexcept nogil:
    """The offset for a buffer: the tightest gap (or the first) that holds it, else on top of all that it meets."""
    cdef int64_t floor = 0, start, room, best = -1, best_room = -1
    cdef Entry *entry
    cdef int i
    while block != NULL:
        if _meet(life, &block.hull):
            for i in range(block.n):
                if not _meet(life, &block.lives[i]):
                    continue
                entry = &block.entries[i]
                if not windows.overlap(entry.index, b):
                    continue
                if entry.offset - floor >= size:
                    start = _align(floor, alignment)
                    room = entry.offset - start
                    if room >= size and (best < 0 or room < best_room):
                        best, best_room = start, room
                        if not best_fit or room == size:
                            return best
                floor = max(floor, entry.end)
        block = block.next
    return best if best >= 0 else _align(floor, alignment)


cdef Block *_new_block() noexcept nogil:
    cdef Block *block = <Block *>malloc(sizeof(Block))
    if block != NULL:
        block.n, block.next = 0, NULL
        block.hull.lower, block.hull.upper = INT_MAX, INT_MIN
    return block


cdef Block *_split(Block *block) noexcept nogil:
    """Move the upper half of a full block into a new one behind it; NULL when memory is short."""
    cdef Block *half = _new_block()
    if half == NULL:
        return NULL
    half.n = BLOCK - BLOCK // 2
    half.hull, half.next = block.hull, block.next
    memcpy(half.entries, &block.entries[BLOCK // 2], half.n * sizeof(Entry))
    memcpy(half.lives, &block.lives[BLOCK // 2], half.n * sizeof(Life))
    block.n, block.next = BLOCK // 2, half
    return half


cdef bint _insert(Block *block, const Life *life, const Entry *new) noexcept nogil:
    """Keep entries ordered by offset; a full block is split first. False when memory is short."""
    cdef Block *half
    cdef int i
    while block.next != NULL and block.next.entries[0].offset <= new.offset:
        block = block.next
    if block.n == BLOCK:
        half = _split(block)
        if half == NULL:
            return False
        if half.entries[0].offset <= new.offset:
            block = half
    i = block.n
    while i > 0 and block.entries[i - 1].offset > new.offset:
        i -= 1
    memmove(&block.entries[i + 1], &block.entries[i], (block.n - i) * sizeof(Entry))
    memmove(&block.lives[i + 1], &block.lives[i], (block.n - i) * sizeof(Life))
    block.entries[i], block.lives[i] = new[0], life[0]
    block.hull.lower = min(block.hull.lower, life.lower)
    block.hull.upper = max(block.hull.upper, life.upper)
    block.n += 1
    return True


cdef bint _is_free(Block *block, const Life *life, const Entry *new, _Windows windows) noexcept nogil:
    """Whether no placed buffer overlaps `new` in time and space."""
    cdef Entry *entry
    cdef int i
    while block != NULL:
        for i in range(block.n):
            entry = &block.entries[i]
            if _meet(life, &block.lives[i]) and new.offset < entry.end and entry.offset < new.end:
                if windows.overlap(entry.index, new.index):
                    return False
        block = block.next
    return True


def place(problem, const int64_t[::1] order, bint best_fit, int64_t limit, int64_t[::1] offsets):
    """Place the buffers of a `planner.Problem` in `order`, fixed ones first, into `offsets`.

    Takes the lowest gap that holds a buffer, or with `best_fit` the tightest. Returns the bytes of the arena, or -1 as
    soon as they would pass `limit`; raises `InvalidArgumentError` where fixed buffers overlap, or one is not aligned.
    """
    times = np.sort(np.concatenate([problem.lower, problem.upper]))  # np.unique takes 20 ms once: it loads numpy.ma
    cdef const int64_t[::1] lower = np.searchsorted(times, problem.lower).astype(np.int64)
    cdef const int64_t[::1] upper = np.searchsorted(times, problem.upper).astype(np.int64)
    cdef const int64_t[::1] size = problem.size
    cdef const int64_t[::1] alignment = problem.alignment, fixed = problem.fixed
    cdef _Windows windows = _Windows(problem)
    cdef Block *first = _new_block()
    cdef Block *following
    cdef Entry new
    cdef Life life
    cdef int64_t nbytes = 0, i, b, failed = -1
    if first == NULL:
        raise MemoryError
    try:
        with nogil:
            for i in range(order.shape[0]):
                b = order[i]
                life.lower, life.upper = <int>lower[b], <int>upper[b]
                new.index, new.offset = b, fixed[b]
                if fixed[b] < 0:
                    new.offset = 0
                    if size[b] > 0:
                        new.offset = _find(first, &life, b, size[b], alignment[b], best_fit, windows)
                new.end = new.offset + size[b]
                offsets[b] = new.offset
                if new.end > limit:
                    nbytes = -1
                    break
                nbytes = max(nbytes, new.end)
                if fixed[b] >= 0 and (new.offset % alignment[b] or not _is_free(first, &life, &new, windows)):
                    failed = b
                    break
                if size[b] and not _insert(first, &life, &new):
                    with gil:
                        raise MemoryError
    finally:
        while first != NULL:
            following = first.next
            free(first)
            first = following
    if failed >= 0:
        raise InvalidArgumentError(
            explain(f"fixed buffer number {failed}", accepted="an aligned offset that no other fixed buffer uses",
                    got=f"offset {fixed[failed]}")
        )
    return nbytes
