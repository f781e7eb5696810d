from libc.stdint cimport int64_t


# Consecutive steps of a program that a run takes several times, on other addresses each time. A run counts each time as
# a step of its own.
cdef struct Loop:
    int64_t first           # of its steps
    int64_t nsteps
    int64_t trips
    int64_t begin           # where its steps begin and end among those of a run
    int64_t end


cdef class RowLoops:
    cdef Loop *loops
    cdef readonly int64_t count
    cdef int64_t nsteps         # of the program
    cdef readonly int64_t nturns    # of a run
    cdef RowLoops copy(self)
    # Count the steps of a run, where trips have changed.
    cdef int count_turns(self) except -1


# Which step of the program step `k` of a run is, and its trip: 0 outside of loops.
cdef inline int64_t find_step(const Loop *loop, int64_t nloops, int64_t k, int64_t *trip) noexcept nogil:
    cdef int64_t i, repeated = 0
    trip[0] = 0
    for i in range(nloops):
        if k < loop[i].begin:
            break
        if k < loop[i].end:
            trip[0] = (k - loop[i].begin) // loop[i].nsteps
            return loop[i].first + (k - loop[i].begin) % loop[i].nsteps
        repeated = loop[i].end - (loop[i].first + loop[i].nsteps)
    return k - repeated
