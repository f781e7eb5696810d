from graphpool.memory._arrays cimport ArrayAllocator

from ._counters cimport JobRunner, UseCount
from ._form_cache cimport FormCache, FormUse


cdef class InputPorts:
    cdef tuple ports
    cdef list names
    cdef list dtypes            # None for what is no tensor of numbers
    cdef list indices           # (low, high) of the elements, or None
    cdef list shapes            # None for an unknown rank; -1 for sizes that are not fixed
    cpdef dict take(self, inputs)
    cpdef dict dense(self, dict arrays, ArrayAllocator copies)
    cdef bint _fits(self, Py_ssize_t k, object value) except -1


cpdef bint is_dense(object array) except -1


cdef class ModelRun:
    cdef readonly str name
    cdef readonly FormCache cache
    cdef readonly tuple deciding
    cdef public object declared
    cdef InputPorts inputs
    cdef readonly ArrayAllocator copies
    cdef frozenset outputs      # names
    cdef UseCount count
    cdef JobRunner queue
    cpdef dict dense(self, InputPorts ports, dict given)
    cdef object _run_in_turn(self, dict arrays, work, tuple given)
    cdef object _in_turn(self, work, tuple given)
    cpdef FormUse enter(self, dict arrays, states=*)
