from libc.stdint cimport int64_t

from graphpool._kernels.core._team cimport Team


cdef enum:
    TASK_BITS = 40
    SHARES = 2          # a thread takes its part of what is left of a range, divided by this: pieces shrink at the end
    GROUP_THREADS = 8   # threads of a group, which share two words: as many as have an L3 in common
    MAX_GROUPS = 16     # larger groups are made where there would be more


# Threads that take tasks of one range. Its words have lines of their own.
cdef struct Group:
    int64_t place           # number << TASK_BITS | first task of the range that nobody has taken
    int64_t padding0[15]
    int64_t done            # finished tasks of the range
    int64_t padding1[15]


# How many threads a group has, of so many that work together in so many groups at most; the last one may have fewer.
cdef inline int64_t group_size_of(int64_t nthreads, int64_t most_groups) noexcept nogil:
    return min(max(GROUP_THREADS, (nthreads + most_groups - 1) // most_groups), nthreads)


# Where the range of a group begins, of `ntasks` from task `begin` on; each of the first groups has a task.
cdef inline int64_t range_of(int64_t ntasks, int64_t begin, int64_t ngroups, int64_t group) noexcept nogil:
    cdef int64_t left = ntasks - begin
    cdef int64_t groups = min(ngroups, left)
    return begin + left * min(group, groups) // groups


# Most tasks that a thread takes at a time, of a call that has so many: between them signals are looked for.
cdef inline int64_t piece_of(int64_t ntasks) noexcept nogil:
    return ntasks if ntasks < 256 else ntasks // 64


# How many tasks a thread takes, of those from `begin` on in a range.
cdef inline int64_t share_of(int64_t begin, int64_t end, int64_t ntasks, int64_t group_size) noexcept nogil:
    return max(min((end - begin) // (SHARES * group_size), piece_of(ntasks)), 1)


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
