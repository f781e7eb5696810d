from libc.stdint cimport int64_t, uint8_t

from cpython.object cimport PyObject


ctypedef struct Allocator:
    void *context
    void *(*malloc)(void *context, size_t nbytes) noexcept nogil
    void *(*calloc)(void *context, size_t count, size_t nbytes) noexcept nogil
    void *(*realloc)(void *context, void *data, size_t nbytes) noexcept nogil
    void (*free)(void *context, void *data, size_t nbytes) noexcept nogil

ctypedef struct Handler:    # PyDataMem_Handler of NumPy
    char name[127]
    uint8_t version
    Allocator allocator

ctypedef struct Account:    # what arrays keep alive
    Handler handler
    int64_t nbytes          # of the arrays; charged
    int64_t reserved        # charged beside them
    PyObject *budget
    PyObject *holder


cdef class ArrayAllocator:
    cdef object handler
    cdef object holder
    cdef Account *account
    cdef object __weakref__
    cpdef empty(self, tuple shape, dtype)
    cpdef reserve(self, int64_t nbytes)
    cpdef unreserve(self)
    cdef object enter(self)
    cdef int leave(self, outer) except -1
    cdef object reason(self, error)
    cdef int charge_texts(self, array, char *data) except -1
