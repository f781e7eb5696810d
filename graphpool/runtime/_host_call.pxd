from libc.stdint cimport int64_t

from graphpool.memory._arrays cimport ArrayAllocator


cdef class Spent:
    cdef int64_t steps, end_ns


cdef class HostBudget:
    cdef readonly object limits
    cdef object local           # of each thread its Spent
    cdef int64_t most_steps, most_ns
    cdef Spent of_thread(self)
    cpdef start(self)
    cpdef spend(self, steps, node)
    cdef int count(self, int64_t steps, node) except -1


cdef class HostCall:
    cdef object step, function, label
    cdef tuple inputs, outputs
    cdef dict values
    cdef list are_plain
    cdef HostBudget budget
    cdef ArrayAllocator arrays
    cdef bint is_inner          # whether its memory is counted where the inner models run
    cdef bint copies_inputs     # since results may be views of them
    cdef bint makes_texts, keeps_room
    cdef int call(self) except -1
    cdef int copy_arrays(self, list sources) except -1
    cdef int charge_texts(self, result) except -1
    cdef int put(self, list targets, results) except -1
