"""What each run counts: itself among the jobs of its engine, and a use of its model."""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t

from graphpool._atomic cimport gp_add, gp_load
from graphpool.memory._gate cimport clock_ns

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
        return PyThread_get_thread_ident() in self.running

    @property
    def own_nbytes(self):
        """What tells the bytes that the budget counts for this thread's job between runs; None without a job."""
        return self.running.get(PyThread_get_thread_ident())

    def begin(self, own_nbytes, by=None):
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

    def end(self, by=None):
        """End the job of this thread, if it has begun; nobody is to be alone any more if it was `by`."""
        with cython.critical_section(self):
            self.running.pop(PyThread_get_thread_ident(), None)
            if self.alone is by:
                self.alone = None


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
