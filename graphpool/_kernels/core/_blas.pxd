cdef extern from "gemm/gp_gemm.h" nogil:
    ctypedef int gp_blas_int
    ctypedef void (*gp_sgemm_fn)(
        char *, char *, gp_blas_int *, gp_blas_int *, gp_blas_int *, float *, float *, gp_blas_int *, float *,
        gp_blas_int *, float *, float *, gp_blas_int *
    ) noexcept nogil
    ctypedef void (*gp_dgemm_fn)(
        char *, char *, gp_blas_int *, gp_blas_int *, gp_blas_int *, double *, double *, gp_blas_int *, double *,
        gp_blas_int *, double *, double *, gp_blas_int *
    ) noexcept nogil
