"""Streams of a program: static lists of calls that the threads of a team work through, without the interpreter.

An event is how many calls of its stream have ended: one counter a stream serves all events of a run. It only grows,
and lives on the stack of the thread that runs, so nothing is reset and runs side by side share nothing.

A thread looks at its own stream first, then at the others. A stream is in one of four states, all in one word:

    (k, PARKED)     call k may have to wait; whoever finds that it need not takes the stream over
    (k, TAKEN)      a thread is at work on call k and on what follows
    (k, OPEN)       the tasks of call k are for any thread; when they have ended, one is at work on what follows
    (end, 0)        all calls have ended

The tasks of an open call are shared out as those of a step of a program on one stream: threads form groups, each group
has a range of the tasks and words of its own, how far that has come and how much of it has ended, and a thread takes
tasks of other groups when those of its own are taken. What lets others look again is counted by groups too: who waits
looks at the sum. So no word is changed by more threads than a group has but once a call, or once a group and call.

So nobody waits for a thread that has not woken up, idle threads help where a call has tasks left, and one alone can do
everything. No schedule deadlocks whose calls are numbered in an order that respects all waits: among the calls that
have not ended, the first in that order is at the head of its stream, and whatever it waits for has ended.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.time cimport nanosleep, timespec

from graphpool._kernels.core._team cimport (
    Team, gp_clock_ns, gp_team, gp_team_add, gp_team_announce, gp_team_await, gp_team_cas, gp_team_load, gp_team_store,
    gp_team_sum
)

from graphpool.errors import BackendError, InvalidArgumentError, StateError, explain


cdef enum:
    _MAX_STREAMS = 64
    MAX_RANGES = 128        # of all streams: a run takes 58 KiB of its caller's stack

MAX_STREAMS = _MAX_STREAMS

cdef int64_t ONE_CALL = <int64_t>1 << TASK_BITS
cdef int64_t PARKED = ONE_CALL - 1
cdef int64_t OPEN = ONE_CALL - 2
cdef int64_t TAKEN = ONE_CALL - 3

cdef enum Outcome:
    ENDED, IDLE, WORKED


# What changes of one stream in one run; each word that several threads write has two cache lines of its own.
cdef struct Queue:
    int64_t place           # call << TASK_BITS | PARKED, OPEN or TAKEN
    int64_t padding0[15]
    int64_t nfinished       # groups whose ranges of the open call have ended
    int64_t padding1[15]
    int64_t count           # ended calls: the epoch of the stream's events
    int64_t padding2[15]


# Changes when threads without work should look again: each by the threads of one group.
cdef struct Ticks:
    int64_t count
    int64_t padding[15]


cdef struct StreamRun:
    const Call *calls
    const Wait *waits
    const int64_t *firsts
    int64_t nstreams
    int64_t ngroups
    int64_t group_size      # threads of a group; the last one may have fewer
    int64_t nthreads
    int64_t number          # call and task that the run begins with
    int64_t begin
    call_fn fn
    due_fn is_due
    look_fn look
    void *context
    gp_team *team
    int64_t status          # of the first call that failed
    int64_t padding0[15]
    Ticks ticks[MAX_GROUPS]
    Queue queues[_MAX_STREAMS]
    Group groups[MAX_RANGES]    # of each stream, one after another


cdef void tick(StreamRun *run, int64_t thread) noexcept nogil:
    gp_team_add(&run.ticks[thread // run.group_size].count, 1)
    gp_team_announce(run.team)


cdef bint is_ready(StreamRun *run, const Call *call) noexcept nogil:
    cdef const Wait *wait = run.waits + call.first_wait
    cdef int64_t i
    for i in range(call.nwaits):
        if gp_team_load(&run.queues[wait[i].stream].count) < wait[i].count:
            return False
    return True


cdef bint is_stopped(StreamRun *run, int64_t status, int64_t thread) noexcept nogil:
    """Whether this call or another one has failed; the first failure is kept and everybody told."""
    if status != 0 and gp_team_cas(&run.status, 0, status):
        tick(run, thread)
    return gp_team_load(&run.status) != 0


cdef bint goes_on(StreamRun *run, int64_t thread) noexcept nogil:
    """Look up between calls; whether the thread may begin another."""
    cdef Look found = run.look(run.context, thread)
    if found == WAKE:
        tick(run, thread)
    return found == GO_ON or not is_stopped(run, -(found == STOP), thread)


cdef void close_call(StreamRun *run, int64_t stream, int64_t k, int64_t thread) noexcept nogil:
    gp_team_store(&run.queues[stream].count, k + 1)
    if run.calls[run.firsts[stream] + k].is_event:
        tick(run, thread)


cdef int64_t first_of(const StreamRun *run, const Call *call, int64_t group) noexcept nogil:
    """Where the tasks of a group begin, which every thread can tell."""
    return range_of(call.ntasks, run.begin if call.number == run.number else 0, run.ngroups, group)


cdef void open_call(StreamRun *run, int64_t stream, int64_t k) noexcept nogil:
    """Let all threads take tasks of a call, those that the run begins with; nobody else touches the stream."""
    cdef const Call *call = &run.calls[run.firsts[stream] + k]
    cdef Group *groups = &run.groups[stream * run.ngroups]
    cdef int64_t group
    run.queues[stream].nfinished = 0
    for group in range(run.ngroups):
        groups[group].done = 0
        gp_team_store(&groups[group].place, k << TASK_BITS | first_of(run, call, group))
    gp_team_store(&run.queues[stream].place, k << TASK_BITS | OPEN)


cdef void advance(StreamRun *run, int64_t stream, int64_t k, int64_t thread) noexcept nogil:
    """Run the calls of a stream that nobody else touches, from `k` on, until one must wait or can be shared."""
    cdef Queue *queue = &run.queues[stream]
    cdef int64_t end = run.firsts[stream + 1] - run.firsts[stream]
    cdef const Call *call
    while k < end:
        call = &run.calls[run.firsts[stream] + k]
        if not is_ready(run, call):
            gp_team_store(&queue.place, k << TASK_BITS | PARKED)  # the caller looks at all streams again
            return
        if run.is_due(run.context, call.number):
            if call.ntasks > 1 and run.nthreads > 1:
                open_call(run, stream, k)
                tick(run, thread)
                return
            if (
                is_stopped(run, run.fn(run.context, call.number, 0, call.ntasks, thread), thread)
                or not goes_on(run, thread)
            ):
                return
        close_call(run, stream, k, thread)
        k += 1
    gp_team_store(&queue.place, end << TASK_BITS)
    tick(run, thread)


cdef Outcome take_tasks(StreamRun *run, int64_t stream, int64_t k, int64_t number, int64_t thread) noexcept nogil:
    """Run tasks of open call `k` that lie in the range of a group, if there are any."""
    cdef Group *group = &run.groups[stream * run.ngroups + number]
    cdef const Call *call = &run.calls[run.firsts[stream] + k]
    cdef int64_t place = gp_team_load(&group.place), begin = place & PARKED
    cdef int64_t first = first_of(run, call, number), end = first_of(run, call, number + 1), n
    if place >> TASK_BITS != k or begin >= end:
        return IDLE
    n = share_of(begin, end, call.ntasks, run.group_size)
    if not gp_team_cas(&group.place, place, place + n):
        return WORKED   # somebody else took some; look again
    if is_stopped(run, run.fn(run.context, call.number, begin, begin + n, thread), thread):
        return WORKED
    if gp_team_add(&group.done, n) == end - first:
        first = first_of(run, call, 0)
        if gp_team_add(&run.queues[stream].nfinished, 1) == min(run.ngroups, call.ntasks - first):
            close_call(run, stream, k, thread)
            advance(run, stream, k + 1, thread)
    return WORKED


cdef Outcome visit(StreamRun *run, int64_t stream, int64_t thread) noexcept nogil:
    """Do what there is to do for a thread on a stream."""
    cdef Queue *queue = &run.queues[stream]
    cdef int64_t place = gp_team_load(&queue.place)
    cdef int64_t k = place >> TASK_BITS, state = place & PARKED, own = thread // run.group_size, i
    if k == run.firsts[stream + 1] - run.firsts[stream]:
        return ENDED
    if state == PARKED:
        if not is_ready(run, &run.calls[run.firsts[stream] + k]):
            return IDLE
        if not gp_team_cas(&queue.place, place, k << TASK_BITS | TAKEN):
            return IDLE
        advance(run, stream, k, thread)
        return WORKED
    for i in range(run.ngroups if state == OPEN else 0):
        if take_tasks(run, stream, k, (own + i) % run.ngroups, thread) == WORKED:
            return WORKED
    return IDLE


cdef void work(void *context, int64_t thread) noexcept nogil:
    """What each thread of a region does, until all streams have ended or a call has failed."""
    cdef StreamRun *run = <StreamRun *>context
    cdef Outcome outcome = WORKED
    cdef int64_t seen, i, nended
    while gp_team_load(&run.status) == 0 and goes_on(run, thread):
        seen = gp_team_sum(&run.ticks[0].count, run.ngroups)
        nended = 0
        for i in range(run.nstreams):
            outcome = visit(run, (thread + i) % run.nstreams, thread)
            if outcome == WORKED:
                break
            nended += outcome == ENDED
        if nended == run.nstreams:
            return
        if outcome != WORKED:
            gp_team_await(run.team, &run.ticks[0].count, run.ngroups, seen)


cdef class StreamLists:
    """The calls of each stream, with what they wait for.

    `lists` has for each stream its calls in order: the number of the call in issue order, its tasks, the pairs (stream,
    count) that it waits for, and whether another stream waits for it. The numbers are those from 0 on, each once; every
    call waits for calls of smaller numbers only: otherwise, or with more than 64 streams, `InvalidArgumentError` is
    raised.

    Ownership: owns its arrays. Threads: immutable; a run lives on the stack of its caller, in any number of threads.
    Cost of a run beyond its calls: below a microsecond for a call that others wait for or share, tens of nanoseconds
    for any other. Source: static lists as in Graphi (2018); taking over streams that are not under way is our own.
    """

    def __cinit__(self, lists=None):
        cdef int64_t total, i
        if lists is None:
            return      # `copy` fills it in
        lists = [list(calls) for calls in lists]
        _check(lists)
        self.nstreams, self.ncalls = len(lists), sum([len(calls) for calls in lists])
        total = sum([len(waits) for calls in lists for _, _, waits, _ in calls])
        self.calls = <Call *>calloc(max(self.ncalls, 1), sizeof(Call))
        self.waits = <Wait *>calloc(max(total, 1), sizeof(Wait))
        self.firsts = <int64_t *>calloc(self.nstreams + 1, sizeof(int64_t))
        if self.calls == NULL or self.waits == NULL or self.firsts == NULL:
            raise MemoryError()
        for i in range(self.nstreams):
            self.firsts[i + 1] = self.firsts[i] + len(lists[i])
        self._fill([call for calls in lists for call in calls])

    def _fill(self, calls):
        cdef int64_t k = 0, w = 0
        for number, ntasks, waits, is_event in calls:
            self.calls[k] = Call(number, ntasks, w, len(waits), is_event)
            for stream, count in waits:
                self.waits[w] = Wait(stream, count)
                w += 1
            k += 1

    def calls_of(self, int64_t stream):
        """The calls of a stream as they were given, but for their tasks: number, waits, and whether others wait."""
        cdef int64_t k, w
        found = []
        for k in range(self.firsts[stream], self.firsts[stream + 1]):
            first = self.calls[k].first_wait
            waits = [(self.waits[w].stream, self.waits[w].count) for w in range(first, first + self.calls[k].nwaits)]
            found.append((self.calls[k].number, tuple(waits), bool(self.calls[k].is_event)))
        return found

    def __dealloc__(self):
        free(self.calls)
        if not self.borrows:        # `origin` may be cleared by then
            free(self.waits)
            free(self.firsts)

    cdef StreamLists copy(self):
        """Others like these, for calls with other numbers of tasks."""
        cdef StreamLists other = StreamLists.__new__(StreamLists)
        other.origin, other.borrows = self, True
        other.nstreams, other.ncalls, other.waits, other.firsts = self.nstreams, self.ncalls, self.waits, self.firsts
        other.calls = <Call *>malloc(max(self.ncalls, 1) * sizeof(Call))
        if other.calls == NULL:
            raise MemoryError()
        memcpy(other.calls, self.calls, self.ncalls * sizeof(Call))
        return other

    cdef int64_t run(
        self, Team team, int64_t nthreads, call_fn fn, due_fn is_due, look_fn look, void *context, int64_t number,
        int64_t begin
    ) noexcept nogil:
        cdef StreamRun run
        cdef int64_t stream
        run.calls, run.waits, run.firsts, run.nstreams = self.calls, self.waits, self.firsts, self.nstreams
        run.nthreads, run.fn, run.is_due, run.look = nthreads, fn, is_due, look
        run.context, run.team, run.number, run.begin, run.status = context, team.team, number, begin, 0
        run.group_size = group_size_of(nthreads, min(MAX_GROUPS, MAX_RANGES // max(self.nstreams, 1)))
        run.ngroups = (nthreads + run.group_size - 1) // run.group_size
        memset(run.ticks, 0, sizeof(run.ticks))
        for stream in range(self.nstreams):
            seed(&run, stream)
        team.run(nthreads, work, &run)
        return run.status

    def stream_of(self):
        """For each call, by number, the position of its stream."""
        cdef int64_t stream, k
        streams = [0] * self.ncalls
        for stream in range(self.nstreams):
            for k in range(self.firsts[stream], self.firsts[stream + 1]):
                streams[self.calls[k].number] = stream
        return streams

    def rehearse(self, Team team not None, durations_ns, *, bint spin=False, int64_t failing=-1):
        """Run calls that only take time: what a schedule costs and gains on this machine, whatever its kernels.

        A call takes its duration for each of its tasks, asleep, or with `spin` keeping its thread busy; that of number
        `failing` fails at once. Returns when the first task of each call started and its last one ended. Unit:
        nanoseconds.

        Raises `StateError` where the team is busy or has fewer than two threads, `BackendError` (field ``call``) where
        a call failed, after which no call has started once all threads knew, and `InvalidArgumentError` for a wrong
        number of durations.
        """
        cdef int64_t nthreads, status, i
        cdef Rehearsal rehearsal
        if len(durations_ns) != self.ncalls:
            raise InvalidArgumentError(explain("durations_ns", accepted=f"{self.ncalls} values", got=len(durations_ns)))
        rehearsal.calls = <Rehearsed *>calloc(max(self.ncalls, 1), sizeof(Rehearsed))
        if rehearsal.calls == NULL:
            raise MemoryError()
        try:
            for i in range(self.ncalls):
                rehearsal.calls[i].duration_ns = durations_ns[i]
            rehearsal.spin, rehearsal.failing = spin, failing
            nthreads = team.enter(team.nthreads)
            if nthreads == 0:
                raise StateError(explain("the team is busy, closed or has one thread", hint="use a team of your own"))
            with nogil:
                status = self.run(team, nthreads, take_time, always, never, &rehearsal, 0, 0)
                team.leave()
            if status != 0:
                raise BackendError(explain(f"call {status - 1} failed"), backend="rehearsal", call=status - 1)
            return [(rehearsal.calls[i].start_ns, rehearsal.calls[i].end_ns) for i in range(self.ncalls)]
        finally:
            free(rehearsal.calls)

    def __len__(self):
        return self.nstreams

    def __repr__(self):
        return f"StreamLists({self.nstreams} streams, {self.ncalls} calls)"


cdef void seed(StreamRun *run, int64_t stream) noexcept nogil:
    """The state of a stream when all calls before the one that the run begins with have ended, and its first tasks."""
    cdef Queue *queue = &run.queues[stream]
    cdef const Call *calls = run.calls + run.firsts[stream]
    cdef int64_t end = run.firsts[stream + 1] - run.firsts[stream], k = 0
    while k < end and calls[k].number < run.number:
        k += 1
    memset(queue, 0, sizeof(Queue))
    queue.count = k
    queue.place = k << TASK_BITS
    if k < end and calls[k].number == run.number and run.begin > 0:
        open_call(run, stream, k)
    elif k < end:
        queue.place |= PARKED


# ---- calls that only take time

cdef struct Rehearsed:
    int64_t duration_ns
    int64_t start_ns
    int64_t end_ns


cdef struct Rehearsal:
    Rehearsed *calls
    bint spin
    int64_t failing


cdef bint always(void *context, int64_t number) noexcept nogil:
    return True


cdef Look never(void *context, int64_t thread) noexcept nogil:
    return GO_ON


cdef int64_t take_time(void *context, int64_t number, int64_t begin, int64_t end, int64_t thread) noexcept nogil:
    cdef Rehearsal *rehearsal = <Rehearsal *>context
    cdef Rehearsed *call = &rehearsal.calls[number]
    cdef int64_t now = gp_clock_ns(), until = now + call.duration_ns * (end - begin), latest
    cdef timespec pause
    if number == rehearsal.failing:
        return number + 1
    gp_team_cas(&call.start_ns, 0, now)
    if not rehearsal.spin:
        pause.tv_sec, pause.tv_nsec = (until - now) // 1_000_000_000, (until - now) % 1_000_000_000
        nanosleep(&pause, NULL)
    now = gp_clock_ns()
    while now < until:
        now = gp_clock_ns()
    latest = gp_team_load(&call.end_ns)
    while latest < now and not gp_team_cas(&call.end_ns, latest, now):
        latest = gp_team_load(&call.end_ns)
    return 0


def _check(lists):
    if len(lists) > _MAX_STREAMS:
        raise InvalidArgumentError(explain("streams", accepted=f"at most {MAX_STREAMS}", got=len(lists)))
    numbers = [[call[0] for call in calls] for calls in lists]
    if sorted([number for row in numbers for number in row]) != list(range(sum([len(row) for row in numbers]))):
        raise InvalidArgumentError(explain("numbers of calls", accepted="0 .. n - 1, each once", got=numbers))
    for row, calls in zip(numbers, lists):
        if row != sorted(row):
            raise InvalidArgumentError(explain("a stream's calls", accepted="ascending numbers", got=row))
        for number, ntasks, waits, _ in calls:
            for stream, count in waits:
                known = 0 <= stream < len(lists) and 0 < count <= len(numbers[stream])
                if not known or numbers[stream][count - 1] >= number:
                    raise InvalidArgumentError(
                        explain(f"call {number} waits for call {count} of stream {stream}",
                                accepted="a call that is issued before")
                    )
            if not 0 <= ntasks < TAKEN:
                raise InvalidArgumentError(
                    explain(f"tasks of call {number}", accepted=f"0 .. {TAKEN - 1}", got=ntasks)
                )
