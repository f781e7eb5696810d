"""The step loop: kernels called one after another on raw pointers, without the interpreter.

With a team of threads, a step's tasks are shared out on demand. Threads form groups, and each group has a range of the
tasks. How far it has come is one word of the group, (step, first task that nobody has taken): a thread takes tasks by
moving it on, and those of other groups when its own has none left. A group counts what is finished of its range, and
whoever finishes the last of it adds one to a count of groups: so no word is changed by more threads than a group has,
but for that count, once a group and step. The thread that finishes the last task of a step runs the steps of one task
that follow, then opens the next step to all. So a run of small steps costs no hand-over at all, a thread that comes
late is waited for by nobody, and each kernel gets the same tasks as on one thread: the results are equal to the last
bit.

Signals are handled while a run goes on: the thread that called it, if it is the main one, looks for them between steps
and between pieces of large ones, once LOOK_NS have passed, and again each LOOK_NS. Shorter runs read a clock a step, no
more. When a handler raises, as that of SIGINT does, all threads finish the tasks that they have taken; the run ends.
"""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from graphpool._kernels.core._dispatch cimport GP_MAX_ARGS, Kernel
from graphpool._kernels.core._team cimport (
    Team, gp_clock_ns, gp_team_add, gp_team_announce, gp_team_await, gp_team_cas, gp_team_load, gp_team_store
)
from graphpool._atomic cimport gp_add

from ._row_loops cimport RowLoops, find_step
from ._streams cimport (
    GO_ON, MAX_GROUPS, STOP, TASK_BITS, WAKE, Group, Look, StreamLists, group_size_of, piece_of, range_of, share_of
)
from ._trace cimport Slice, count_run, current_thread, enter_recording, jitter, leave_recording, put_slice

from graphpool._sizes import Preference, is_variable
from graphpool.errors import InvalidArgumentError, explain
from graphpool.schedule.control import ListedCall

from .outside_axis import outside_axis


cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

from cpython.bytes cimport PyBytes_FromStringAndSize

cdef extern from "Python.h" nogil:
    ctypedef int PyGILState_STATE
    PyGILState_STATE PyGILState_Ensure()
    void PyGILState_Release(PyGILState_STATE state)
    int PyErr_CheckSignals()

cdef extern from *:
    """
    #include <time.h>
    #ifdef __APPLE__
    #include <pthread.h>
    #define GP_COARSE_CLOCK CLOCK_MONOTONIC
    static inline int gp_is_main_thread(void) { return pthread_main_np(); }
    #else
    #include <unistd.h>
    #include <sys/syscall.h>
    #define GP_COARSE_CLOCK CLOCK_MONOTONIC_COARSE
    static inline int gp_is_main_thread(void) { return syscall(SYS_gettid) == (long)getpid(); }
    #endif

    /* As gp_clock_ns; on Linux to the next tick of the kernel: a few nanoseconds. */
    static inline int64_t gp_coarse_ns(void)
    {
        struct timespec now;
        clock_gettime(GP_COARSE_CLOCK, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    """
    int64_t gp_coarse_ns() nogil
    bint gp_is_main_thread() nogil

ARENA = 0
LITERALS = 1
FIRST_EXTERNAL = 2

cdef enum:
    TRIALS = 3
    NEVER = -1
    NO_GUARD = -1

cdef int64_t _last_serial = 0
cdef int64_t ONE_STEP = <int64_t>1 << TASK_BITS

# A sleeping thread answers after 28 us on the machine of docs/benchmarks.md: shorter runs gain nothing by it.
cdef int64_t TRIAL_NS = 30_000

# People notice a tenth of a second; the interpreter lock, for which others may have to be waited, is taken as seldom.
cdef int64_t LOOK_NS = 50_000_000


cdef bint is_late(Run *run) noexcept nogil:
    """Whether it is time to look for signals."""
    return gp_coarse_ns() >= gp_team_load(&run.look_ns)


cdef bint is_interrupted(Run *run) noexcept nogil:
    """Look for signals if it is time to, in the thread that called the run; whether a handler has raised."""
    cdef PyGILState_STATE state
    if not is_late(run):
        return run.stopped
    gp_team_store(&run.look_ns, gp_coarse_ns() + LOOK_NS)
    if run.stopped == 0 and gp_is_main_thread():
        state = PyGILState_Ensure()
        if PyErr_CheckSignals() != 0:
            gp_team_store(&run.stopped, 1)
        PyGILState_Release(state)
    return run.stopped


cdef const Step *step_at(const Run *run, int64_t k, int64_t *trip) noexcept nogil:
    """Step `k` of a run, and the number of its trip: 0 outside of loops."""
    return run.steps + find_step(run.loops, run.nloops, k, trip)


cdef inline int64_t tasks_at(const Run *run, int64_t k) noexcept nogil:
    cdef int64_t trip
    return step_at(run, k, &trip).ntasks


cdef void call_step(Run *run, int64_t k, int64_t begin, int64_t end, int64_t thread) noexcept nogil:
    cdef void *pointers[GP_MAX_ARGS]
    cdef int64_t trip, j
    cdef const Step *step = step_at(run, k, &trip)
    cdef char *scratch = run.bases[0] + step.scratch + thread * step.scratch_stride
    for j in range(step.nargs):
        pointers[j] = run.bases[step.args[j].base] + step.args[j].offset + trip * step.args[j].stride
    cdef Slice slice
    cdef int64_t status
    if run.recording == NULL:
        status = step.fn(step.params, pointers, begin, end, scratch)
    else:
        jitter(run.recording)
        slice.program, slice.run, slice.thread = run.program, run.number, run.thread
        slice.step, slice.ntasks = step - run.steps, end - begin
        slice.thread_index, slice.trip = <int32_t>thread, <int32_t>trip
        slice.start_ns = gp_clock_ns()
        status = step.fn(step.params, pointers, begin, end, scratch)
        slice.end_ns = gp_clock_ns()
        put_slice(run.recording, &slice)
    if status != 0:
        gp_team_cas(&run.refused, 0, step - run.steps + 1)


cdef bint is_due(char **bases, const Step *step) noexcept nogil:
    """Whether the step belongs to a run: its constant is there, or is not, as the step wants it."""
    return step.guard == NO_GUARD or (bases[step.guard] != NULL) == step.wants_constant


cdef inline bint is_due_at(const Run *run, int64_t k) noexcept nogil:
    cdef int64_t trip
    return is_due(<char **>run.bases, step_at(run, k, &trip))


cdef void run_alone(Run *run, int64_t k, int64_t begin) noexcept nogil:
    """Run all steps from task `begin` of step `k` on."""
    while k < run.nsteps:
        if is_due_at(run, k) and not run_step(run, k, begin):
            return
        begin = 0
        k += 1


cdef bint run_step(Run *run, int64_t k, int64_t begin) noexcept nogil:
    """Run the tasks of step `k` from `begin` on; whether the run goes on.

    Pieces double while they take less than a tick of the clock, since each one is a call of the kernel, and become
    smaller where they take long.
    """
    cdef int64_t ntasks = tasks_at(run, k), piece = piece_of(ntasks), start = gp_coarse_ns(), end, took
    while True:
        end = min(begin + piece, ntasks)
        call_step(run, k, begin, end, 0)
        if is_interrupted(run):
            return False
        if end == ntasks:
            return True
        took = gp_coarse_ns() - start
        if took == 0:
            piece *= 2
        elif took > LOOK_NS:
            piece = max(piece // 2, 1)
        start += took
        begin = end


cdef int64_t run_single_tasks(Run *run, int64_t k, int64_t thread) noexcept nogil:
    """Run the steps from `k` on that cannot be shared, pass those that are not due; the first to share, or nsteps.

    A thread that is not the caller's leaves a step to all when it is time to look for signals: that wakes the caller.
    """
    cdef int64_t ntasks
    while k < run.nsteps:
        if is_due_at(run, k):
            ntasks = tasks_at(run, k)
            if ntasks > 1 or (thread > 0 and ntasks == 1 and is_late(run)):
                break
            call_step(run, k, 0, ntasks, thread)
            if thread == 0 and is_interrupted(run):
                return run.nsteps
        k += 1
    return k


cdef int64_t run_trial(Run *run, int64_t k) noexcept nogil:
    """Run from step `k` on alone, in pieces that double, until TRIAL_NS have passed; the place arrived at."""
    cdef int64_t until = gp_clock_ns() + TRIAL_NS
    cdef int64_t begin, end, piece, ntasks
    while k < run.nsteps:
        begin, piece, ntasks = 0, 1, tasks_at(run, k)
        while begin < ntasks:
            if gp_clock_ns() >= until:
                return (k << TASK_BITS) | begin
            end = min(begin + piece, ntasks)
            call_step(run, k, begin, end, 0)
            begin, piece = end, 2 * piece
        k = run_single_tasks(run, k + 1, 0)
    return k << TASK_BITS


cdef int64_t first_of(const Run *run, int64_t k, int64_t group) noexcept nogil:
    """Where the tasks of a group begin in step `k`, which every thread can tell; each of the first groups has one."""
    return range_of(tasks_at(run, k), run.begin if k == run.first else 0, run.ngroups, group)


cdef void open_step(Run *run, int64_t k) noexcept nogil:
    """Let all threads take tasks of step `k`, whose predecessors are finished; nsteps ends the run."""
    cdef int64_t group
    run.nfinished = 0
    for group in range(run.ngroups if k < run.nsteps else 0):
        run.groups[group].done = 0
        gp_team_store(&run.groups[group].place, k << TASK_BITS | first_of(run, k, group))
    gp_team_store(&run.step, k)
    gp_team_announce(run.team)


cdef bint take_tasks(Run *run, int64_t k, int64_t number, int64_t thread) noexcept nogil:
    """Run tasks of step `k` that lie in the range of a group; whether there were any."""
    cdef Group *group = &run.groups[number]
    cdef int64_t place = gp_team_load(&group.place), begin = place & (ONE_STEP - 1), ntasks = tasks_at(run, k)
    cdef int64_t first = first_of(run, k, number), end = first_of(run, k, number + 1), n
    if place >> TASK_BITS != k or begin >= end:
        return False
    n = share_of(begin, end, ntasks, run.group_size)
    if not gp_team_cas(&group.place, place, place + n):
        return True     # somebody else took some; look again
    call_step(run, k, begin, begin + n, thread)
    if gp_team_add(&group.done, n) == end - first:
        first = run.begin if k == run.first else 0
        if gp_team_add(&run.nfinished, 1) == min(run.ngroups, ntasks - first):
            open_step(run, run_single_tasks(run, k + 1, thread))
    return True


cdef void run_thread(void *context, int64_t thread) noexcept nogil:
    """What each thread of a region does: take tasks of the open step, wait for more, until all steps are done."""
    cdef Run *run = <Run *>context
    cdef int64_t own = thread // run.group_size, k, i
    while True:
        if thread == 0 and is_interrupted(run):
            gp_team_store(&run.step, run.nsteps)
            gp_team_announce(run.team)
        k = gp_team_load(&run.step)
        if k == run.nsteps or gp_team_load(&run.stopped):
            return
        for i in range(run.ngroups):
            if take_tasks(run, k, (own + i) % run.ngroups, thread):
                break
        else:
            gp_team_await(run.team, &run.step, 1, k)


def count_threads(calls, threads, streams=0):
    """Threads that a run of these calls can use: at most `threads`; on one stream, at most the tasks of the largest.

    Several tasks whose number varies may be as many as there are threads: how many there are is no decision.

    InvalidArgumentError: a call has too many tasks.
    """
    for call in calls:
        if call.ntasks >= ONE_STEP:
            raise InvalidArgumentError(explain("tasks of a step", accepted=f"0 .. {ONE_STEP - 1}", got=call.ntasks))
    if streams > 1:
        return threads
    most = 1
    with Preference(*[call.ntasks for call in calls]):
        for call in calls:
            if call.ntasks >= (min(2, threads) if is_variable(call.ntasks) else threads):
                return threads
            if call.ntasks > most:
                most = int(call.ntasks)
    return most


def count_scratch(nbytes, int64_t nthreads):
    """Bytes of scratch that `nbytes` for each thread take, every thread on cache lines of its own."""
    return (nthreads - 1) * aligned(nbytes) + nbytes


def aligned(nbytes):
    """Bytes in whole cache lines."""
    return (nbytes + 63) // 64 * 64


cdef int64_t gp_next_serial() noexcept:
    """A number under which recordings know a program."""
    return gp_add(&_last_serial, 1)


cdef int64_t call_numbered(void *context, int64_t number, int64_t begin, int64_t end, int64_t thread) noexcept nogil:
    """A step as a call of `StreamLists`; what a kernel refuses does not end the run."""
    cdef Run *run = <Run *>context
    call_step(run, number, begin, end, thread)
    return 0


cdef Look look(void *context, int64_t thread) noexcept nogil:
    """Between calls of `StreamLists`: the caller's thread looks for signals, others say when it should."""
    cdef Run *run = <Run *>context
    if thread == 0:
        return STOP if is_interrupted(run) else GO_ON
    return WAKE if is_late(run) else GO_ON


cdef bint is_due_numbered(void *context, int64_t number) noexcept nogil:
    cdef Run *run = <Run *>context
    return is_due_at(run, number)


cdef int refuse(Program program, compiled, int64_t step) except -1:
    """Say of a step that it met an index outside."""
    op = None if compiled is None else compiled.partition.ops[compiled.primitive.step_ops[step]]
    name, kind = ("", program.calls[step].kernel.name) if op is None else (op.name, op.kind)
    raise outside_axis(name, kind)


cdef class Program:
    """A fixed list of kernel calls with the places of their arguments.

    An argument is a base pointer and an offset. Base 0 is the arena that the caller leases for one run, base 1 the
    literals of the program, bases from 2 on are the external tensors in the caller's order.

    Parameters
    ----------
    steps : sequence of (KernelCall, sequence of (int, int))
        Each call with the (base, offset in bytes) of its arguments.
    arena_nbytes : int
        Bytes of the arena that the steps use.
    nexternals : int
        Number of external tensors.
    literals : bytes-like, default=b""
        Numbers that were known at compilation; the program keeps a copy.
    threads : int, default=1
        Most threads that a run may use.
    guards : sequence of (int, bool) or None, optional
        For each step a base, and whether the step wants it: in a run where that base pointer is NULL, steps that want
        it are passed, and in other runs those that do not. None for steps of every run.
    scratch : sequence of int, optional
        Offset in the arena, for each step, of the scratch that its kernel needs, see `count_scratch`. Without them the
        program adds one place behind the `arena_nbytes`, which all steps use.
    streams : sequence of sequence of ListedCall, default=()
        The static list of each stream, its nodes the positions of the steps, which stand in issue order. Used when
        there are several threads; with none, and whenever the team is busy, the steps run one after another.
    loops : sequence of (int, int, int, sequence of int), default=()
        Of the steps from the first of these numbers up to the second, which run so many times, one trip after another:
        bytes from where each of their arguments, in order, lies in a trip to where it lies in the next one. Ascending;
        not with streams.

    Attributes
    ----------
    arena_nbytes : int
        Bytes that one run needs, the scratch of every thread included.
    nthreads : int
        Threads that a run can use: at most `threads`; without streams at most the tasks of its largest step.
    streams : StreamLists or None
    trials : int
        Runs that still begin alone, to find out what is worth sharing: when 30 us have passed and work is left, the
        team is called for the rest. Once a run ends before, the program stays on the caller's thread for good (-1);
        after three that did not, every run is shared from the start (0). Starts at 3, or at -1 with one thread; may be
        set, for tests and benchmarks.
    calls : tuple of KernelCall
    uses_blas : bool
        Whether a step of every run calls BLAS, whose own threads must then be kept out.
    serial : int
        Under which recordings know it; no other program of the process has it.

    Notes
    -----
    Ownership: owns the parameter blocks. Threads: immutable but for `trials`; `run` may be going on in any number of
    threads, each with an arena of its own. Results do not depend on the number of threads. Cost of a step beyond its
    kernel: a few nanoseconds alone, and below a microsecond when threads share it; a run allocates nothing and takes no
    lock but that of its team, which it never waits for, and in the main thread each 50 ms that of the interpreter.
    Signals: see the module; a handler must not close the stream or the engine whose run it interrupts.
    Source: guided self-scheduling (Polychronopoulos and Kuck, 1987) for the size of what a thread takes.
    """

    def __init__(self, steps, int64_t arena_nbytes, int64_t nexternals, literals=b"", int64_t threads=1, guards=(),
                 scratch=(), streams=(), loops=()):
        self.nargs = sum([len(args) for _, args in steps])
        self.serial = gp_next_serial()
        self.nsteps = len(steps)
        self.nbases = FIRST_EXTERNAL + nexternals
        self.steps = <Step *>calloc(max(self.nsteps, 1), sizeof(Step))
        self.args = <ArgRef *>calloc(max(self.nargs, 1), sizeof(ArgRef))
        if self.steps == NULL or self.args == NULL:
            raise MemoryError()
        cdef bytes data = bytes(literals)
        self.literals = <char *>aligned_alloc(64, (len(data) // 64 + 1) * 64)
        if self.literals == NULL:
            raise MemoryError()
        self.nliterals = len(data)
        memcpy(self.literals, <const char *>data, len(data))
        self.calls = tuple([call for call, _ in steps])
        guards = tuple(guards) or (None,) * self.nsteps
        if threads < 1:
            raise InvalidArgumentError(explain("threads", accepted="at least 1", got=threads))
        self.nthreads = count_threads(self.calls, threads, len(streams))
        if self.nthreads > 1 and len(streams) > 1:
            self.streams = self._list(streams)
        self.trials = TRIALS if self.nthreads > 1 else NEVER
        self.arena_nbytes = arena_nbytes
        self._fill(steps, guards, tuple(scratch) or self._append_scratch())
        self._repeat(tuple(loops))

    def _repeat(self, tuple loops):
        cdef int64_t first, end, stride
        cdef ArgRef *arg
        if loops and self.streams is not None:
            raise InvalidArgumentError(explain("loops of a program", accepted="none on streams", got=len(loops)))
        self.loops = RowLoops(self.nsteps, [loop[:3] for loop in loops])
        for first, end, _, strides in loops:
            if len(strides) != sum([self.steps[k].nargs for k in range(first, end)]):
                raise InvalidArgumentError(explain("strides of a loop", accepted="one an argument", got=len(strides)))
            arg = <ArgRef *>self.steps[first].args
            for stride in strides:
                arg.stride = stride
                arg += 1

    def _append_scratch(self):
        """Make the arena larger by scratch for every step, or, on one stream, for any one; its offset for each step."""
        offsets, most = [], aligned(self.arena_nbytes)
        for call in self.calls:
            start = most if self.streams is not None else aligned(self.arena_nbytes)
            offsets.append(start)
            if call.scratch_nbytes:
                most = max(most, start + count_scratch(call.scratch_nbytes, self.nthreads))
        if any([call.scratch_nbytes for call in self.calls]):
            self.arena_nbytes = most
        return tuple(offsets)

    def _list(self, streams):
        """The lists of the streams; every call is one step."""
        rows = []
        for calls in streams:
            steps = [step for call in calls for step in call.nodes]
            if len(steps) != len(calls):
                raise InvalidArgumentError(explain("a call of a program", accepted="one step", got=repr(calls)))
            tasks = [self.calls[step].ntasks for step in steps]
            rows.append([(k, n, call.waits, call.is_event) for k, n, call in zip(steps, tasks, calls)])
        return StreamLists(rows)

    def _fill(self, steps, guards, scratch):
        cdef int64_t first = 0, k, base, offset
        cdef Step *step
        cdef Kernel kernel
        cdef const unsigned char[::1] block
        for k in range(self.nsteps):
            call, args = steps[k]
            if len(args) > GP_MAX_ARGS:
                raise InvalidArgumentError(
                    explain(f"{call.kernel.name}: arguments", accepted=f"at most {GP_MAX_ARGS}", got=len(args))
                )
            kernel = call.kernel
            block = call.params
            step = &self.steps[k]
            step.fn = kernel.fn
            step.params = &block[0]
            step.args = &self.args[first]
            step.nargs = len(args)
            step.ntasks = call.ntasks
            step.scratch, step.scratch_stride = scratch[k], aligned(call.scratch_nbytes)
            step.guard, step.wants_constant = guards[k] or (NO_GUARD, False)
            if "blas" in call.kernel.name:
                step.resources |= BLAS
            if call.scratch_nbytes > 0 or ARENA in [base for base, _ in args]:
                step.resources |= ARENA_BYTES
            self.ever |= step.resources
            if step.guard == NO_GUARD:
                self.always |= step.resources
            else:
                self._check_base(step.guard)
            for base, offset in args:
                self._check_base(base)
                self.args[first].base = base
                self.args[first].offset = offset
                first += 1

    def _check_base(self, int64_t base):
        if not 0 <= base < self.nbases:
            raise InvalidArgumentError(explain("base", accepted=f"0 .. {self.nbases - 1}", got=base))

    def __reduce__(self):
        """Pickles with its parameter blocks, for the same build; programs that borrow those do not."""
        cdef int64_t k, j
        cdef Step *step
        if self.borrows:
            raise TypeError("a program for other sizes does not pickle")
        steps, guards, scratch, streams = [], [], [], []
        for k in range(self.nsteps):
            step = &self.steps[k]
            steps.append((self.calls[k], tuple([(step.args[j].base, step.args[j].offset) for j in range(step.nargs)])))
            guards.append(None if step.guard == NO_GUARD else (step.guard, bool(step.wants_constant)))
            scratch.append(step.scratch)
        if self.streams is not None:
            rows = [self.streams.calls_of(k) for k in range(self.streams.nstreams)]
            streams = [[ListedCall((number,), waits, event) for number, waits, event in row] for row in rows]
        literals = PyBytes_FromStringAndSize(self.literals, self.nliterals)
        nexternals = self.nbases - FIRST_EXTERNAL
        own = steps, self.arena_nbytes, nexternals, literals, self.nthreads, guards, scratch, streams
        rows = [
            (*row, [self.steps[k].args[j].stride for k in range(row[0], row[1]) for j in range(self.steps[k].nargs)])
            for row in self.loops.rows()
        ]
        return Program, (*own, rows)

    def __dealloc__(self):
        free(self.steps)
        free(self.args)
        free(self.blocks)
        if not self.borrows:        # `origin` may be cleared by then
            free(self.literals)

    cdef int64_t run(self, char **bases, Team team) noexcept nogil:
        cdef Run run
        run.steps = self.steps
        run.loops, run.nloops = self.loops.loops, self.loops.count
        run.nsteps = self.loops.nturns
        run.bases = bases
        bases[1] = self.literals
        run.look_ns, run.stopped, run.refused = gp_coarse_ns() + LOOK_NS, 0, 0
        run.recording = enter_recording()
        if run.recording == NULL:
            self._run(&run, team)
        else:
            run.program, run.number, run.thread = self.serial, count_run(run.recording), current_thread()
            self._run(&run, team)
            leave_recording(run.recording)
        return STOPPED if run.stopped else run.refused

    cdef void _run(self, Run *run, Team team) noexcept nogil:
        if team is not None and gp_team_load(&self.trials) >= 0:
            self._share(run, team)
        else:
            run_alone(run, 0, 0)

    cdef bint needs(self, int resource, char **bases) noexcept nogil:
        cdef int64_t k
        if self.always & resource or not self.ever & resource:
            return self.always & resource != 0
        for k in range(self.nsteps):
            if self.steps[k].resources & resource and is_due(bases, &self.steps[k]):
                return True
        return False

    cdef void _share(self, Run *run, Team team) noexcept nogil:
        """Run on the team, if it is free and the work is worth it."""
        cdef int64_t trials = gp_team_load(&self.trials)
        cdef int64_t k = 0 if trials == 0 and self.streams is not None else run_single_tasks(run, 0, 0)
        cdef int64_t place = k << TASK_BITS, nthreads
        if run.stopped:
            return
        if trials > 0:
            place = run_trial(run, k)
            if run.stopped:
                return
            if place >> TASK_BITS == run.nsteps:
                gp_team_cas(&self.trials, trials, NEVER)
                return
            gp_team_cas(&self.trials, trials, trials - 1)
        run.first, run.begin = place >> TASK_BITS, place & (ONE_STEP - 1)
        nthreads = team.enter(self.nthreads)
        if nthreads == 0:
            run_alone(run, run.first, run.begin)
            return
        if self.streams is not None:
            self.streams.run(
                team, nthreads, call_numbered, is_due_numbered, look, run, run.first, run.begin
            )
        else:
            run.group_size = group_size_of(nthreads, MAX_GROUPS)
            run.ngroups = (nthreads + run.group_size - 1) // run.group_size
            run.team = team.team
            open_step(run, run.first)
            team.run(nthreads, run_thread, run)
        team.leave()

    def describe(self):
        """What runs, step by step.

        Returns
        -------
        steps : list of tuple
            Kernel and instruction set, number of tasks, parameter block as bytes, (base, offset in bytes) of the
            arguments, offset of the scratch and bytes from one thread's to the next's, trips of its loop and the bytes
            by which arguments move on, guard.
        """
        cdef int64_t k, j
        cdef Step *step
        found, trips = [], self.loops.trips()
        for k in range(self.nsteps):
            step, call = &self.steps[k], self.calls[k]
            block = PyBytes_FromStringAndSize(<const char *>step.params, call.params.nbytes)
            args = tuple([(step.args[j].base, step.args[j].offset) for j in range(step.nargs)])
            scratch = (step.scratch, step.scratch_stride) if step.scratch_stride else None
            guard = None if step.guard == NO_GUARD else (step.guard, step.wants_constant)
            loop = None
            if trips[k]:
                loop = trips[k], tuple([step.args[j].stride for j in range(step.nargs)])
            found.append((f"{call.kernel.name}:{call.kernel.isa}", step.ntasks, block, args, scratch, loop, guard))
        return found

    def time_runs(self, addresses, Team team not None, int64_t repeats):
        """How long runs take on memory that the caller owns.

        Parameters
        ----------
        addresses : sequence of int
            For each base, in order; 0 for a constant that is missing. That of the literals is not looked at.
        team : Team
            Whose threads share the runs; where it is busy or closed they stay on one thread.
        repeats : int

        Returns
        -------
        times : list of int
            Of each run. Unit: nanoseconds.

        Raises
        ------
        InvalidArgumentError
            There are not `nbases` addresses.
        """
        if len(addresses) != self.nbases:
            raise InvalidArgumentError(explain("addresses", accepted=f"{self.nbases} of them", got=len(addresses)))
        room = bytearray(self.nbases * sizeof(void *))
        cdef char **bases = <char **><char *>room
        cdef int64_t start, k, status
        times = []
        for k in range(self.nbases):
            bases[k] = <char *><uintptr_t>addresses[k]
        for _ in range(repeats):
            with nogil:
                start = gp_clock_ns()
                status = self.run(bases, team)
                k = gp_clock_ns()
            check_run(status, self, None)
            times.append(k - start)
        return times

    @property
    def uses_blas(self):
        return self.always & BLAS != 0

    @property
    def nbytes(self):
        """Memory of steps, arguments, literals and parameter blocks. Unit: bytes."""
        own = self.nsteps * sizeof(Step) + self.nargs * sizeof(ArgRef) + self.loops.nbytes + self.nblocks
        if self.borrows:
            return own
        return own + self.nliterals + sum([call.params.nbytes for call in self.calls])

    def __len__(self):
        return self.nsteps

    def __repr__(self):
        kernels = ", ".join([f"{call.kernel.name}__{call.kernel.isa}" for call in self.calls[:8]])
        more = ", ..." if self.nsteps > 8 else ""
        return f"Program({self.nsteps} steps, arena {self.arena_nbytes} bytes: {kernels}{more})"
