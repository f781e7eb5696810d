from libc.stdint cimport int64_t, uint64_t

from graphpool.memory._arena cimport ArenaPool

from ._constants cimport Constants
from ._program cimport Program
from ._share cimport PrimitiveShare
from ._stream cimport Stream


cdef struct Port:
    uint64_t id
    int64_t signature


# What partitions that differ in nothing but their engine share.
cdef class PortTable:
    cdef Port *ports
    cdef list signatures        # whose numbers they are


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
    cdef readonly tuple inplace_ports
    cdef public object template     # makes another one like it without a look-up; None where nothing is cached
    cdef object host_function
    cdef PrimitiveShare share       # None for host functions, and where the caller accounts for the memory
    cdef Constants constants        # made when they are first asked for, if the primitive has parts that are constant
    cdef ArenaPool arenas           # of the primitive; None in the other modes of scratch
    cdef object shared              # SharedArenas from which each execution leases; None in the other modes
    cdef int64_t scratch_nbytes
    cdef Port *ports                # of the table
    cdef PortTable table
    cdef int64_t nparts
    cdef int64_t ninputs
    cdef int64_t noutputs
    cdef bint closed
    cdef bint borrows               # constants of another one
    cdef object __weakref__
    cdef Constants all_constants(self)
    cdef CompiledPartition copy(self, object engine)
    cdef tuple _bind(self, object given, int64_t first, int64_t count, char **pointers, int64_t *nbytes)
    cdef int _check_overlap(self, char **pointers, int64_t *nbytes) except -1
    cdef int _check_apart(self, char *arena, char **pointers, int64_t *nbytes) except -1
    cdef int _execute_on_host(self, tuple sources, object outputs, char **pointers, int64_t *nbytes) except -1
    cdef int _run(self, char **bases, int64_t *nbytes, Stream stream, object scratchpad) except -1
    cdef int _run_once(self, char **bases, Stream stream) except -1
    cdef int _run_without_pool(self, char **bases, Stream stream) except -1
    cdef int _run_program(self, char **bases, int64_t *nbytes, Stream stream, object scratchpad) except -1
