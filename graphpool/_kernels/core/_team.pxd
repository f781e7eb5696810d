from libc.stdint cimport int64_t


# What the threads of a region use; the rest of the header is used through Team.
cdef extern from "core/gp_team.h" nogil:
    ctypedef void (*gp_region_fn)(void *context, int64_t thread) noexcept nogil
    ctypedef struct gp_team:
        int64_t nstarted
    int64_t gp_clock_ns()
    int64_t gp_team_load(int64_t *p)
    void gp_team_store(int64_t *p, int64_t v)
    int64_t gp_team_add(int64_t *p, int64_t v)
    int64_t gp_team_sum(int64_t *words, int64_t n)
    bint gp_team_cas(int64_t *p, int64_t expected, int64_t desired)
    void gp_team_await(gp_team *team, int64_t *words, int64_t n, int64_t value)
    void gp_team_announce(gp_team *team)


cdef class Team:
    cdef gp_team *team
    cdef int64_t closed
    cdef readonly int64_t nthreads
    cdef object __weakref__
    # Become the owner: the number of threads that a region of up to `nthreads` has, at least 2; or 0, and no owner,
    # when another thread owns the team, or there is but one thread. Never blocks.
    cdef int64_t enter(self, int64_t nthreads) noexcept nogil
    # Run a region; to be called by the owner with what `enter` returned, any number of times.
    cdef void run(self, int64_t nthreads, gp_region_fn fn, void *context) noexcept nogil
    cdef void leave(self) noexcept nogil
