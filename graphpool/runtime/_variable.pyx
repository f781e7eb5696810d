"""A program whose sizes may vary: what of its steps changes with them, and the programs for other sizes."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from graphpool._size_program cimport SizeValues

from ._program cimport ArgRef, Program, Step, gp_next_serial
from ._program import aligned
from ._streams import StreamLists

from graphpool.errors import StateError, explain

cdef enum:
    NONE = -1
    MOST_TASKS = 1 << 30


cdef struct Patch:
    int64_t place       # in the parameter blocks
    int32_t nbytes
    int32_t term


cdef struct Moved:
    int64_t number      # of the argument
    int64_t home        # temporary in which it lies, or NONE
    int64_t offset      # the part that does not vary
    int64_t term        # the part that does, or NONE


cdef struct Varied:
    int64_t number      # of the step
    int64_t tasks       # term of its tasks, or NONE
    int64_t block       # where its parameter block lies, or NONE: the original's
    int64_t home        # temporary that is its scratch, or NONE
    int64_t stride      # term of the scratch of a thread, or NONE


cdef class VariableProgram:
    """A program, and what of it varies.

    Parameters
    ----------
    program : Program
        For the sizes of the compilation.
    steps : sequence of tuple
        Of each step: its number of tasks, the scratch of a thread in bytes, the number of the temporary that is its
        scratch or None, and the patches of its parameter block.
    args : sequence of (int, int)
        Of each argument, in order of the steps: the number of the temporary in which it lies or None, and its offset
        there or from its base. Unit: bytes.
    lists : sequence of sequence of tuple, default=()
        What each stream runs: of each step its number, what it waits for, and whether others wait for it.

    Notes
    -----
    Ownership: keeps the program, whose literals and constant parameter blocks all others use. Threads: immutable, safe.
    """

    cdef readonly Program program
    cdef Patch *patches
    cdef Moved *moved
    cdef Varied *varied
    cdef int64_t npatches, nmoved, nvaried, nblocks
    cdef list lists
    cdef list sources           # (place of a block, parameter block)

    def __init__(self, Program program not None, steps, args, lists=()):
        cdef int64_t k = 0, n
        self.program, self.lists, self.sources = program, list(lists), []
        self.npatches = sum([len(patches) for *_, patches in steps])
        self.patches = <Patch *>calloc(self.npatches + 1, sizeof(Patch))
        self.moved = <Moved *>calloc(len(args) + 1, sizeof(Moved))
        self.varied = <Varied *>calloc(len(steps) + 1, sizeof(Varied))
        if self.patches == NULL or self.moved == NULL or self.varied == NULL:
            raise MemoryError()
        for n, (ntasks, scratch_nbytes, home, patches) in enumerate(steps):
            term, stride = term_of(ntasks), term_of(aligned(scratch_nbytes))
            if term == NONE and stride == NONE and home is None and not patches:
                continue
            self.varied[self.nvaried] = Varied(n, term, self.nblocks if patches else NONE,
                                               NONE if home is None else home, stride)
            self.nvaried += 1
            if patches:
                block = program.calls[n].params
                for place, nbytes, size in patches:
                    self.patches[k] = Patch(self.nblocks + place, nbytes, term_of(size))
                    k += 1
                self.sources.append((self.nblocks, block))
                self.nblocks += aligned(len(block))
        for n, (home, offset) in enumerate(args):
            if home is not None or term_of(offset) != NONE:
                term = term_of(offset)
                self.moved[self.nmoved] = Moved(n, NONE if home is None else home, offset if term == NONE else 0, term)
                self.nmoved += 1

    def __dealloc__(self):
        free(self.patches)
        free(self.moved)
        free(self.varied)

    def instance(self, SizeValues values not None, offsets, int64_t arena_nbytes):
        """The program for other sizes.

        Parameters
        ----------
        values : SizeValues
        offsets : sequence of int
            Of each temporary in the arena. Unit: bytes.
        arena_nbytes : int
            Of the arena. Unit: bytes.

        Returns
        -------
        program : Program
        """
        cdef Program origin = self.program
        cdef Program made = Program.__new__(Program)
        cdef const unsigned char[::1] block
        cdef int64_t k, place, n
        cdef Moved moved
        cdef Varied varied
        made.origin, made.borrows = origin, True
        made.literals, made.nliterals = origin.literals, origin.nliterals
        made.nargs, made.nsteps = origin.nargs, origin.nsteps
        made.nbases, made.nthreads = origin.nbases, origin.nthreads
        made.calls, made.always, made.ever = origin.calls, origin.always, origin.ever
        made.trials, made.arena_nbytes = origin.trials, arena_nbytes
        made.serial = gp_next_serial()
        made.steps = <Step *>malloc(max(made.nsteps, 1) * sizeof(Step))
        made.args = <ArgRef *>malloc(max(made.nargs, 1) * sizeof(ArgRef))
        made.nblocks = self.nblocks
        made.blocks = <char *>malloc(max(self.nblocks, 1))
        if made.steps == NULL or made.args == NULL or made.blocks == NULL:
            raise MemoryError()
        memcpy(made.steps, origin.steps, made.nsteps * sizeof(Step))
        memcpy(made.args, origin.args, made.nargs * sizeof(ArgRef))
        for k in range(made.nsteps):
            made.steps[k].args = made.args + (origin.steps[k].args - origin.args)
        for place, block in self.sources:
            memcpy(made.blocks + place, &block[0], len(block))
        self._patch(values, made.blocks)
        for k in range(self.nmoved):
            moved = self.moved[k]
            made.args[moved.number].offset = (
                moved.offset + (0 if moved.term == NONE else values.values[moved.term])
                + (0 if moved.home == NONE else <int64_t>offsets[moved.home])
            )
        for k in range(self.nvaried):
            varied = self.varied[k]
            n = varied.number
            if varied.tasks != NONE:
                if not 0 < values.values[varied.tasks] < MOST_TASKS:
                    raise StateError(explain("tasks of a step", accepted="1 .. 2**30", got=values.values[varied.tasks]))
                made.steps[n].ntasks = values.values[varied.tasks]
            if varied.block != NONE:
                made.steps[n].params = made.blocks + varied.block
            if varied.home != NONE:
                made.steps[n].scratch = <int64_t>offsets[varied.home]
            if varied.stride != NONE:
                made.steps[n].scratch_stride = values.values[varied.stride]
        if origin.streams is not None:
            made.streams = StreamLists(
                [[(number, made.steps[<int64_t>number].ntasks, waits, is_event) for number, waits, is_event in row]
                 for row in self.lists]
            )
        return made

    cdef int _patch(self, SizeValues values, char *blocks) except -1:
        """Write the numbers that vary."""
        cdef int64_t k, value
        cdef int32_t narrow
        for k in range(self.npatches):
            value = values.values[self.patches[k].term]
            if self.patches[k].nbytes == 8:
                memcpy(blocks + self.patches[k].place, &value, 8)
            else:
                narrow = <int32_t>value
                if narrow != value:
                    raise StateError(explain("a number of a kernel's parameters", accepted="32 bits", got=value))
                memcpy(blocks + self.patches[k].place, &narrow, 4)
        return 0


cdef int64_t term_of(x) except -2:
    """The term of a size; NONE for a plain number."""
    return x.number if hasattr(x, "number") else NONE
