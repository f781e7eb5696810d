"""Compiled partitions on memory that a model's runner knows: addresses, where `execute` would check tensors."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from ._compiled cimport CompiledPartition
from ._constants cimport Constants, acquire, release
from ._ndarray cimport fields_of, span_nbytes
from ._program cimport BLAS, Program, check_run
from ._stream cimport Stream
from ._tensor cimport Tensor

from numpy import ndarray

from . import blas_threads
from graphpool.errors import StateError, explain

cdef enum:
    MAX_BASES = 4096    # ports of a compiled partition and forms of its constants, see there

cdef char _nowhere = 0  # what has no bytes


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
        if type(array) is not ndarray or strides is None or fields_of(array).descr != <PyObject *>dtype:
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
        cdef int status
        if not self.program.needs(BLAS, bases):
            with nogil:
                status = self.program.run(bases, self.ports.stream.team)
            return check_run(status)
        blas_threads.enter()
        try:
            with nogil:
                status = self.program.run(bases, self.ports.stream.team)
            return check_run(status)
        finally:
            blas_threads.leave()
