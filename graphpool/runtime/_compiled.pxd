from libc.stdint cimport int64_t

from graphpool.memory._arena cimport ArenaPool

from ._constants cimport Constants
from ._program cimport Program
from ._stream cimport Stream


cdef struct Port:
    int64_t id
    int64_t signature


cdef class CompiledPartition:
    cdef readonly object partition
    cdef readonly tuple inputs
    cdef readonly tuple outputs
    cdef readonly object engine
    cdef readonly object primitive
    cdef readonly Program program
    cdef readonly str scratch
    cdef readonly str weights
    cdef readonly tuple implementations
    cdef readonly tuple step_ops
    cdef readonly tuple inplace_ports
    cdef object host_function
    cdef Constants constants        # None where no form of a constant is kept
    cdef ArenaPool arenas           # of the primitive; None in the other modes of scratch
    cdef int64_t scratch_nbytes
    cdef Port *ports
    cdef int64_t ninputs
    cdef int64_t noutputs
    cdef bint closed
    cdef bint has_unknown_outputs
    cdef object __weakref__
    cdef tuple _bind(self, object given, int64_t first, int64_t count, char **pointers, int64_t *nbytes)
    cdef int _check_overlap(self, char **pointers, int64_t *nbytes) except -1
    cdef int _run(self, char **bases, Stream stream, object scratchpad) except -1
    cdef int _run_without_pool(self, char **bases, Stream stream) except -1
    cdef int _run_program(self, char **bases, Stream stream, object scratchpad) except -1
