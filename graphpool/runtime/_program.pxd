from libc.stdint cimport int64_t

from graphpool._kernels.core._dispatch cimport gp_kernel_fn
from graphpool._kernels.core._team cimport Team, gp_team

from ._row_loops cimport Loop, RowLoops
from ._streams cimport MAX_GROUPS, Group, StreamLists
from ._trace cimport Recording


cdef struct ArgRef:
    int64_t base      # index of a base pointer: 0 arena, 1 literals, 2 .. external tensors
    int64_t offset    # bytes from it
    int64_t stride    # bytes from what one trip of a loop sees to what the next one does


# What a run may need beside arguments, bits: BLAS, whose own threads must be kept out, and bytes of the arena.
cdef enum:
    BLAS = 1
    ARENA_BYTES = 2


cdef enum:
    STOPPED = -1


cdef struct Step:
    gp_kernel_fn fn
    const void *params
    const ArgRef *args
    int64_t nargs
    int64_t ntasks
    int64_t scratch         # offset in the arena of what thread 0 uses, and bytes to the next thread's
    int64_t scratch_stride
    int64_t guard           # base that decides whether the step is due, or -1
    bint wants_constant     # due if that base pointer is not NULL, else if it is
    int resources           # bits


# One run; lives on the stack of thread 0, the caller. Words that several threads change have lines of their own.
cdef struct Run:
    const Step *steps
    const Loop *loops
    int64_t nloops
    int64_t nsteps          # those of each trip of a loop counted
    char **bases
    gp_team *team
    int64_t ngroups
    int64_t group_size      # threads of a group; the last one may have fewer
    int64_t first           # step and task that the region began with
    int64_t begin
    Recording *recording    # NULL when nobody records
    int64_t program         # the next three are for recordings
    int64_t number
    int64_t thread
    int64_t look_ns         # when to look for signals next
    int64_t stopped         # whether a signal raised: the exception is set in the caller's thread
    int64_t refused         # number of a step, from 1 on, that met an index outside of what it counts; 0: none
    int64_t padding0[1]
    int64_t step            # that is open to all; written once a step
    int64_t padding1[15]
    int64_t nfinished       # groups whose ranges of that step are finished
    int64_t padding2[15]
    Group groups[MAX_GROUPS]


cdef class Program:
    cdef Step *steps
    cdef ArgRef *args
    cdef readonly RowLoops loops
    cdef int64_t nsteps
    cdef int64_t nargs
    cdef int64_t nliterals
    cdef readonly int64_t nbases
    cdef readonly int64_t nthreads
    cdef readonly int64_t arena_nbytes
    cdef public int64_t trials
    cdef char *literals
    cdef Program origin     # whose literals and other parameter blocks it uses
    cdef bint borrows       # whether there is one
    cdef char *blocks                       # parameter blocks that differ from the origin's
    cdef int64_t nblocks
    cdef readonly StreamLists streams       # None: the steps run one after another
    cdef readonly tuple calls
    cdef int always         # what every run needs, bits
    cdef int ever           # what some run may need: steps on plain weights may alone do so
    # Whether a run with these base pointers needs this.
    cdef bint needs(self, int resource, char **bases) noexcept nogil
    cdef readonly int64_t serial            # in this process
    # `bases` has room for nbases pointers; the caller fills in 0 and those from 2 on. `team` may be None. Returns
    # STOPPED where a signal handler has raised: its exception is set, and outputs are written in part. Returns the
    # number of a step, from 1 on, that met an index outside of what it counts: it took another element instead, so
    # outputs are not to be used.
    cdef int64_t run(self, char **bases, Team team) noexcept nogil
    cdef void _run(self, Run *run, Team team) noexcept nogil
    cdef void _share(self, Run *run, Team team) noexcept nogil


cdef int64_t gp_next_serial() noexcept


# To hand on what `Program.run` has returned, once what the run held is given back. `compiled` is the CompiledPartition
# whose program it was, or None.
cdef inline int check_run(int64_t status, Program program, compiled) except -1:
    if status > 0:
        refuse(program, compiled, status - 1)
    return -(status < 0)


cdef int refuse(Program program, compiled, int64_t step) except -1
