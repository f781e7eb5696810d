"""A program whose sizes may vary: what of its steps changes with them, and the programs for other sizes."""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from graphpool._size_program cimport Numbers, SizeValues
from graphpool._sizes cimport as_real

from ._program cimport ArgRef, Program, Step, gp_next_serial
from ._program import aligned

from graphpool._sizes import Real
from graphpool.errors import StateError, explain

cdef enum:
    NONE = -1

cdef int64_t MOST_TASKS = <int64_t>1 << 40      # as of `Program`


cdef class VariableProgram:
    """A program, and what of it varies.

    Parameters
    ----------
    program : Program
        For the sizes of the compilation.
    steps : sequence of tuple
        Of each step: its number of tasks, the scratch of a thread in bytes, the number of the temporary that is its
        scratch or None, and the patches of its parameter block.
    args : sequence of (int, int, int)
        Of each argument, in order of the steps: the number of the temporary in which it lies or None, its offset there
        or from its base, and how far it moves on from trip to trip of a loop. Unit: bytes.
    trips : sequence of int, default=()
        Of each loop.

    Notes
    -----
    Ownership: keeps the program, whose literals and constant parameter blocks all others use. Threads: immutable, safe.
    """

    def __init__(self, Program program not None, steps, args, trips=()):
        cdef int64_t k = 0, n
        cdef list blocks = []
        self.program = program
        self.npatches = sum([len(patches) for *_, patches in steps])
        self.patches = <Patch *>calloc(self.npatches + 1, sizeof(Patch))
        self.moved = <Moved *>calloc(len(args) + 1, sizeof(Moved))
        self.varied = <Varied *>calloc(len(steps) + 1, sizeof(Varied))
        self.trips = <int64_t *>calloc(program.loops.count + 1, sizeof(int64_t))
        if self.patches == NULL or self.moved == NULL or self.varied == NULL or self.trips == NULL:
            raise MemoryError()
        homes = [home for _, _, home, _ in steps] + [home for home, _, _ in args]
        self.nhomes = max([home + 1 for home in homes if home is not None], default=0)
        for n, (ntasks, scratch_nbytes, home, patches) in enumerate(steps):
            term, stride = term_of(ntasks), term_of(aligned(scratch_nbytes))
            if term == NONE and stride == NONE and home is None and not patches:
                continue
            self.varied[self.nvaried] = Varied(n, term, self.nblocks if patches else NONE,
                                               NONE if home is None else home, stride)
            self.nvaried += 1
            if patches:
                block = program.calls[n].params
                for place, letter, size in patches:
                    self.patches[k] = Patch(self.nblocks + place, ord(letter), term_of(size), type(size) is Real)
                    k += 1
                blocks.append(bytes(block).ljust(aligned(len(block)), b"\0"))
                self.nblocks += len(blocks[-1])
        self.blocks = b"".join(blocks)
        for n, (home, offset, pace) in enumerate(args):
            term, stride = term_of(offset), term_of(pace)
            if home is not None or term != NONE or stride != NONE:
                self.moved[self.nmoved] = Moved(n, NONE if home is None else home, offset if term == NONE else 0, term,
                                                pace if stride == NONE else 0, stride)
                self.nmoved += 1
        for n, count in enumerate(trips):
            self.trips[n] = term_of(count)

    def __dealloc__(self):
        free(self.patches)
        free(self.moved)
        free(self.varied)
        free(self.trips)

    def __reduce__(self):
        return _restore, (
            self.program,
            (<char *>self.patches)[: self.npatches * sizeof(Patch)],
            (<char *>self.moved)[: self.nmoved * sizeof(Moved)],
            (<char *>self.varied)[: self.nvaried * sizeof(Varied)],
            (<char *>self.trips)[: self.program.loops.count * sizeof(int64_t)],
            self.blocks,
        )

    @property
    def instance_nbytes(self):
        """Memory of a program for other sizes, `Program.nbytes`. Unit: bytes."""
        cdef Program made = self.program
        return made.nsteps * sizeof(Step) + made.nargs * sizeof(ArgRef) + made.loops.nbytes + self.nblocks

    def instance(self, SizeValues values not None, Numbers offsets not None, int64_t arena_nbytes):
        """The program for other sizes.

        Parameters
        ----------
        values : SizeValues
        offsets : Numbers
            Of each temporary in the arena. Unit: bytes.
        arena_nbytes : int
            Of the arena. Unit: bytes.

        Returns
        -------
        program : Program
        """
        cdef Program origin = self.program
        cdef Program made = Program.__new__(Program)
        cdef int64_t k
        if self.nhomes > offsets.count:
            raise StateError(explain("offsets of temporaries", accepted=f"{self.nhomes} at least", got=offsets.count))
        made.origin, made.borrows = origin, True
        made.literals, made.nliterals = origin.literals, origin.nliterals
        made.nargs, made.nsteps, made.loops = origin.nargs, origin.nsteps, origin.loops.copy()
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
        memcpy(made.blocks, <const char *>self.blocks, self.nblocks)
        if origin.streams is not None:
            made.streams = origin.streams.copy()
        self.rewrite(made, values, offsets)
        return made

    cdef int rewrite(self, Program made, SizeValues values, Numbers offsets) except -1:
        cdef int64_t k, n
        cdef Moved moved
        cdef Varied varied
        self._patch(values, made.blocks)
        for k in range(self.nmoved):
            moved = self.moved[k]
            made.args[moved.number].offset = (
                moved.offset + (0 if moved.term == NONE else values.values[moved.term])
                + (0 if moved.home == NONE else offsets.numbers[moved.home])
            )
            made.args[moved.number].stride = (
                moved.stride if moved.stride_term == NONE else values.values[moved.stride_term]
            )
        for k in range(made.loops.count):
            if self.trips[k] != NONE:
                made.loops.loops[k].trips = values.values[self.trips[k]]
        made.loops.count_turns()
        for k in range(self.nvaried):
            varied = self.varied[k]
            n = varied.number
            if varied.tasks != NONE:
                if not 0 < values.values[varied.tasks] < MOST_TASKS:
                    raise StateError(explain("tasks of a step", accepted="1 .. 2**40", got=values.values[varied.tasks]))
                made.steps[n].ntasks = values.values[varied.tasks]
            if varied.block != NONE:
                made.steps[n].params = made.blocks + varied.block
            if varied.home != NONE:
                made.steps[n].scratch = offsets.numbers[varied.home]
            if varied.stride != NONE:
                made.steps[n].scratch_stride = values.values[varied.stride]
        if made.streams is not None:
            for k in range(made.streams.ncalls):
                made.streams.calls[k].ntasks = made.steps[made.streams.calls[k].number].ntasks
        return 0

    cdef int _patch(self, SizeValues values, char *blocks) except -1:
        """Write the numbers that vary."""
        cdef int64_t k, value
        cdef Patch *patch
        for k in range(self.npatches):
            patch = &self.patches[k]
            value = values.values[patch.term]
            if not put_number(blocks + patch.place, patch.letter, value, patch.is_real):
                raise StateError(
                    explain("a number of a kernel's parameters", accepted=f"type {chr(patch.letter)!r}", got=value)
                )
        return 0


def _restore(Program program, bytes patches, bytes moved, bytes varied, bytes trips, bytes blocks):
    """What `VariableProgram.__reduce__` describes, on the same build."""
    cdef VariableProgram made = VariableProgram(program, (), ())
    cdef int64_t k
    free(made.patches)
    free(made.moved)
    free(made.varied)
    free(made.trips)
    made.patches, made.npatches = <Patch *>copied(patches), len(patches) // sizeof(Patch)
    made.moved, made.nmoved = <Moved *>copied(moved), len(moved) // sizeof(Moved)
    made.varied, made.nvaried = <Varied *>copied(varied), len(varied) // sizeof(Varied)
    made.trips = <int64_t *>copied(trips)
    made.blocks, made.nblocks = blocks, len(blocks)
    for k in range(made.nmoved):
        made.nhomes = max(made.nhomes, made.moved[k].home + 1)
    for k in range(made.nvaried):
        made.nhomes = max(made.nhomes, made.varied[k].home + 1)
    return made


cdef void *copied(bytes data) except NULL:
    cdef void *made = malloc(len(data) + 1)
    if made == NULL:
        raise MemoryError()
    memcpy(made, <const char *>data, len(data))
    return made


cdef bint put_number(char *place, int32_t letter, int64_t value, bint is_real) noexcept nogil:
    """Write a number as `struct` would; whether its type has it."""
    cdef double real = as_real(value) if is_real else <double>value
    cdef float narrow_real = <float>real
    cdef int32_t narrow = <int32_t>value
    cdef uint32_t unsigned_narrow = <uint32_t>value
    if letter == c"f":
        memcpy(place, &narrow_real, 4)
    elif letter == c"d":
        memcpy(place, &real, 8)
    elif letter == c"i":
        memcpy(place, &narrow, 4)
        return narrow == value
    elif letter == c"I":
        memcpy(place, &unsigned_narrow, 4)
        return unsigned_narrow == value
    else:
        memcpy(place, &value, 8)
        return letter == c"q" or value >= 0
    return True


cdef int64_t term_of(x) except -2:
    """The term of a size; NONE for a plain number."""
    return x.number if hasattr(x, "number") else NONE
