from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from graphpool.cache._handle cimport ConstantHandle


cdef class Binding:
    cdef int64_t *sources       # positions of the inputs
    cdef int64_t *versions      # of their tensors; -1 where a key of the execution named them
    cdef int64_t nsources
    cdef ConstantHandle handle
    cdef int rename(self, list versions) except -1
    cdef bint is_of(self, tuple tensors) noexcept


cdef class Constants:
    cdef readonly tuple parts
    cdef readonly int64_t nparts
    cdef int64_t first_base
    cdef object engine
    cdef object cache
    cdef object lock            # of bindings and contents
    cdef object __weakref__
    cdef list current           # of each part the binding that was used last, or None
    cdef dict bindings          # (part, full key) -> Binding
    cdef list contents          # of each part: first tensor -> full key of what it holds
    cdef Binding _find(self, int64_t k, tuple tensors, object key)
    cdef bint checks
    cdef int acquire(self, tuple tensors, object key, char **bases, PyObject **held) except -1
    cdef void release(self, PyObject **held) noexcept
    cdef void *_resolve(self, int64_t k, tuple tensors, object key, PyObject **held) except? NULL
