from libc.stdint cimport int64_t

from graphpool._kernels._dispatch cimport gp_kernel_fn


cdef struct ArgRef:
    int64_t base      # index of a base pointer: 0 arena, 1 literals, 2 .. external tensors
    int64_t offset    # bytes from it


cdef struct Step:
    gp_kernel_fn fn
    const void *params
    int64_t first_arg
    int64_t nargs
    int64_t ntasks


cdef class Program:
    cdef Step *steps
    cdef ArgRef *args
    cdef int64_t nsteps
    cdef readonly int64_t nbases
    cdef readonly int64_t arena_nbytes
    cdef int64_t scratch_offset
    cdef char *literals
    cdef readonly tuple calls
    cdef readonly bint uses_blas
    # `bases` has room for nbases pointers; the caller fills in 0 and those from 2 on
    cdef void run(self, char **bases) noexcept nogil
