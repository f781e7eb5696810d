import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.norm.reduce import REDUCTIONS, arg_extreme, reduce, running
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.helpers.guard_pages import guarded_array, guarded_copy
from tests.helpers.kernel_outputs import Out, assert_near, execute, strided, unstride

ISAS = _dispatch.isas()


REFERENCE = {
    "sum": np.sum,
    "mean": np.mean,
    "max": lambda x, axis: x.max(axis, initial=-np.inf),
    "min": lambda x, axis: x.min(axis, initial=np.inf),
    "prod": np.prod,
    "l1": lambda x, axis: np.abs(x).sum(axis),
    "l2": lambda x, axis: np.sqrt((x * x).sum(axis)),
}

# (ulp, atol per square root of the number of terms): sums cancel.
TOLERANCE = dict.fromkeys(REFERENCE, (4, 0.0)) | {
    "sum": (4, 4e-7), "mean": (4, 4e-7), "max": (0, 0.0), "min": (0, 0.0),
}  # fmt: skip


def sample(shape, name="sum"):
    rng = np.random.default_rng(sum(shape))
    x = rng.uniform(0.5, 2, shape) if name == "prod" else rng.normal(size=shape)
    return x.astype(np.float32)


def expected_of(name, x, axes):
    with np.errstate(all="ignore"):
        if name == "mean" and not np.prod([x.shape[k] for k in axes]):
            return np.full([dim for k, dim in enumerate(x.shape) if k not in axes], np.nan)
        return np.asarray(REFERENCE[name](x.astype(np.float64), axis=tuple(axes)))


def check(name, x, axes, isa):
    shape = tuple(dim for k, dim in enumerate(x.shape) if k not in axes)
    y = execute(reduce(name, x.shape, axes, isa=isa), x, Out(shape))
    ulp, atol = TOLERANCE[name]
    terms = np.prod([x.shape[k] for k in axes])
    assert_near(y, expected_of(name, x, axes), ulp, atol * max(1, terms) ** 0.5)


def test_every_reduction_has_a_reference():
    assert REFERENCE.keys() == REDUCTIONS.keys()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1,), (0,)), ((5,), ()), ((5, 7, 3), (1,)), ((5, 7, 3), (0, 2)), ((3, 4, 5, 6), (1, 2)), ((40, 130), (0,)),
        ((40, 130), (1,)), ((3, 5000), (1,)), ((6, 9, 11), (0, 1, 2)), ((0, 3), (0,)), ((3, 0), (1,)), ((0, 3), (1,)),
        ((100, 10), (1,)), ((70, 17), (1,)), ((65, 64), (1,)), ((5, 33, 3), (0, 2)),
        ((3, 1030), (0,)), ((2, 12, 70), (1,)),
    ],
    ids=str,
)  # fmt: skip
def test_matches_float64(name, shape, axes, isa):
    check(name, sample(shape, name), axes, isa)


TYPES = {
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "u8": np.uint8, "u16": np.uint16,
    "u32": np.uint32, "u64": np.uint64, "f64": np.float64,
}  # fmt: skip
UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def random_of_type(dtype, shape):
    rng = np.random.default_rng(sum(shape))
    if dtype == "f64":
        return rng.normal(1, 0.2, shape)
    info = np.iinfo(TYPES[dtype])
    return rng.integers(info.min, info.max, shape, TYPES[dtype], endpoint=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1,), (0,)), ((5,), ()), ((40, 130), (0,)), ((40, 130), (1,)), ((3, 5000), (1,)), ((3, 4, 5, 6), (1, 2)),
        ((6, 9, 11), (0, 1, 2)), ((5, 33, 3), (0, 2)), ((3, 100, 3), (1,)), ((3, 0), (1,)), ((0, 3), (1,)),
    ],
    ids=str,
)  # fmt: skip
def test_every_type(dtype, shape, axes, isa):
    x = random_of_type(dtype, shape)
    kept = tuple(dim for k, dim in enumerate(shape) if k not in axes)
    for name, ufunc in UFUNCS.items():
        call = reduce(name, shape, axes, dtype=dtype, isa=isa)
        y = execute(call, x, Out(kept, x.dtype))
        limits = np.finfo(x.dtype) if dtype == "f64" else np.iinfo(x.dtype)
        low, high = (-np.inf, np.inf) if dtype == "f64" else (limits.min, limits.max)
        initial = {"sum": 0, "prod": 1, "max": low, "min": high}[name]
        expected = ufunc.reduce(x, axis=axes, dtype=x.dtype, initial=initial) if axes else x
        np.testing.assert_allclose(y, expected, 1e-12 if dtype == "f64" else 0, err_msg=name)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_of_f64_wins(axis, isa):
    x = np.random.default_rng(0).normal(size=(70, 90))
    x[3, 5], x[69, 89], x[11, 0] = np.nan, np.nan, np.inf
    for name in UFUNCS:
        y = execute(reduce(name, x.shape, (axis,), dtype="f64", isa=isa), x, Out((x.shape[1 - axis],), np.float64))
        np.testing.assert_allclose(y, UFUNCS[name].reduce(x, axis=axis), 1e-12, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_axes_and_strides(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)))
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    order = data.draw(st.permutations(range(len(shape))))
    name = data.draw(st.sampled_from(sorted(REFERENCE)))
    x = sample(shape, name)
    src, src_strides = strided(x, order, pad=data.draw(st.integers(0, 2)))
    kept = tuple(dim for k, dim in enumerate(shape) if k not in axes)
    dst, dst_strides = strided(np.zeros(kept), data.draw(st.permutations(range(len(kept)))))
    for isa in ISAS:
        call = reduce(name, shape, axes, src_strides=src_strides, dst_strides=dst_strides, isa=isa)
        y = execute(call, src, Out((dst.size,)))
        assert_near(unstride(y, kept, dst_strides), expected_of(name, x, axes), max(TOLERANCE[name][0], 4), 2e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [0, 1])
def test_special_values(axis, isa):
    rows = np.zeros((6, 21), np.float32)
    rows[0, 3], rows[0, 7] = np.nan, np.inf
    rows[1, 20] = np.inf
    rows[2, 5] = -np.inf
    rows[3] = -np.inf
    rows[4] = 1e30
    rows[5] = 1e-30
    x = rows if axis == 1 else np.ascontiguousarray(rows.T)
    for name in ("sum", "mean", "max", "min", "l1", "l2"):
        check(name, x, (axis,), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["sum", "mean", "l1"])
def test_sums_of_a_few_rows_that_f32_does_not_hold(name, isa):
    x = np.ones((4, 70), np.float32)
    x[:, 5] = 3e38, 3e38, -3e38, -2.9e38
    x[:, 66] = 3e38, 3e38, 1, -3e38
    x[:, 67] = -0.0
    if name == "l1":
        x /= 8
    check(name, x, (0,), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_long_sums_keep_their_precision(isa):
    x = np.random.default_rng(0).uniform(0, 1, (100_000, 3)).astype(np.float32)
    for axes in ((0,), (0, 1)):
        y = execute(reduce("sum", x.shape, axes, isa=isa), x, Out(x.shape[len(axes) :]))
        assert_near(y, x.astype(np.float64).sum(axes), 1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(5, 3), (19, 7), (70, 17), (33, 31)])
def test_short_rows_end_where_a_page_does(shape, isa):
    x = sample(shape)
    for name in ("mean", "l1", "l2", "max", "min"):
        y = guarded_array(shape[:1], np.float32)
        reduce(name, shape, (1,), isa=isa)(guarded_copy(x), y)
        assert_near(y, expected_of(name, x, (1,)), 4, 2e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_epilogue(axes, isa):
    x = sample((70, 90))
    kept = (90,) if axes == (0,) else (70,)
    builder = EltwiseBuilder(kept)
    builder.store(0, "f32", None, builder.unary("relu", builder.acc()))
    y = execute(reduce("sum", x.shape, axes, epilogue=builder.epilogue(), isa=isa), x, Out(kept))
    assert_near(y, np.maximum(x.astype(np.float64).sum(axes), 0), 4, 4e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("is_min", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((9,), 0),
        ((4, 80), 1),
        ((64,), 0),
        ((1, 65), 1),
        ((3, 2000), 1),
        ((2, 3, 191), 2),
        ((80, 4), 0),
        ((3, 6, 70), 1),
        ((0, 2), 1),
    ],
    ids=str,
)
def test_arg_extreme(shape, axis, is_last, is_min, dtype, isa):
    x = np.random.default_rng(1).integers(-3, 4, shape)
    x = x.astype(np.float32) if dtype == "f32" else x.astype(TYPES[dtype])
    if dtype[0] == "f":
        x[x == 3] = np.nan if sum(shape) % 2 else np.inf
    call = arg_extreme(shape, axis, dtype=dtype, is_min=is_min, select_last_index=is_last, isa=isa)
    y = execute(call, x, Out(tuple(dim for k, dim in enumerate(shape) if k != axis), "i8"))
    flipped = np.flip(x, axis) if is_last else x
    found = (np.argmin if is_min else np.argmax)(flipped, axis)
    np.testing.assert_array_equal(y, shape[axis] - 1 - found if is_last else found)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((1,), 0), ((9,), 0), ((7, 80), 1), ((80, 4), 0), ((3, 0), 1)], ids=str)
def test_running_sum(shape, axis, is_reverse, is_exclusive, isa):
    x = sample(shape)
    y = execute(running(shape, axis, is_exclusive=is_exclusive, is_reverse=is_reverse, isa=isa), x, Out(shape))
    wide = np.flip(x, axis) if is_reverse else x
    expected = wide.astype(np.float64).cumsum(axis) - (wide if is_exclusive else 0)
    assert_near(y, np.flip(expected, axis) if is_reverse else expected, 1, 1e-12)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("dtype", "numpy"), [("f32", np.float32), ("f64", np.float64), ("s32", np.int32), ("s64", np.int64)]
)
@pytest.mark.parametrize("is_product", [False, True])
def test_running_of_every_type(dtype, numpy, is_product, isa):
    rng = np.random.default_rng(4)
    largest = np.iinfo(numpy).max // 2 if dtype[0] == "s" else 1
    x = (rng.uniform(-largest, largest, (3, 70, 5)) if dtype[0] == "s" else rng.normal(size=(3, 70, 5))).astype(numpy)
    accumulate = np.multiply.accumulate if is_product else np.add.accumulate
    out = np.zeros_like(x)
    running(x.shape, 1, dtype=dtype, is_product=is_product, isa=isa)(x, out)
    wide = x.astype(np.float64) if dtype == "f32" else x
    np.testing.assert_allclose(out, accumulate(wide, 1, wide.dtype), 1e-6 if dtype == "f32" else 1e-12)


def test_bad_arguments():
    with pytest.raises(InvalidArgumentError, match="unknown reduction"):
        reduce("median", (2, 3), (0,))
    with pytest.raises(InvalidArgumentError, match="each axis once"):
        reduce("sum", (2, 3), (0, -2))
    with pytest.raises(InvalidShapeError, match="no such axis"):
        reduce("sum", (2, 3), (2,))
    with pytest.raises(UnsupportedError, match="reduction of s32"):
        reduce("mean", (2, 3), (0,), dtype="s32")
    with pytest.raises(UnsupportedError, match="without an epilogue"):
        reduce("sum", (2, 3), (0,), dtype="f64", epilogue=b"program")
    with pytest.raises(InvalidShapeError, match="at least one element"):
        arg_extreme((2, 0), 1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [0.0, -np.inf, np.inf, np.nan])
@pytest.mark.parametrize("is_last", [False, True])
def test_the_extreme_of_equal_elements(value, is_last, isa):
    x = np.full((2, 150), value, np.float32)
    y = execute(arg_extreme(x.shape, 1, select_last_index=is_last, isa=isa), x, Out((2,), "i8"))
    assert y.tolist() == [149 if is_last else 0] * 2
