"""The only door to BLAS: `scipy.linalg.cython_blas`, which is SciPy's copy of OpenBLAS.

Kernels find the addresses of its functions in slots of `_dispatch`, which this module fills when it is imported: that
loads SciPy's BLAS, so it waits for the first run that calls it, and `load_blas` imports it.
"""

from libc.stdint cimport uintptr_t
from scipy.linalg.cython_blas cimport dgemm, sgemm

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
    # of the types by which kernels call them, so that a SciPy with another integer fails to compile
    cdef gp_sgemm_fn single = sgemm
    cdef gp_dgemm_fn double_ = dgemm
    return {"sgemm": <uintptr_t><void *>single, "dgemm": <uintptr_t><void *>double_}


set_blas(**addresses())
