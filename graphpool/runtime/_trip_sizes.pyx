"""Sizes that change from trip to trip of a loop: what the form's terms say of each, written into programs in place."""

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from graphpool._size_program cimport Numbers, SizeProgram, SizeTable, SizeValues
from graphpool._sizes cimport Size

from ._ndarray cimport fields_of
from ._program cimport Program
from ._variable cimport VariableProgram

import numpy as np

from graphpool.errors import StateError, explain

cdef enum:
    COUNTER = -1
    FIXED = -2
    FIRST_LISTED = -3
    NONE = -1
    ANY = -1

cdef int64_t _MOST_EXTENT = <int64_t>1 << 48

MOST_EXTENT = _MOST_EXTENT
"""What extents of the run may be; no axis of an array is longer, and bounds of slices beyond it mean the same."""


cdef tuple _LISTED = (np.dtype(np.int32), np.dtype(np.int64))


cdef class TripSizes:
    """The sizes of a form in the trips of a loop, and its programs, which are rewritten for each.

    Parameters
    ----------
    program : SizeProgram
    sources : sequence of int
        Of each symbol the dimension that it is, counted over all states; -1 for the number of the trip, -2 for one that
        stays, -3 for what the first array of integers has at that number, -4 for the second one, and so on.
    kept : sequence of Size or int
        Sizes that stay in all trips.
    states : sequence of (tuple, tuple, Size or int)
        Of each state the sizes of the input, where None stands for any, and of the output, and those of the output in
        bytes.
    writers : sequence of (VariableProgram, Program, Numbers)
        What is rewritten, and the offsets of its temporaries.
    rooms : sequence of (SizeTable, Numbers)
        What temporaries take, and the most that they may. Unit: bytes.
    nlisted : int
        How many arrays of integers there are.

    Notes
    -----
    `begin` is to be called before the trips of each loop. Ownership: keeps the programs, which nobody else runs
    meanwhile, but not the arrays of integers. Threads: one at a time. Cost of a trip: 2 ns for a term, 1 ns for a
    number that varies.
    """

    def __cinit__(
        self, SizeProgram program not None, sources, kept, states, writers, rooms, int64_t nlisted
    ):
        cdef int64_t k = 0
        self.program = program
        self.values = SizeValues(program.trace, program.nterms, program.nsymbols)
        self.nsymbols, self.nkept, self.nstates, self.nlisted = program.nsymbols, len(kept), len(states), nlisted
        self.ndims = sum([len(sizes) for sizes, *_ in states])
        self.sources = <int32_t *>calloc(self.nsymbols + 1, sizeof(int32_t))
        self.kept = <Kept *>calloc(self.nkept + 1, sizeof(Kept))
        self.dims = <Dim *>calloc(self.ndims + 1, sizeof(Dim))
        self.states = <Held *>calloc(self.nstates + 1, sizeof(Held))
        self.listed = <Listed *>calloc(nlisted + 1, sizeof(Listed))
        if (self.sources == NULL or self.kept == NULL or self.dims == NULL or self.states == NULL
                or self.listed == NULL):
            raise MemoryError()
        if len(sources) != self.nsymbols:
            raise StateError(explain("sources of symbols", accepted=self.nsymbols, got=len(sources)))
        for k in range(self.nsymbols):
            self.sources[k] = sources[k]
            if not FIRST_LISTED - nlisted < self.sources[k] < self.ndims:
                raise IndexError(sources[k])
        for k, size in enumerate(kept):
            self.kept[k].term = self._term(size)
            self.kept[k].value = size if self.kept[k].term == NONE else 0
        self._put_states(states)
        self.writers, self.rooms = list(writers), list(rooms)
        for variable, made, offsets in self.writers:
            if (<Program?>made).origin is not (<VariableProgram?>variable).program:
                raise StateError(explain("a program of another compilation", hint="report this"))
            if (<VariableProgram>variable).nhomes > (<Numbers?>offsets).count:
                raise IndexError(len(offsets))
        for table, most in self.rooms:
            self._check_trace((<SizeTable?>table).trace, (<SizeTable>table).most)
            if (<SizeTable>table).plain.count != (<Numbers?>most).count:
                raise IndexError(len(most))

    cdef int64_t _term(self, object size) except -2:
        """The number of a size's term; NONE for a plain number."""
        if type(size) is not Size:
            return NONE
        self._check_trace((<Size>size).trace, (<Size>size).term)
        return (<Size>size).term

    def _check_trace(self, trace, int64_t term):
        if (trace is not None and trace is not self.program.trace) or term >= self.program.nterms:
            raise StateError(explain("a size of another compilation", hint="report this"))

    def _put_states(self, states):
        cdef int64_t place = 0, k, term, next_term
        for k, (sizes, next_sizes, nbytes) in enumerate(states):
            term = self._term(nbytes)
            self.states[k] = Held(place, len(sizes), term, nbytes if term == NONE else 0, 0)
            for size, other in zip(sizes, next_sizes, strict=True):
                term, next_term = self._term(size), self._term(other)
                self.dims[place] = Dim(0, term, ANY, next_term, other if next_term == NONE else 0)
                if term == NONE and size is not None:
                    self.dims[place].plain = size
                place += 1

    def __dealloc__(self):
        free(self.sources)
        free(self.kept)
        free(self.dims)
        free(self.states)
        free(self.listed)

    def _state(self, int64_t number):
        if not 0 <= number < self.nstates:
            raise IndexError(number)
        return number

    def begin(self, list symbols not None, list kept not None, list shapes not None, list listed not None):
        """Let the sizes be those of a loop's first trip.

        Parameters
        ----------
        symbols : list of int
        kept : list of int
            What the sizes that stay must be.
        shapes : list of tuple of int
            Of the states.
        listed : list of (array, int)
            Arrays of s32 or s64, of one axis, that stay until the trips have ended, and 1 or -1, by which integers are
            multiplied. What is negative then counts as 0.
        """
        cdef int64_t k, axis
        cdef tuple shape
        got, accepted = tuple(map(len, (symbols, kept, shapes, listed))), (self.nsymbols, self.nkept, self.nstates)
        if got != (*accepted, self.nlisted):
            raise StateError(explain("sizes", accepted=(*accepted, self.nlisted), got=got))
        self.is_current = False
        for k in range(self.nsymbols):
            self.values.values[self.values.nterms + k] = symbols[k]
        for k in range(self.nkept):
            if self.kept[k].term != NONE:
                self.kept[k].value = kept[k]
            elif self.kept[k].value != kept[k]:
                raise StateError(explain("a size that stays", accepted=self.kept[k].value, got=kept[k]))
        for k in range(self.nstates):
            shape = shapes[k]
            if len(shape) != self.states[k].rank:
                raise StateError(explain("dimensions of a state", accepted=self.states[k].rank, got=len(shape)))
            for axis in range(self.states[k].rank):
                self.dims[self.states[k].first + axis].now = shape[axis]
        for k, (array, sign) in enumerate(listed):
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype not in _LISTED:
                raise StateError(explain("integers of trips", accepted="s32 or s64 of one axis", got=type(array)))
            at, stride = <uintptr_t>fields_of(array).data, array.strides[0]
            self.listed[k] = Listed(at, stride, len(array), array.itemsize == 8, 1 if sign > 0 else -1)

    def set_capacity(self, int64_t number, int64_t nbytes):
        """Say how large the buffers of a state are. Unit: bytes."""
        self.states[<int64_t>self._state(number)].capacity = nbytes

    def shape(self, int64_t number):
        """Of a state, as the trips so far have left it."""
        cdef Held *state = &self.states[<int64_t>self._state(number)]
        cdef int64_t k
        return tuple([self.dims[state.first + k].now for k in range(state.rank)])

    def needed_nbytes(self, int64_t number):
        """What the next trip writes of a state, where its sizes are known. Unit: bytes."""
        return self.states[<int64_t>self._state(number)].nbytes

    cdef int prepare(self, int64_t count) except -1:
        """Let the programs be for the next trip, whose number this is; a `Halt` if that cannot be."""
        cdef int64_t status, k
        for k in range(self.nlisted):
            if not 0 <= count < self.listed[k].count:
                return OTHER_FORM
        if not self._set_symbols(count) and self.is_current:
            return GOES_ON
        self.is_current = False
        status = self.program.evaluate(self.values.values + self.values.nterms, self.values.values)
        if status < 0 or 0 < status <= self.program.nhard or not self._is_kept():
            return OTHER_FORM
        if not self._have_room():
            return MORE_ROOM
        for k in range(self.nstates):
            if self.nbytes(k) > self.states[k].capacity:
                return MORE_BYTES
        for variable, made, offsets in self.writers:
            (<VariableProgram>variable).rewrite(<Program>made, self.values, <Numbers>offsets)
        self.is_current = True
        return GOES_ON

    cdef bint _set_symbols(self, int64_t count) noexcept nogil:
        """Let the symbols be those of the next trip; whether one is another."""
        cdef int64_t k, value
        cdef int64_t *symbols = self.values.values + self.values.nterms
        cdef bint is_other = False
        for k in range(self.nsymbols):
            if self.sources[k] != FIXED:
                if self.sources[k] == COUNTER:
                    value = count
                elif self.sources[k] <= FIRST_LISTED:
                    value = self._number(FIRST_LISTED - self.sources[k], count)
                else:
                    value = self.dims[self.sources[k]].now
                is_other |= symbols[k] != value
                symbols[k] = value
        return is_other

    cdef int64_t _number(self, int64_t place, int64_t count) noexcept nogil:
        """What an array of integers has for a trip, as an extent."""
        cdef Listed *listed = &self.listed[place]
        cdef const void *at = <const void *>(listed.at + <uintptr_t>(count * listed.stride))
        cdef int64_t wide = 0
        cdef int32_t narrow = 0
        if listed.is_wide:
            memcpy(&wide, at, sizeof(wide))
        else:
            memcpy(&narrow, at, sizeof(narrow))
            wide = narrow
        return max(min(max(wide, -_MOST_EXTENT), _MOST_EXTENT) * listed.sign, 0)

    cdef bint _is_kept(self) noexcept nogil:
        """Whether all inputs have the shapes that the symbols say, and what must stay has."""
        cdef int64_t k
        cdef Dim *dim
        cdef int64_t *values = self.values.values
        for k in range(self.ndims):
            dim = &self.dims[k]
            if dim.term == NONE:
                if dim.plain != ANY and dim.plain != dim.now:
                    return False
            elif values[dim.term] != dim.now:
                return False
        for k in range(self.nkept):
            if self.kept[k].term != NONE and values[self.kept[k].term] != self.kept[k].value:
                return False
        return True

    cdef bint _have_room(self):
        """Whether no temporary is larger than planned."""
        cdef SizeTable table
        cdef Numbers most
        cdef int64_t k
        for table, most in self.rooms:
            for k in range(most.count):
                if most.numbers[k] < (table.plain.numbers[k] if table.terms[k] < 0
                                      else self.values.values[table.terms[k]]):
                    return False
        return True

    cdef int64_t nbytes(self, int64_t number) noexcept nogil:
        """What the next trip writes of a state. Unit: bytes."""
        cdef Held *state = &self.states[number]
        if state.term != NONE:
            state.nbytes = self.values.values[state.term]
        return state.nbytes

    cdef void advance(self) noexcept nogil:
        """Let the states have the shapes that the trip has given them."""
        cdef int64_t k, size
        cdef Dim *dim
        for k in range(self.ndims):
            dim = &self.dims[k]
            size = dim.next_plain if dim.next_term == NONE else self.values.values[dim.next_term]
            self.is_current &= size == dim.now
            dim.now = size
