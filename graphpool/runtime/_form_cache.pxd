from libc.stdint cimport int64_t


# A form, the runs that use it now, how often it was found, and whether it is closed after the last run.
cdef class FormUse:
    cdef readonly object executable
    cdef int64_t users, hits
    cdef bint is_retired


cdef class FormCache:
    cdef str name
    cdef public int64_t capacity
    cdef dict entries           # key -> FormUse, the one used longest ago first
    cdef FormUse newest         # the last of them, if it is known
    cdef list using             # threads that ask for a form or have one
    cdef object compiling       # held by who makes a form
    cdef readonly int64_t runs, hits, misses, evictions
    cdef readonly bint is_closed
    cdef object __weakref__
    cpdef FormUse enter(self, key, make, tuple given=*)
    cpdef leave(self, FormUse use, int64_t runs=*)
    cdef FormUse _look_up(self, object key)
    cdef FormUse _add(self, object key, object executable)
    cdef FormUse _replace(self, object key, FormUse old, object executable)
    cdef FormUse _take_out(self, object key)
    cdef int _leave(self, FormUse use, int64_t runs) except -1
    cdef int _retire(self, list uses) except -1
    cdef list _uses(self)
