from libc.stdint cimport int64_t


cdef extern from "core/gp_kernel.h" nogil:
    ctypedef int64_t (*gp_kernel_fn)(
        const void *params, void *const *args, int64_t begin, int64_t end, void *scratch
    ) noexcept nogil
    enum: GP_MAX_ARGS


cdef class Kernel:
    cdef gp_kernel_fn fn
    cdef readonly str name
    cdef readonly str isa
    cdef readonly str params
    cdef readonly int64_t params_nbytes
