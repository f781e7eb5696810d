from libc.stdint cimport int64_t

from graphpool._kernels.core._team cimport Team


cdef struct Wait:
    int64_t stream
    int64_t count


cdef struct Call:
    int64_t number      # in issue order
    int64_t ntasks
    int64_t first_wait
    int64_t nwaits
    bint is_event


# Runs the tasks begin .. end - 1 of a call on a thread; not 0 stops the whole run.
ctypedef int64_t (*call_fn)(void *context, int64_t number, int64_t begin, int64_t end, int64_t thread) noexcept nogil
# Whether a call belongs to this run; others are passed.
ctypedef bint (*due_fn)(void *context, int64_t number) noexcept nogil


# What a thread is told between calls: to wake up threads that wait, or that the run is to stop.
cdef enum Look:
    GO_ON, WAKE, STOP

ctypedef Look (*look_fn)(void *context, int64_t thread) noexcept nogil


# Most tasks that a thread takes at a time, of a call that has so many: between them signals are looked for.
cdef inline int64_t piece_of(int64_t ntasks) noexcept nogil:
    return ntasks if ntasks < 256 else ntasks // 64


cdef class StreamLists:
    cdef Call *calls
    cdef Wait *waits
    cdef int64_t *firsts        # of each stream in `calls`, and the end
    cdef readonly int64_t nstreams
    cdef readonly int64_t ncalls
    cdef StreamLists origin     # whose waits and firsts it uses
    cdef bint borrows           # whether there is one
    cdef StreamLists copy(self)
    # Run on the threads that `team.enter` gave, from task `begin` of call `number` on; 0, or what `fn` failed with; -1
    # where `look` has stopped it.
    cdef int64_t run(
        self, Team team, int64_t nthreads, call_fn fn, due_fn is_due, look_fn look, void *context, int64_t number,
        int64_t begin
    ) noexcept nogil
