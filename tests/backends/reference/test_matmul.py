import numpy as np
import pytest

from tests.helpers.reference import run_one

SHAPES = [
    ((2, 3), (3, 4)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 1, 2, 3), (5, 3, 4)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((0, 2, 3), (1, 3, 4)),
]


def _attrs(transpose_a=False, transpose_b=False):
    return {"transpose_a": transpose_a, "transpose_b": transpose_b, "accumulation_mode": "strict"}


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_matmul_sums_products_over_the_inner_axis(shapes, transposed):
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape) for shape in shapes)
    letters = ("" if a.ndim == 1 else "i") + "k", "k" + ("" if b.ndim == 1 else "j")
    expected = np.einsum(f"...{letters[0]},...{letters[1]}->...{letters[0][:-1]}{letters[1][1:]}", a, b)
    stored = [x.swapaxes(-1, -2) if flag and x.ndim > 1 else x for x, flag in zip((a, b), transposed, strict=True)]
    result = run_one("MatMul", *stored, **_attrs(*transposed))
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("bias_shape", [(4,), (2, 4), (1, 4), ()])
def test_bias_broadcasts(bias_shape):
    rng = np.random.default_rng(2)
    a, b, bias = rng.normal(size=(2, 3)), rng.normal(size=(3, 4)), rng.normal(size=bias_shape)
    np.testing.assert_allclose(run_one("MatMul", a, b, bias, **_attrs()), a @ b + bias)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_sum_is_not_rounded_on_the_way(dtype):
    ones = np.ones((1, 4096), np.float16)
    assert float(run_one("MatMul", ones, ones.T, dtype=dtype, **_attrs())[0, 0]) == 4096
    assert float(run_one("MatMul", ones, ones.T / 4096 + 0, dtype=dtype, **_attrs())[0, 0]) == 1


def test_nan_and_infinity_propagate():
    a = np.array([[np.inf, 0.0], [np.nan, 1.0]])
    np.testing.assert_equal(run_one("MatMul", a, np.eye(2), **_attrs()), [[np.inf, np.nan], [np.nan, np.nan]])
