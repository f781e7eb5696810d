cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t

from graphpool._kernels.core._team cimport Team
from graphpool.cache._handle cimport ConstantHandle, acquire_handle, release_handle

from ._tensor cimport Tensor


# A part as the last execution without a key left it; its sources end before `named[end]`.
cdef struct WarmPart:
    PyObject *handle            # NULL before any execution; `Constants.current` keeps it alive
    int64_t end


# An input that a part is made from, and which version of its content the handle is of.
cdef struct Named:
    int64_t position
    int64_t version


@cython.final
cdef class Binding:
    cdef ConstantHandle handle
    cdef int64_t rests          # how many executions do without asking, after the cache has declined
    cdef int64_t skipped        # of them so far
    cdef int64_t changes        # of the cache when it declined
    cdef void rest(self, int64_t changes) noexcept
    cdef bint is_resting(self, int64_t changes) noexcept


@cython.final
cdef class Constants:
    cdef readonly tuple parts
    cdef readonly int64_t nparts
    cdef int64_t first_base
    cdef object engine
    cdef object cache
    cdef Team team              # helps whoever makes a form now; None for those who have none
    cdef object lock            # of bindings and contents
    cdef object __weakref__
    cdef list sources           # of each part: positions of the inputs that it is made from
    cdef WarmPart *warm         # of each part
    cdef Named *named           # the sources of all parts
    cdef list current           # of each part the handle that was used last, or None
    cdef list names             # of each part: name -> Binding; without it the cache is asked
    cdef dict bindings          # (part, full key) -> Binding
    cdef list contents          # of each part: first tensor, or what its id names -> full key of what it holds
    cdef list known             # of each part: its key in packed stores, where its tensors have one content for good
    cdef bint checks
    cdef bint is_released       # closed, and its entries leave the cache with it
    cdef int _make_current(self, int64_t k, Binding binding, tuple versions) except -1
    cdef tuple _name(self, int64_t k, tuple tensors, object key)
    cdef Binding _find(self, int64_t k, tuple name)
    cdef int acquire_from(self, int64_t k, tuple tensors, object key, char **bases, PyObject **held) except -1
    cdef void *_resolve(self, int64_t k, tuple tensors, object key, PyObject **held) except? NULL


cdef inline int64_t acquire_warm(Constants constants, tuple tensors, char **bases, PyObject **held) noexcept:
    """Acquire the first parts whose tensors are those of the last execution and that are still cached; how many.

    In the critical section, which an acquisition that fails may let others enter: nothing is read after it.
    """
    cdef WarmPart *part = constants.warm
    cdef Named *source = constants.named
    cdef Named *end
    cdef int64_t k
    for k in range(constants.nparts):
        if part[k].handle == NULL:
            return k
        end = constants.named + part[k].end
        while source < end:
            if source.version != (<Tensor>PyTuple_GET_ITEM(tensors, source.position)).version_at[0]:
                return k
            source += 1
        held[k] = part[k].handle
        Py_INCREF(<object>held[k])
        bases[k] = <char *>acquire_handle(<ConstantHandle>held[k])
        if bases[k] == NULL:
            Py_DECREF(<object>held[k])
            return k
    return constants.nparts


cdef inline int acquire(Constants constants, tuple tensors, object key, char **bases, PyObject **held) except -1:
    """Fill in the base pointers of all parts, NULL for those not kept, and what `release` must be given."""
    cdef int64_t found = 0
    if key is None and not constants.checks:
        with cython.critical_section(constants):
            found = acquire_warm(constants, tensors, bases + constants.first_base, held)
    if found < constants.nparts:
        return constants.acquire_from(found, tensors, key, bases, held)
    return 0


cdef inline void release(Constants constants, PyObject **held) noexcept:
    """End the use of what `acquire` has filled in."""
    cdef int64_t k
    for k in range(constants.nparts):
        if held[k] != NULL:
            if type(<object>held[k]) is ConstantHandle:
                release_handle(<ConstantHandle>held[k])
            Py_DECREF(<object>held[k])
