import numpy as np
import pytest

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.norm.softmax import softmax
from graphpool.errors import InvalidShapeError
from tests.helpers.guard_pages import guarded_array, guarded_copy
from tests.helpers.kernel_outputs import Out, assert_near, execute, strided, unstride

ISAS = _dispatch.isas()
SHAPES = [((1,), 0), ((7,), 0), ((0, 3), 1), ((3, 0), 1), ((3, 1), 1), ((5, 16), 1), ((4, 1031), 1), ((2, 17, 65), 1),
          ((33, 5), 0), ((2, 3, 5, 7), 1), ((2, 3, 5, 7), -2), ((37, 10), 1), ((33, 17), 1), ((70, 32), 1),
          ((35, 33), 1), ((17, 4), 1), ((2, 1100, 7), 1), ((2, 301, 3), 1)]  # fmt: skip

# x - max is rounded before the exponential, which turns an error of 0.5 ulp of |x - max| <= 16 into one of 8 ulp.
ULP = 12
LOG_ATOL = 2e-6


def reference(x, axis, is_log=False):
    x = x.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis, keepdims=True)
        return shifted - np.log(total) if is_log else np.exp(shifted) / total


def sample(shape):
    return np.random.default_rng(sum(shape)).normal(scale=2, size=shape).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_matches_float64(shape, axis, isa):
    x = sample(shape)
    assert_near(execute(softmax(shape, axis, isa=isa), x, Out(shape)), reference(x, axis), ULP)
    logs = execute(softmax(shape, axis, is_log=True, isa=isa), x, Out(shape))
    assert_near(logs, reference(x, axis, is_log=True), 2, LOG_ATOL)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_strides(order, isa):
    shape = (3, 10, 70)
    x = sample(shape)
    src, src_strides = strided(x, order, pad=3)
    dst, dst_strides = strided(np.zeros_like(x), order[::-1])
    for axis in range(3):
        call = softmax(shape, axis, src_strides=src_strides, dst_strides=dst_strides, isa=isa)
        y = execute(call, src, Out((dst.size,)))
        assert_near(unstride(y, shape, dst_strides), reference(x, axis), ULP)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [1, 2])
def test_stats(axis, isa):
    x = sample((2, 19, 23))
    call = softmax(x.shape, axis, stats=True, isa=isa)
    shape = tuple(1 if k == axis else dim for k, dim in enumerate(x.shape))
    stats, y = execute(call, x, Out(shape), Out(x.shape))
    assert_near(stats, np.log(np.exp(x.astype(np.float64)).sum(axis, keepdims=True)), 2, 1e-7)
    assert_near(y, reference(x, axis), ULP)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [0, 1])
def test_special_values(axis, isa):
    rows = np.full((6, 6), -np.inf, np.float32)
    rows[1] = [0, 1, np.nan, 2, 3, 4]
    rows[2] = [0, 1, np.inf, 2, 3, 4]
    rows[3] = [-np.inf, 1, 2, -np.inf, 0, 0]
    rows[4] = 3e38
    rows[5] = [-1e-40, 0, 100, -100, 88, -88]
    x = rows if axis == 1 else np.ascontiguousarray(rows.T)
    y = execute(softmax(x.shape, axis, isa=isa), x, Out(x.shape))
    assert_near(y, reference(x, axis), ULP, atol=1e-38)
    zeroed = execute(softmax(x.shape, axis, inf_as_zero=True, isa=isa), x, Out(x.shape))
    line = (0, slice(None)) if axis == 1 else (slice(None), 0)
    assert (zeroed[line] == 0).all()
    expected = reference(x, axis)
    expected[line] = 0
    assert_near(zeroed, expected, ULP, atol=1e-38)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [0, 1])
def test_epilogue_reads_its_own_arguments(axis, isa):
    x = sample((9, 70))
    builder = EltwiseBuilder(x.shape)
    bias = builder.load(1, "f32", (0, 1))
    builder.store(0, "f32", None, builder.binary("add", builder.acc(), bias))
    call = softmax(x.shape, axis, epilogue=builder.epilogue(), isa=isa)
    b = sample((70,))
    y = execute(call, x, Out(x.shape), b)
    assert_near(y, reference(x, axis) + b, 2, 1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [1, 3, 4, 8, 15, 16, 17, 32, 33, 40, 197, 300, 2500])
def test_rows_do_not_depend_on_those_beside_them(n, isa):
    x = sample((21, n))
    for options in ({}, {"is_log": True}, {"inf_as_zero": True}):
        y = execute(softmax(x.shape, 1, isa=isa, **options), x, Out(x.shape))
        alone = np.stack([execute(softmax((1, n), 1, isa=isa, **options), row, Out((n,))) for row in x])
        np.testing.assert_array_equal(y, alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(5, 3), (19, 7), (3, 17), (33, 31), (11, 53), (9, 300)])
def test_rows_end_where_a_page_does(shape, isa):
    x = sample(shape)
    y = guarded_array(shape, np.float32)
    softmax(shape, 1, isa=isa)(guarded_copy(x), y)
    assert_near(y, reference(x, 1), ULP)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(12, 40), (37, 10), (13, 300)])
@pytest.mark.parametrize("axis", [0, 1])
def test_in_place(axis, shape, isa):
    x = sample(shape)
    y = x.copy()
    softmax(x.shape, axis, isa=isa)(y, y)
    assert_near(y, reference(x, axis), ULP)


def test_bad_arguments():
    with pytest.raises(InvalidShapeError, match="no such axis"):
        softmax((2, 3), 2)
    with pytest.raises(InvalidShapeError, match="strides of src"):
        softmax((2, 3), 1, src_strides=(1,))
    with pytest.raises(InvalidShapeError, match="shape of src"):
        softmax((2, -3), 1)
