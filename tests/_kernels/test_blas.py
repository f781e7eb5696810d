import subprocess
import sys

import numpy as np
import pytest

from graphpool._kernels.core import _blas
from graphpool.errors import InvalidShapeError

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-13}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (17, 33, 9), (2, 3, 0), (0, 3, 2), (3, 0, 2)])
def test_gemm_equals_einsum(dtype, shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    a.flags.writeable = False
    out = np.full((m, n), np.nan, dtype)
    _blas.gemm(a, b, out)
    expected = np.einsum("ik,kj->ij", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * max(k, 1))


def test_gemm_refuses_shapes_that_do_not_fit_and_writes_nothing():
    out = np.zeros((2, 2), np.float32)
    with pytest.raises(InvalidShapeError, match=r"\(2, 3\) @ \(4, 2\)"):
        _blas.gemm(np.ones((2, 3), np.float32), np.ones((4, 2), np.float32), out)
    assert not out.any()


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
