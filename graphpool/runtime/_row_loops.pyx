"""Loops of a program: consecutive steps that run once for each slice of a batch, whatever their number."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from ._streams cimport TASK_BITS

from graphpool.errors import InvalidArgumentError, explain

cdef int64_t MOST_TURNS = <int64_t>1 << (62 - TASK_BITS)    # a run counts its steps in the bits beside those of tasks


cdef class RowLoops:
    """The loops among so many steps.

    Parameters
    ----------
    nsteps : int
    loops : sequence of (int, int, int), default=()
        First step, the one behind the last, and trips; ascending.

    Attributes
    ----------
    count : int
        Loops.
    nturns : int
        Steps of a run: those of each trip counted.

    Raises
    ------
    InvalidArgumentError
        They overlap or lie outside of the steps, or a run has too many.
    """

    def __cinit__(self, int64_t nsteps, loops=()):
        cdef int64_t reached = 0, first, end, trips
        self.nsteps = nsteps
        self.loops = <Loop *>calloc(len(loops) + 1, sizeof(Loop))
        if self.loops == NULL:
            raise MemoryError()
        for first, end, trips in loops:
            if not reached <= first < end <= nsteps:
                raise InvalidArgumentError(
                    explain("steps of a loop", accepted=f"in {reached} .. {nsteps}", got=(first, end))
                )
            self.loops[self.count] = Loop(first, end - first, trips, 0, 0)
            self.count += 1
            reached = end
        self.count_turns()

    def __dealloc__(self):
        free(self.loops)

    cdef RowLoops copy(self):
        cdef RowLoops made = RowLoops(self.nsteps, self.rows())
        return made

    cdef int count_turns(self) except -1:
        cdef int64_t k, more = 0
        cdef Loop *loop
        for k in range(self.count):
            loop = &self.loops[k]
            if not 0 < loop.trips <= MOST_TURNS // loop.nsteps:
                most = MOST_TURNS // loop.nsteps
                raise InvalidArgumentError(explain("trips of a loop", accepted=f"1 .. {most}", got=loop.trips))
            loop.begin = loop.first + more
            loop.end = loop.begin + loop.nsteps * loop.trips
            more += loop.nsteps * (loop.trips - 1)
        self.nturns = self.nsteps + more
        if self.nturns > MOST_TURNS:
            raise InvalidArgumentError(explain("steps of a run", accepted=f"at most {MOST_TURNS}", got=self.nturns))
        return 0

    def rows(self):
        """First step, the one behind the last, and trips of each loop."""
        cdef int64_t k
        cdef Loop *loop = self.loops
        return tuple([(loop[k].first, loop[k].first + loop[k].nsteps, loop[k].trips) for k in range(self.count)])

    def trips(self):
        """Of each step how often a run takes it, for those in loops; 0 for others."""
        found = [0] * self.nsteps
        for first, end, trips in self.rows():
            found[first:end] = [trips] * (end - first)
        return tuple(found)

    @property
    def nbytes(self):
        """Memory of the loops. Unit: bytes."""
        return self.count * sizeof(Loop)
