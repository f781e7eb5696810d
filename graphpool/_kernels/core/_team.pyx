"""The thread team: threads that spin briefly and then sleep, and share regions of work with the one that calls.

``core/gp_team.h`` holds the protocol; here are ownership, the limit that threadpoolctl sets, and fork.
"""

import os

from libc.stdint cimport int64_t
from libc.stdlib cimport free

from graphpool.errors import InvalidArgumentError, StateError, explain
from graphpool.fork import reset_in_child


cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "core/gp_team.h" nogil:
    int GP_TEAM_ALIGNMENT
    bint gp_team_try_own(gp_team *team)
    void gp_team_own(gp_team *team)
    void gp_team_disown(gp_team *team)
    size_t gp_team_nbytes(int64_t nthreads)
    void gp_team_init(gp_team *team, int64_t nthreads, int64_t spin_ns)
    void gp_team_reset(gp_team *team)
    void gp_team_destroy(gp_team *team)
    int64_t gp_team_start(gp_team *team, int64_t nthreads)
    void gp_team_stop(gp_team *team)
    void gp_team_run(gp_team *team, int64_t nthreads, gp_region_fn fn, void *context)

# The limit on the threads of every region of the process, and the two functions by which threadpoolctl knows this
# extension: its controllers look for exported symbols.
cdef extern from *:
    """
    #include <stdint.h>
    static int64_t gp_thread_limit = INT64_MAX;
    __attribute__((visibility("default"))) void graphpool_set_thread_limit(int64_t limit) {
        __atomic_store_n(&gp_thread_limit, limit, __ATOMIC_RELAXED);
    }
    __attribute__((visibility("default"))) int64_t graphpool_get_thread_limit(void) {
        return __atomic_load_n(&gp_thread_limit, __ATOMIC_RELAXED);
    }
    """
    int64_t graphpool_get_thread_limit() nogil

MAX_THREADS = 1024

# For each thread of a team, since sleepers are woken one behind the other. Waking one on a processor that has gone idle
# takes 50 to 70 us on a virtual machine: so no wait costs much more than twice the best one (Karlin et al., 1991), and
# threads stay awake while others end a step, and from one run to the next. Threads beyond the processors look 16 times
# and sleep: one that spins keeps away whom it waits for.
cdef int64_t SPIN_NS = 50_000


cdef class Team:
    """Threads that help the calling thread: one region at a time, and whoever finds the team taken works alone.

    `nthreads`, the caller's among them, work on a region; they are started when a region first needs them.

    Ownership: owns its threads, and ends them at `close` or when it is collected; they never run Python, take no signal
    and do not keep the process alive. Threads: safe. Fork: a child has a team without threads, which starts its own. A
    region runs on fewer threads than asked when the system refuses threads or the limit of threadpoolctl says so.
    Cost until both of two threads are at work, on a virtual machine with two AMD EPYC cores: 0.4 us while they spin,
    28 us and more when they sleep (`docs/benchmarks.md`, "Thread team").
    Source: the event-count construction for sleeping, known from D. Vyukov's writings; work handed out on demand, so
    that no thread waits for one that has not woken up, is our own.
    """

    def __cinit__(self, nthreads):
        if not isinstance(nthreads, int) or not 1 <= nthreads <= MAX_THREADS:
            raise InvalidArgumentError(explain("threads of a team", accepted=f"1 .. {MAX_THREADS}", got=repr(nthreads)))
        cdef size_t nbytes = gp_team_nbytes(nthreads)
        self.team = <gp_team *>aligned_alloc(GP_TEAM_ALIGNMENT, nbytes)
        if self.team == NULL:
            raise MemoryError()
        self.nthreads = nthreads
        gp_team_init(self.team, nthreads, SPIN_NS * nthreads if nthreads <= _processors() else 0)
        reset_in_child(self)

    def __dealloc__(self):
        if self.team != NULL:
            gp_team_stop(self.team)
            gp_team_destroy(self.team)
            free(self.team)

    cdef int64_t enter(self, int64_t nthreads) noexcept nogil:
        cdef int64_t limit = graphpool_get_thread_limit()
        if nthreads > limit:
            nthreads = limit
        if nthreads < 2 or self.nthreads < 2 or not gp_team_try_own(self.team):
            return 0
        if not self.closed:
            nthreads = gp_team_start(self.team, nthreads)
            if nthreads >= 2:
                return nthreads
        gp_team_disown(self.team)
        return 0

    cdef void run(self, int64_t nthreads, gp_region_fn fn, void *context) noexcept nogil:
        gp_team_run(self.team, nthreads, fn, context)

    cdef void leave(self) noexcept nogil:
        gp_team_disown(self.team)

    def take(self):
        """Have the team to oneself, so that all others work alone until this thread calls `give_back`; whether nobody
        had it."""
        return bool(gp_team_try_own(self.team))

    def give_back(self):
        """Let others have the team again; for the thread that took it."""
        gp_team_disown(self.team)

    @property
    def nstarted(self):
        """Threads that are running now, the caller's not among them."""
        return self.team.nstarted - 1

    @property
    def is_closed(self):
        """Whether `close` was called."""
        return bool(gp_team_load(&self.closed))

    def roll_call(self, int64_t nthreads):
        """Run a region in which every thread waits for all others: how many there are; what waking everybody costs."""
        cdef RollCall call
        if gp_team_load(&self.closed):
            raise StateError(explain("the team is closed", hint="make another one"))
        call.team = self.team
        nthreads = call.absent = self.enter(nthreads)
        if nthreads == 0:
            return 1
        with nogil:
            self.run(nthreads, answer, &call)
            self.leave()
        return nthreads

    def close(self):
        """Wait for the region that runs, end the threads and start no others. Idempotent."""
        with nogil:
            gp_team_own(self.team)
            gp_team_store(&self.closed, 1)
            gp_team_stop(self.team)
            gp_team_disown(self.team)

    def _reset_in_child(self):
        gp_team_reset(self.team)

    def __repr__(self):
        return f"Team({self.nthreads} threads, {'closed' if self.is_closed else f'{self.nstarted} started'})"


cdef struct RollCall:
    gp_team *team
    int64_t absent


cdef void answer(void *context, int64_t thread) noexcept nogil:
    cdef RollCall *call = <RollCall *>context
    cdef int64_t absent = gp_team_add(&call.absent, -1)
    if absent == 0:
        gp_team_announce(call.team)
    while absent != 0:
        gp_team_await(call.team, &call.absent, 1, absent)
        absent = gp_team_load(&call.absent)


def _processors():
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
