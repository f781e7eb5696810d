"""What each run passes: it counts itself among the jobs of its engine, and as a use of its model."""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t

from graphpool._atomic cimport gp_add, gp_load
from graphpool.memory._budget cimport Budget
from graphpool.memory._gate cimport clock_ns

from functools import partial

from graphpool.errors import OutOfMemoryError

cdef enum:
    HORIZON = 10    # uses over which the mean interval between two of them is taken, about; older ones fade


cdef class Jobs:
    """The jobs of an engine that are going on, one a thread, and whether one is to be alone.

    Attributes
    ----------
    begun : int
        Jobs that have begun so far.
    alone : object
        Who is to be alone, so that no other job begins; None if nobody is.

    Notes
    -----
    Threads: safe. Cost: a tenth of a microsecond.
    """

    def __cinit__(self):
        self.forget()

    def forget(self):
        """Nobody is there: in a forked child the threads of the others do not exist."""
        self.running, self.alone = {}, None

    @property
    def count(self):
        """How many are going on."""
        return len(self.running)

    @property
    def is_here(self):
        """Whether a job of this thread is going on."""
        return self.has_own()

    cdef bint has_own(self) except -1:
        """As `is_here`."""
        return PyThread_get_thread_ident() in self.running

    @property
    def own_nbytes(self):
        """What tells the bytes that the budget counts for this thread's job between runs; None without a job."""
        return self.running.get(PyThread_get_thread_ident())

    cpdef int64_t begin(self, own_nbytes, by=None) except -2:
        """Begin a job of this thread unless another is to be alone.

        Parameters
        ----------
        own_nbytes : callable
            See `own_nbytes`.
        by : object, optional
            Who is to be alone from now on, and begins once no other job is going on.

        Returns
        -------
        number : int
            How many have begun, if no other job is going on; 0 beside others; -1 if it has not begun.
        """
        with cython.critical_section(self):
            if by is not None:
                self.alone = by
            if self.alone is not by or (by is not None and self.running):
                return -1
            is_first = not self.running
            self.begun += 1
            self.running[PyThread_get_thread_ident()] = own_nbytes
            return self.begun if is_first else 0

    cpdef end(self, by=None):
        """End the job of this thread, if it has begun; nobody is to be alone any more if it was `by`."""
        with cython.critical_section(self):
            self.running.pop(PyThread_get_thread_ident(), None)
            if self.alone is by:
                self.alone = None


cdef class JobRunner:
    """What jobs go through that find their memory; base of `MemoryQueue`, which says what becomes of the others.

    Parameters
    ----------
    budget : Budget
    """

    def __cinit__(self, Budget budget not None, *_, **__):
        self._jobs, self._budget = Jobs(), budget

    cpdef run(self, work, own_nbytes, tuple given=(), bint is_load=False):
        """What `work` returns, which may be tried several times; raises what it raises.

        Parameters
        ----------
        work : callable
            Lets go of what it took when it raises `OutOfMemoryError`.
        own_nbytes : callable
            Bytes that the budget counts for what the job belongs to between runs: its model. Unit: bytes.
        given : tuple, default=()
            What `work` takes.
        is_load : bool, default=False
            Whether it takes memory for good.

        Raises
        ------
        OutOfMemoryError
            It does not fit; with ``wait``, not on an idle engine either, of which `smallest_limit` would do.
        MemoryTimeoutError
            It would fit on an idle engine, and no memory came free in time.
        """
        cdef int64_t number = 0
        if self._jobs.has_own():
            return work(*given)     # within another job, which is tried again as a whole
        try:
            number = self._jobs.begin(own_nbytes)
            if number < 0:
                number = self._wait_to_begin(own_nbytes)
            return work(*given)
        except OutOfMemoryError as error:
            if not self._may_fit_later(number, error, own_nbytes):
                raise
        finally:    # as `MemoryQueue._end`, on the path of every run
            self._jobs.end()
            self._budget.gate.notify()
        return self._try_in_turn(partial(work, *given), own_nbytes, is_load)


cdef class UseClock:
    """The time of an engine's models, counted in uses of any of them. Threads: safe."""

    @property
    def now(self):
        """Uses so far."""
        return gp_load(&self.ticks)


cdef class UseCount:
    """How often and when something was used.

    Parameters
    ----------
    clock : UseClock
    others : sized
        All that count by this clock: at first they are taken to be used alike.

    Attributes
    ----------
    uses : int
    last : int
        Time of the last use by the clock.
    last_s : float or None
        The same as `time.monotonic` gives it; None before the first. Unit: seconds.
    interval : float
        Mean of the times between two uses, of which older ones fade.

    Notes
    -----
    Threads: safe. Cost of a use: 50 ns.
    """

    def __cinit__(self, UseClock clock not None, others):
        self.clock, self.others = clock, others

    cpdef touch(self):
        """Count a use."""
        cdef int64_t now = gp_add(&self.clock.ticks, 1), now_ns = clock_ns()
        cdef double first = <double>len(self.others) if self.uses == 0 else 0.0
        with cython.critical_section(self):
            if self.uses:
                self.interval += (now - self.last - self.interval) / min(self.uses + 1, HORIZON)
            else:
                self.interval = first
            self.last, self.last_ns = now, now_ns
            self.uses += 1

    @property
    def last_s(self):
        return self.last_ns * 1e-9 if self.uses else None
