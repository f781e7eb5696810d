cdef extern from "gemm/gp_gemm.h" nogil:
    ctypedef int gp_blas_int

ctypedef gp_blas_int blas_int
