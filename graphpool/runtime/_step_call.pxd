from libc.stdint cimport int64_t

from ._compiled cimport CompiledPartition
from ._program cimport Program
from ._stream cimport Stream


cdef class Addresses:
    cdef char **at
    cdef readonly int64_t count
    cdef list copies
    cdef bint _put_array(self, int64_t k, object array, tuple wanted) except -1
    cpdef bind(self, tuple ids, dict values, list wanted, tensor_of)
    cpdef unbind(self)


cdef class StepPorts:
    cdef CompiledPartition compiled
    cdef Stream stream
    cdef tuple constants
    cdef int64_t *numbers
    cdef int64_t count, scratch


cdef class StepCall:
    cdef StepPorts ports
    cdef Program program
    cdef Addresses addresses
    cdef int call(self) except -1
    cdef int run(self, char **bases) except -1
