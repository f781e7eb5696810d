"""Compiled partitions on memory that a model's runner knows: addresses, where `execute` would check tensors.

And the trips of a loop, which are the same calls on other addresses.
"""

from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from graphpool._kernels.core._team cimport gp_clock_ns

from ._compiled cimport CompiledPartition
from ._constants cimport Constants, acquire, release
from ._host_call cimport HostBudget
from ._ndarray cimport fields_of, span_nbytes
from ._program cimport BLAS, Program, check_run
from ._stream cimport Stream
from ._tensor cimport Tensor
from ._trip_sizes cimport GOES_ON, TripSizes

from numpy import ndarray

from . import blas_threads
from graphpool.errors import StateError, explain

cdef enum:
    MAX_BASES = 4096    # ports of a compiled partition and forms of its constants, see there

cdef int64_t UNENDING = <int64_t>1 << 62        # trips of a loop without a trip count
cdef int64_t NESTED_TRIPS = 1 << 16             # between two looks at the budget
cdef int64_t NESTED_NS = 50_000_000

cdef char _nowhere = 0  # what has no bytes


def address_of(array):
    """Of the first element of an array of NumPy."""
    if not isinstance(array, ndarray):
        raise TypeError(array)
    return <uintptr_t>fields_of(array).data


cdef class Addresses:
    """Where the tensors of a run lie, by number.

    Parameters
    ----------
    count : int

    Notes
    -----
    Ownership: none of the memory, which must outlive the runs. Threads: one run at a time.
    """

    def __cinit__(self, int64_t count):
        cdef int64_t k
        self.copies = []
        self.at = <char **>calloc(count + 1, sizeof(char *))
        if self.at == NULL:
            raise MemoryError()
        self.count = count
        for k in range(count):
            self.at[k] = &_nowhere

    def __dealloc__(self):
        free(self.at)

    def copy(self):
        """Others like these."""
        cdef Addresses other = Addresses(self.count)
        memcpy(other.at, self.at, self.count * sizeof(char *))
        return other

    def put(self, int64_t number, uintptr_t address):
        """Place one tensor; 0 where it has no bytes."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        self.at[number] = <char *>address if address else &_nowhere

    def get(self, int64_t number):
        """Where a tensor is."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        return <uintptr_t>self.at[number]

    cpdef bind(self, tuple ids, dict values, list wanted, tensor_of):
        """Place the first tensors: the arrays that `values` has for these ids, which stay as long.

        Parameters
        ----------
        ids : tuple of int
        values : dict
        wanted : list of Described
            Of each id.
        tensor_of : callable
            Takes an id and what is no such array: a tensor on a copy, or raises.
        """
        cdef int64_t k
        if not len(ids) == len(wanted) <= self.count:
            raise IndexError(len(ids))
        for k in range(len(ids)):
            array = values[ids[k]]
            if not self._put_array(k, array, <tuple>wanted[k]):
                tensor = tensor_of(ids[k], array)
                self.copies.append(tensor)
                self.put(k, tensor.data_ptr)

    cdef bint _put_array(self, int64_t k, object array, tuple wanted) except -1:
        """Place an array if it is as wanted."""
        cdef int64_t nbytes
        shape, strides, dtype, _ = wanted
        if type(array) is not ndarray or strides is None:
            return False
        if fields_of(array).descr != <PyObject *>dtype and <object>fields_of(array).descr != dtype:
            return False
        nbytes = span_nbytes(fields_of(array), dtype.itemsize, <tuple>shape, <tuple>strides)
        if nbytes >= 0:
            self.at[k] = fields_of(array).data if nbytes else &_nowhere
        return nbytes >= 0

    cpdef unbind(self):
        """Let go of copies."""
        self.copies.clear()


cdef class StepPorts:
    """A compiled partition, and the numbers that its tensors have among addresses.

    Parameters
    ----------
    compiled : CompiledPartition
        With a primitive, and scratch memory that is the caller's.
    stream : Stream
    constants : sequence of Tensor or None
        Of its inputs those that are constants.
    numbers : sequence of int
        Of its inputs and outputs.
    scratch : int
        Number of its scratch memory.
    """

    def __cinit__(self, CompiledPartition compiled not None, Stream stream not None, constants, numbers,
                  int64_t scratch):
        cdef int64_t k
        self.compiled, self.stream, self.constants, self.scratch = compiled, stream, tuple(constants), scratch
        self.count = len(numbers)
        self.numbers = <int64_t *>calloc(self.count + 1, sizeof(int64_t))
        if self.numbers == NULL:
            raise MemoryError()
        for k in range(self.count):
            self.numbers[k] = numbers[k]
        for position in {position for part in compiled.primitive.constant_parts for position in part.sources}:
            if type(self.constants[position]) is not Tensor:
                raise StateError(explain(f"constant input {position} of {compiled!r} is not known", hint="report this"))

    def __dealloc__(self):
        free(self.numbers)


cdef class StepCall:
    """Runs a compiled partition's program, or one for other sizes, on addresses.

    Parameters
    ----------
    ports : StepPorts
    program : Program
    addresses : Addresses
        Of all numbers of the ports: apart from one another but for in-place pairs, and as large as the program says.

    Notes
    -----
    Raises, cost and signals as `CompiledPartition.execute`. Threads: one at a time for one set of addresses.
    """

    def __init__(self, StepPorts ports not None, Program program not None, Addresses addresses not None):
        cdef int64_t k
        for k in range(ports.count):
            if not 0 <= ports.numbers[k] < addresses.count:
                raise IndexError(ports.numbers[k])
        if not 0 <= ports.scratch < addresses.count:
            raise IndexError(ports.scratch)
        self.ports, self.program, self.addresses = ports, program, addresses

    def __call__(self):
        self.call()

    cdef int call(self) except -1:
        cdef char *bases[MAX_BASES]
        cdef PyObject *held[MAX_BASES]
        cdef StepPorts ports = self.ports
        cdef Constants constants
        cdef int64_t k
        if ports.compiled.closed or ports.stream.closed:
            ports.compiled._check_stream(ports.stream)
        bases[0] = self.addresses.at[ports.scratch]
        for k in range(ports.count):
            bases[2 + k] = self.addresses.at[ports.numbers[k]]
        if ports.compiled.nparts == 0:
            return self.run(bases)
        constants = ports.compiled.all_constants()
        acquire(constants, ports.constants, None, bases, held)
        try:
            return self.run(bases)
        finally:
            release(constants, held)

    cdef int run(self, char **bases) except -1:
        cdef int64_t status
        if not self.program.needs(BLAS, bases):
            with nogil:
                status = self.program.run(bases, self.ports.stream.team)
            return check_run(status, self.program, self.ports.compiled)
        blas_threads.enter()
        try:
            with nogil:
                status = self.program.run(bases, self.ports.stream.team)
            return check_run(status, self.program, self.ports.compiled)
        finally:
            blas_threads.leave()


cdef struct Passed:     # a tensor of a call that one within it reads or writes
    int64_t outer       # numbers of both
    int64_t inner
    int64_t nbytes      # to copy behind the calls; 0 where they read or write it in place


cdef class InnerCalls:
    """Calls of a form inside another one, on addresses of their own.

    Parameters
    ----------
    addresses : Addresses
    calls : sequence of StepCall or InnerCall
    passed : sequence of (int, int, int)
        Numbers of tensors outside and inside; and the bytes of a result that is copied, 0 for what lies in one place.

    Notes
    -----
    Ownership: none of the memory. Threads: one at a time.
    """

    cdef Addresses addresses
    cdef tuple calls
    cdef Passed *passed
    cdef int64_t npassed, most  # and the largest number outside

    def __cinit__(self, Addresses addresses not None, calls, passed):
        cdef int64_t k, outer, inner, nbytes
        self.addresses, self.calls = addresses, checked_calls(calls, addresses)
        self.npassed = len(passed)
        self.passed = <Passed *>calloc(self.npassed + 1, sizeof(Passed))
        if self.passed == NULL:
            raise MemoryError()
        for k, (outer, inner, nbytes) in enumerate(passed):
            if outer < 0 or not 0 <= inner < addresses.count:
                raise IndexError((outer, inner))
            self.passed[k] = Passed(outer, inner, nbytes)
            self.most = max(self.most, outer)

    def __dealloc__(self):
        free(self.passed)

    cdef int run(self, char **at) except -1:
        """Run on what lies at these addresses."""
        cdef int64_t k
        for k in range(self.npassed):
            if self.passed[k].nbytes == 0:
                self.addresses.at[self.passed[k].inner] = at[self.passed[k].outer]
        call_all(self.calls)
        for k in range(self.npassed):
            if self.passed[k].nbytes:
                memcpy(at[self.passed[k].outer], self.addresses.at[self.passed[k].inner], self.passed[k].nbytes)
        return 0


cdef class InnerCall:
    """A host function that runs models, as a call of a trip.

    Parameters
    ----------
    addresses : Addresses
    condition : int
        Number of a byte that says which of two models runs; -1 for none.
    open_calls : callable
        Takes that byte: the `InnerCalls` of the model, or the `InnerTrips`, or None where Python has to run it.
    work : callable
        Does that.

    Notes
    -----
    Threads: one at a time. Cost: of the calls or trips, where there are any.
    """

    cdef Addresses addresses
    cdef int64_t condition
    cdef object open_calls, work
    cdef list known     # of each byte what was opened; True: nothing was asked yet

    def __init__(self, Addresses addresses not None, int64_t condition, open_calls, work):
        if not -1 <= condition < addresses.count:
            raise IndexError(condition)
        self.addresses, self.condition, self.open_calls, self.work = addresses, condition, open_calls, work
        self.known = [True, True]

    cdef int call(self) except -1:
        cdef Py_ssize_t taken = self.condition >= 0 and self.addresses.at[self.condition][0] != 0
        calls = self.known[taken]
        if calls is True:
            calls = self.open_calls(taken)
            if calls is not None:
                most = (<InnerTrips>calls).most if type(calls) is InnerTrips else (<InnerCalls?>calls).most
                if most >= self.addresses.count:
                    raise IndexError(most)
            self.known[taken] = calls
        if type(calls) is InnerCalls:
            return (<InnerCalls>calls).run(self.addresses.at)
        if calls is None or not (<InnerTrips>calls).run(self.addresses.at):
            self.work()
        return 0


cdef int call_all(tuple calls) except -1:
    for call in calls:
        if type(call) is StepCall:
            (<StepCall>call).call()
        else:
            (<InnerCall>call).call()
    return 0


cdef tuple checked_calls(calls, Addresses addresses):
    for call in calls:
        if type(call) is StepCall:
            is_fit = (<StepCall>call).addresses is addresses
        else:
            is_fit = type(call) is InnerCall and (<InnerCall>call).addresses is addresses
        if not is_fit:
            raise TypeError(f"{call!r} is no call on these addresses")
    return tuple(calls)


cdef struct Carried:    # what the next trip reads where this one writes
    int64_t source      # numbers of its input and output
    int64_t target
    int64_t nbytes
    char *now           # what the trip reads
    char *next          # where it writes
    char *spare         # where the trip after it writes, if that is not what this one reads


cdef struct Moving:     # a row of an array, another one in each trip
    int64_t number
    int64_t stride
    int64_t nbytes      # of a row
    char *now


cdef class Trips:
    """Runs calls again and again: what one trip leaves the next one reads, and rows of arrays go by.

    Parameters
    ----------
    addresses : Addresses
        Of all numbers below. Those that no call writes lie where they are.
    calls : sequence of StepCall or InnerCall
    carried : sequence of (int, int, bool, int, int, int, int)
        Numbers of an input, -1 for one that no call reads, and of an output; whether a call writes the output where it
        is told to, the size in bytes, and addresses: of the first trip's content, which is only read, and of two
        buffers. An output that no call writes is copied.
    read, written : sequence of (int, bool, int, int, int)
        Numbers of inputs and outputs of which each trip has another row; of outputs whether a call writes them where it
        is told to, of inputs True; the address of the first row, the bytes from one to the next, and those of a row.
    counter : int
        Number of an input that counts the trips, a signed integer of 64 bits; -1 for none.
    first : int
        What it counts from.
    condition : int
        Number of a byte that is 0 after the last trip; -1 for none.
    condition_at : int
        Address where a call writes it.
    sizes : TripSizes, optional
        Where the sizes of the carried change from trip to trip; buffers are as large as it knows.

    Attributes
    ----------
    is_ended : bool
        Whether the condition said that no trip follows.
    halt : {"form", "room", "bytes"} or None
        What the sizes of the next trip need: another form, a larger arena, larger buffers of states.

    Notes
    -----
    Ownership: none of the memory. Threads: one at a time. Cost: that of the calls, and a fraction of a microsecond.
    """

    cdef Addresses addresses
    cdef tuple calls
    cdef Carried *carried
    cdef Moving *moving
    cdef int64_t ncarried, nmoving, nwritten, counter, condition, count
    cdef TripSizes sizes
    cdef readonly bint is_ended
    cdef int stop

    def __cinit__(self, Addresses addresses not None, calls, carried, read, written, int64_t counter, int64_t first,
                  int64_t condition, uintptr_t condition_at, TripSizes sizes=None):
        cdef int64_t k, source, target, nbytes, stride
        cdef uintptr_t now, one, other
        cdef bint is_direct
        self.addresses, self.calls, self.sizes = addresses, checked_calls(calls, addresses), sizes
        if sizes is not None and sizes.nstates != len(carried):
            raise IndexError(len(carried))
        self.carried = <Carried *>calloc(len(carried) + 1, sizeof(Carried))
        self.moving = <Moving *>calloc(len(read) + len(written) + 1, sizeof(Moving))
        if self.carried == NULL or self.moving == NULL:
            raise MemoryError()
        for k, (source, target, is_direct, nbytes, now, one, other) in enumerate(carried):
            if source != -1:
                self._check(source)
            self._check(target)
            self.carried[k] = Carried(source, target if is_direct else ~target, nbytes, <char *>now, <char *>one,
                                      <char *>other)
        self.ncarried = len(carried)
        for k, (source, is_direct, now, stride, nbytes) in enumerate([*written, *read]):
            self._check(source)
            self.moving[k] = Moving(source if is_direct else ~source, stride, nbytes, <char *>now)
        self.nmoving, self.nwritten = len(read) + len(written), len(written)
        self.counter, self.condition, self.count = counter, condition, first
        for k in (counter, condition):
            if k >= 0:
                self._check(k)
        if counter >= 0:
            addresses.put(counter, <uintptr_t>&self.count)
        if condition_at:
            addresses.put(condition, condition_at)

    def _check(self, int64_t number):
        if not 0 <= number < self.addresses.count:
            raise IndexError(number)

    def __dealloc__(self):
        free(self.carried)
        free(self.moving)

    @property
    def halt(self):
        return (None, "form", "room", "bytes")[self.stop]

    def content(self, int64_t number):
        """Address of what a carried tensor, counted as they were given, is now."""
        if not 0 <= number < self.ncarried:
            raise IndexError(number)
        return <uintptr_t>self.carried[number].now

    def run(self, int64_t most, int64_t time_ns):
        """Make so many trips at most, and none begins after that time; how many there were.

        One at least, but where sizes keep it from the first.

        Notes
        -----
        A signal whose handler raises, such as that of Ctrl-C, ends it between two trips.
        """
        cdef int64_t done = 0, end_ns = gp_clock_ns() + time_ns
        cdef int64_t k
        self.stop = GOES_ON
        while done < most:
            if self.sizes is not None:
                self.stop = self.sizes.prepare(self.count)
                if self.stop != GOES_ON:
                    break
                for k in range(self.ncarried):
                    self.carried[k].nbytes = self.sizes.nbytes(k)
            self._place()
            call_all(self.calls)
            self._move()
            done += 1
            if self.condition >= 0 and self.addresses.at[self.condition][0] == 0:
                self.is_ended = True
                break
            PyErr_CheckSignals()
            if gp_clock_ns() > end_ns:
                break
        return done

    cdef void _place(self) noexcept nogil:
        """Put the addresses of a trip in place."""
        cdef int64_t k
        cdef char **at = self.addresses.at
        for k in range(self.ncarried):
            if self.carried[k].source >= 0:
                at[self.carried[k].source] = self.carried[k].now
            if self.carried[k].target >= 0:
                at[self.carried[k].target] = self.carried[k].next
        for k in range(self.nmoving):
            if self.moving[k].number >= 0:
                at[self.moving[k].number] = self.moving[k].now

    cdef void _move(self) noexcept nogil:
        """Copy what no call wrote where it belongs, and go on to the next trip."""
        cdef int64_t k
        cdef char **at = self.addresses.at
        cdef Carried *state
        for k in range(self.nwritten):
            if self.moving[k].number < 0:
                memcpy(self.moving[k].now, at[~self.moving[k].number], self.moving[k].nbytes)
        for k in range(self.ncarried):
            state = &self.carried[k]
            if state.target < 0:
                memcpy(state.next, at[~state.target], state.nbytes)
        for k in range(self.nmoving):
            self.moving[k].now += self.moving[k].stride
        for k in range(self.ncarried):
            state = &self.carried[k]
            state.now, state.next, state.spare = state.next, (state.spare if state.spare != NULL else state.now), NULL
        if self.sizes is not None:
            self.sizes.advance()
        self.count += 1


cdef struct Nested:     # what a loop within a trip reads and writes, by numbers outside
    int64_t source
    int64_t target
    int64_t nbytes      # of what stays as it is, offset of the first row of what moves
    char *spare         # buffer of a state


cdef class InnerTrips:
    """Trips of a loop within a trip of another one, on what lies at its addresses.

    Parameters
    ----------
    trips : Trips
        Whose sizes do not change.
    passed : sequence of (int, int)
        Numbers outside and inside of what all trips read.
    carried : sequence of (int, int, int)
        For each of those of `trips` where its first content lies outside and where the last one goes, and the address
        of a buffer.
    kept : sequence of (int, int, int)
        Where contents lie outside that are results as they are, where these go, and their bytes.
    moving : sequence of (int, int)
        For what trips write, and then for what they read, in rows: where it lies outside, and the bytes in front of the
        row of the first trip.
    length : int
        How many trips there are; -1 where only `count` says so.
    count, condition : int
        Numbers outside of the trip count, a signed integer of 64 bits, and of a byte that is 0 where there is no trip;
        -1 for none.
    budget : HostBudget
        Counts trips, for the loop of this `label`.
    held : object
        What keeps the memory.

    Notes
    -----
    Threads: one at a time. Cost: that of `Trips`, and a tenth of a microsecond.
    """

    cdef Trips trips
    cdef Nested *passed
    cdef Nested *carried
    cdef Nested *kept
    cdef Nested *moving
    cdef int64_t npassed, nkept, length, count, condition, most
    cdef HostBudget budget
    cdef object label, held

    def __cinit__(self, Trips trips not None, passed, carried, kept, moving, int64_t length, int64_t count,
                  int64_t condition, HostBudget budget not None, label, held):
        cdef int64_t k
        if len(carried) != trips.ncarried or len(moving) != trips.nmoving or trips.sizes is not None:
            raise IndexError((len(carried), len(moving)))
        self.trips, self.budget, self.label, self.held = trips, budget, label, held
        self.length, self.count, self.condition = length, count, condition
        self.npassed, self.nkept = len(passed), len(kept)
        self.passed = <Nested *>calloc(self.npassed + 1, sizeof(Nested))
        self.carried = <Nested *>calloc(trips.ncarried + 1, sizeof(Nested))
        self.kept = <Nested *>calloc(self.nkept + 1, sizeof(Nested))
        self.moving = <Nested *>calloc(trips.nmoving + 1, sizeof(Nested))
        if self.passed == NULL or self.carried == NULL or self.kept == NULL or self.moving == NULL:
            raise MemoryError()
        for k, (source, inner) in enumerate(passed):
            trips._check(inner)
            self.passed[k] = Nested(self._outside(source), inner, 0, NULL)
        for k, (source, target, spare) in enumerate(carried):
            self.carried[k] = Nested(self._outside(source), self._outside(target), 0, <char *><uintptr_t>spare)
        for k, (source, target, nbytes) in enumerate(kept):
            self.kept[k] = Nested(self._outside(source), self._outside(target), nbytes, NULL)
        for k, (source, offset) in enumerate(moving):
            self.moving[k] = Nested(self._outside(source), 0, offset, NULL)
        self.most = max(self.most, count, condition)

    def __dealloc__(self):
        free(self.passed)
        free(self.carried)
        free(self.kept)
        free(self.moving)

    def _outside(self, int64_t number):
        """A number outside, which counts among `most`."""
        if number < 0:
            raise IndexError(number)
        self.most = max(self.most, number)
        return number

    cdef int64_t _trips(self, char **at) noexcept nogil:
        """How many trips there are at most."""
        if self.condition >= 0 and at[self.condition][0] == 0:
            return 0
        if self.count < 0:
            return self.length if self.length >= 0 else UNENDING
        return max((<int64_t *>at[self.count])[0], 0)

    cdef bint run(self, char **at) except -1:
        """Make the trips; False, and nothing was done, where there are not as many as rows."""
        cdef Trips trips = self.trips
        cdef int64_t k, done, left = self._trips(at)
        cdef Carried *state
        if self.length >= 0 and left != self.length:
            return False
        self._begin(at)
        while left > 0 and not trips.is_ended:
            done = trips.run(min(left, NESTED_TRIPS), NESTED_NS)
            left -= done
            self.budget.count(done, self.label)
        for k in range(trips.ncarried):
            state = &trips.carried[k]
            if state.now != at[self.carried[k].target]:
                memcpy(at[self.carried[k].target], state.now, state.nbytes)
        for k in range(self.nkept):
            memcpy(at[self.kept[k].target], at[self.kept[k].source], self.kept[k].nbytes)
        return True

    cdef int _begin(self, char **at) except -1:
        """Put what lies outside where the first trip looks for it."""
        cdef Trips trips = self.trips
        cdef int64_t k
        cdef Carried *state
        trips.count, trips.is_ended = 0, False
        for k in range(self.npassed):
            trips.addresses.at[self.passed[k].target] = at[self.passed[k].source]
        for k in range(trips.ncarried):
            state = &trips.carried[k]
            state.now, state.next, state.spare = at[self.carried[k].source], at[self.carried[k].target], NULL
            if state.now == state.next:
                state.next = self.carried[k].spare
            else:
                state.spare = self.carried[k].spare
        for k in range(trips.nmoving):
            trips.moving[k].now = at[self.moving[k].source] + self.moving[k].nbytes
        return 0
