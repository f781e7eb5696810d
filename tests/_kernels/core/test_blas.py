import subprocess
import sys

import pytest

from graphpool._kernels.core import _blas


@pytest.mark.native
def test_programs_load_blas_when_they_first_call_it():
    code = """
import sys
import numpy as np
from graphpool._kernels.gemm.matmul import matmul
from graphpool._kernels.gemm.problem import MatmulProblem
a, b, out = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), np.empty((2, 4), np.float32)
product = matmul(MatmulProblem((), 2, 4, 3, (3, 1), (4,)), (4, 1), impl="blas")
assert "scipy" not in sys.modules
product(a, b, out)
assert (out == 3).all() and "scipy.linalg.cython_blas" in sys.modules and "scipy.linalg" not in sys.modules
from scipy.linalg import cython_blas, solve
assert cython_blas is sys.modules["scipy.linalg.cython_blas"] and solve(np.eye(2), [1, 2])[1] == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_addresses_are_distinct_and_constant():
    addresses = _blas.addresses()
    assert set(addresses) == {"sgemm", "dgemm"}
    assert 0 not in addresses.values()
    assert addresses["sgemm"] != addresses["dgemm"]
    assert addresses == _blas.addresses()
