"""The only door to BLAS: `scipy.linalg.cython_blas`, which is SciPy's copy of OpenBLAS.

Kernels find the addresses of its functions in slots of `_dispatch`, which this module fills when it is imported: that
loads SciPy's BLAS, so it waits for the first run that calls it, and `load_blas` imports it. A SciPy whose BLAS takes
another integer than ``gp_blas_int`` fails to compile here.
"""

from libc.stdint cimport uintptr_t
from scipy.linalg.cython_blas cimport dgemm, sgemm

from ._dispatch import set_blas


def addresses():
    """Addresses of the BLAS functions that kernels call, by name; constant, since SciPy stays loaded."""
    cdef gp_sgemm_fn single = sgemm
    cdef gp_dgemm_fn double_ = dgemm
    return {"sgemm": <uintptr_t><void *>single, "dgemm": <uintptr_t><void *>double_}


set_blas(**addresses())
