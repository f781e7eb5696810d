"""The only door to BLAS: `scipy.linalg.cython_blas`, which is SciPy's copy of OpenBLAS.

Kernels find the addresses of its functions in slots of `_dispatch`, which this module fills when it is imported: that
loads SciPy's BLAS, so it waits for the first run that calls it, and `load_blas` imports it. A SciPy whose BLAS takes
another integer than ``blas_int`` fails to compile here.
"""

cimport cython
from libc.stdint cimport uintptr_t
from scipy.linalg.cython_blas cimport dgemm, sgemm

from graphpool.errors import InvalidShapeError, explain

from ._dispatch import set_blas


def addresses():
    """Addresses of the BLAS functions that kernels call, by name; constant for the life of the process.

    Returns
    -------
    dict of str to int
        ``"sgemm"``, ``"dgemm"``: Fortran calling convention, 32-bit integers.

    Notes
    -----
    Threads: safe. Ownership: the functions belong to SciPy, which stays loaded.
    """
    return {"sgemm": <uintptr_t><void *>sgemm, "dgemm": <uintptr_t><void *>dgemm}


def gemm(const cython.floating[:, ::1] a, const cython.floating[:, ::1] b, cython.floating[:, ::1] out):
    """``out = a @ b`` for row-major matrices, by one BLAS call: the plain twin that tests and benchmarks compare with.

    Parameters
    ----------
    a : ndarray of shape (m, k), float32 or float64
    b : ndarray of shape (k, n), same dtype
    out : ndarray of shape (m, n), same dtype
        Wholly written; must not overlap a or b.

    Raises
    ------
    InvalidShapeError
        The shapes do not fit; nothing is written.

    Notes
    -----
    Threads: safe; runs without the GIL, on as many threads as SciPy's BLAS is set to.
    """
    cdef blas_int m = a.shape[0], k = a.shape[1], n = b.shape[1]
    cdef cython.floating one = 1, zero = 0
    if b.shape[0] != k or out.shape[0] != m or out.shape[1] != n:
        raise InvalidShapeError(
            explain("shapes of a matrix product", accepted="(m, k) @ (k, n) -> (m, n)",
                    got=f"({m}, {k}) @ ({b.shape[0]}, {n}) -> ({out.shape[0]}, {out.shape[1]})")
        )
    if m == 0 or n == 0:
        return
    if k == 0:
        out[:, :] = 0
        return
    with nogil:
        # Column-major BLAS sees each matrix as its transpose, so it is asked for out^T = b^T a^T.
        if cython.floating is float:
            sgemm(b"N", b"N", &n, &m, &k, &one, <float *>&b[0, 0], &n, <float *>&a[0, 0], &k, &zero, &out[0, 0], &n)
        else:
            dgemm(b"N", b"N", &n, &m, &k, &one, <double *>&b[0, 0], &n, <double *>&a[0, 0], &k, &zero, &out[0, 0], &n)


set_blas(**addresses())
