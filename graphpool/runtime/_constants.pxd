from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from graphpool.cache._handle cimport ConstantHandle


cdef class Binding:
    cdef int64_t *sources       # positions of the inputs
    cdef int64_t *versions      # of their tensors; 0 before any execution named them
    cdef int64_t nsources
    cdef ConstantHandle handle
    cdef int64_t rests          # how many executions do without asking, after the cache has declined
    cdef int64_t skipped        # of them so far
    cdef int64_t changes        # of the cache when it declined
    cdef void rename(self, tuple tensors) noexcept
    cdef bint is_of(self, tuple tensors) noexcept
    cdef void rest(self, int64_t changes) noexcept
    cdef bint is_resting(self, int64_t changes) noexcept


cdef class Constants:
    cdef readonly tuple parts
    cdef readonly int64_t nparts
    cdef int64_t first_base
    cdef object engine
    cdef object cache
    cdef object lock            # of bindings and contents
    cdef object __weakref__
    cdef list sources           # of each part: positions of the inputs that it is made from
    cdef list current           # of each part the binding that was used last, or None
    cdef list names             # of each part: name -> Binding; without it the cache is asked
    cdef dict bindings          # (part, full key) -> Binding
    cdef list contents          # of each part: first tensor -> full key of what it holds
    cdef bint checks
    cdef int _make_current(self, int64_t k, Binding binding, tuple tensors) except -1
    cdef tuple _name(self, int64_t k, tuple tensors, object key)
    cdef Binding _find(self, int64_t k, tuple tensors, object key)
    cdef bint _acquire_warm(self, int64_t k, tuple tensors, char **bases, PyObject **held) noexcept
    cdef int _acquire_from(self, int64_t k, tuple tensors, object key, char **bases, PyObject **held) except -1
    cdef int acquire(self, tuple tensors, object key, char **bases, PyObject **held) except -1
    cdef void release(self, PyObject **held) noexcept
    cdef void *_resolve(self, int64_t k, tuple tensors, object key, PyObject **held) except? NULL
