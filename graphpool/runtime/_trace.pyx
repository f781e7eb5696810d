"""Recordings of what each thread did when. Off, they cost a run one load; on, two readings of the clock a piece.

A run that finds a recording on counts itself in before it looks again, and a recorder that is stopped takes the pointer
away before it waits for the count to fall to nothing: so no thread writes into memory that is gone.
"""

import threading
from os import register_at_fork

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.time cimport nanosleep, timespec

from graphpool._kernels.core._team cimport gp_clock_ns, gp_team_add, gp_team_load, gp_team_store

from graphpool.errors import InvalidArgumentError, StateError, explain


cdef extern from "<pthread.h>" nogil:
    size_t pthread_self()

cdef int64_t _pointer = 0       # to the Recording that is on
cdef int64_t _readers = 0       # runs that may use it
_lock = threading.Lock()
_recorder = None


cdef Recording *enter_recording() noexcept nogil:
    cdef Recording *recording
    if gp_team_load(&_pointer) == 0:
        return NULL
    gp_team_add(&_readers, 1)
    recording = <Recording *>gp_team_load(&_pointer)
    if recording == NULL:
        gp_team_add(&_readers, -1)
    return recording


cdef void leave_recording(Recording *recording) noexcept nogil:
    if recording != NULL:
        gp_team_add(&_readers, -1)


cdef int64_t count_run(Recording *recording) noexcept nogil:
    return gp_team_add(&recording.nruns, 1)


cdef int64_t current_thread() noexcept nogil:
    return <int64_t>pthread_self()


cdef void put_slice(Recording *recording, const Slice *slice) noexcept nogil:
    cdef int64_t place = gp_team_add(&recording.nslices, 1) - 1
    if place < recording.capacity:
        recording.slices[place] = slice[0]


cdef void jitter(Recording *recording) noexcept nogil:
    cdef uint64_t mixed
    cdef timespec pause
    if recording.jitter_ns > 0:
        mixed = <uint64_t>gp_clock_ns() * 6364136223846793005u + 1442695040888963407u
        pause.tv_sec, pause.tv_nsec = 0, <long>((mixed >> 33) % <uint64_t>recording.jitter_ns)
        nanosleep(&pause, NULL)


cdef class Recorder:
    """Records what every thread of every program does while it is on.

    Keeps the first `capacity` slices, one of 64 bytes for each piece of a step that a thread ran; `dropped` counts the
    others. With `jitter_ns` every piece starts up to so much later, at random: for tests that want other interleavings.
    `notes` has what was noted from Python: name, thread, start and end on the monotonic clock, in nanoseconds.

    Ownership: its memory is allocated here, once, and nothing while it records. Threads: safe; one recorder is on at a
    time in a process. Fork: a child has no recorder on.
    """

    cdef Recording recording
    cdef readonly list notes
    cdef bint on

    def __cinit__(self, int64_t capacity=65536, int64_t jitter_ns=0):
        if capacity < 1 or not 0 <= jitter_ns < 1_000_000_000:
            raise InvalidArgumentError(
                explain("capacity, jitter_ns", accepted="1 .. , 0 .. 999_999_999", got=(capacity, jitter_ns))
            )
        self.notes = []
        self.recording.capacity, self.recording.jitter_ns = capacity, jitter_ns
        self.recording.slices = <Slice *>calloc(capacity, sizeof(Slice))
        if self.recording.slices == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.recording.slices)

    @property
    def dropped(self):
        return max(gp_team_load(&self.recording.nslices) - self.recording.capacity, 0)

    @property
    def is_on(self):
        """Whether it records now."""
        return self.on

    def start(self):
        """Record from now on.

        Raises
        ------
        StateError
            A recorder is on already.
        """
        global _recorder
        with _lock:
            if _recorder is not None:
                raise StateError(explain("a recording is on already", hint="end the other trace first"))
            _recorder, self.on = self, True
            gp_team_store(&_pointer, <int64_t>&self.recording)

    def stop(self):
        """Record no more; waits for the runs that do. Idempotent."""
        global _recorder
        cdef timespec pause
        pause.tv_sec, pause.tv_nsec = 0, 20_000
        with _lock:
            if not self.on:
                return
            gp_team_store(&_pointer, 0)
            with nogil:
                while gp_team_load(&_readers) != 0:
                    nanosleep(&pause, NULL)
            _recorder, self.on = None, False

    def note(self, str name, int64_t start_ns, int64_t end_ns):
        """Add what ran in Python on this thread."""
        self.notes.append((name, current_thread(), start_ns, end_ns))

    def slices(self):
        """What was recorded, by the end: (program, run, thread, step, thread index, tasks, start, end, trip)."""
        cdef int64_t i
        cdef Slice s
        found = []
        for i in range(min(gp_team_load(&self.recording.nslices), self.recording.capacity)):
            s = self.recording.slices[i]
            found.append((s.program, s.run, s.thread, s.step, s.thread_index, s.ntasks, s.start_ns, s.end_ns, s.trip))
        return found


cpdef current():
    """The recorder that is on, or None."""
    return _recorder


def clock_ns():
    """The clock of recordings."""
    return gp_clock_ns()


def _reset_in_child():
    """Nobody is left in a forked child who would leave a recording, or stop it."""
    global _lock, _recorder
    _lock = threading.Lock()
    gp_team_store(&_pointer, 0)
    gp_team_store(&_readers, 0)
    _recorder = None


register_at_fork(after_in_child=_reset_in_child)
