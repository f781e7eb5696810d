"""Rows picked, put and reduced by index; the best elements of lines."""

import ml_dtypes
import numpy as np
import pytest

from graphpool._kernels.core._dispatch import call, isas
from graphpool._kernels.move.index import gather, scatter, top_k
from graphpool.errors import InvalidArgumentError, InvalidShapeError
from tests.helpers.guarded import Guarded

NUMPY = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8, "u8": np.uint8,
    "s16": np.int16, "u16": np.uint16, "s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64,
}  # fmt: skip
REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def random_numbers(rng, dtype, shape):
    if NUMPY[dtype] in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        return rng.integers(-8, 8, shape).astype(NUMPY[dtype])
    info = np.iinfo(NUMPY[dtype])
    return rng.integers(info.min, info.max, shape, NUMPY[dtype], endpoint=True)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("index_dtype", "index_type"), [("s32", np.int32), ("s64", np.int64)])
def test_gather_along_an_axis(index_dtype, index_type, isa):
    for outer, dim, inner in (
        (1, 50, 3),
        (4, 50, 700),
        (6, 50, 1),
        (1, 50, 0),
        (300, 50, 1),
        (300, 50, 2),
        (6, 50, 3),
        (6, 50, 4),
        (3, 50, 5),
        (3, 50, 20),
        (3, 50, 33),
        (2, 50, 300),
    ):
        src = np.arange(outer * dim * inner, dtype=np.uint32).reshape(outer, dim, inner)
        for count in (0, 1, 7, 16, 17, 120):
            indices = np.random.default_rng(count).integers(-50, 50, count, index_type)
            expected = np.take(src, indices, 1)
            out = Guarded(expected.nbytes)
            row = 4 * inner
            kernel = gather((outer, count), (0, 1), (dim * row, 0), [(dim, row)], row, index_dtype, isa=isa)
            kernel(src, indices, out.bytes)
            np.testing.assert_array_equal(out.array(np.uint32, expected.shape), expected)


def test_gather_tasks_are_independent():
    src, indices = np.arange(90_000, dtype=np.float32).reshape(300, 300), np.arange(300)[::-1].copy()
    kernel = gather((300,), (1,), (0,), [(300, 1200)], 1200)
    out = np.zeros_like(src)
    assert kernel.ntasks > 3
    for task in reversed(range(kernel.ntasks)):
        call(kernel.kernel, kernel.params, [src, indices, out], task, task + 1)
    np.testing.assert_array_equal(out, src[::-1])


def test_gather_of_tuples_never_leaves_its_source():
    src, out = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(4, np.float32)
    indices = np.array([[2, -1], [2**62, -(2**62)], [-3, 9], [1, 1]])
    pick = gather((4,), (2,), (0,), [(3, 16), (4, 4)], 4)
    assert pick(src, indices, out) == 1
    assert out.tolist() == [11, 11, 3, 5]
    assert pick(src, indices.clip(-3, 2), out) == 0


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize(("width", "count"), [(1, 90), (2, 90), (3, 90), (8, 90), (40, 90), (1, 1)])
@pytest.mark.parametrize("spread", [True, False])
def test_an_index_outside_is_told_wherever_it_lies(width, count, spread, index_type, isa):
    table, index_dtype = np.zeros((7, width), np.uint8), "s32" if index_type is np.int32 else "s64"
    shape, strides, bases = ((count, width), (width, 1), (0, 1)) if spread else ((count,), (1,), (0,))
    geometry = shape, strides, bases, [(7, width)], 1 if spread else width, index_dtype
    pick, put = gather(*geometry, isa=isa), scatter(*geometry, isa=isa)
    rows = np.zeros((count, width), np.uint8)
    indices = np.random.default_rng(2).integers(-7, 7, shape).astype(index_type)
    extremes = np.iinfo(index_type)
    for at in {0, count // 2, count - 1}:
        for number in (-8, 7, extremes.min, extremes.max):
            wrong = indices.copy()
            wrong[at] = number
            assert (pick(table, wrong, rows), put(rows, wrong, table)) == (1, 1)
    assert (pick(table, indices, rows), put(rows, indices, table)) == (0, 0)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scatter(dtype, isa):
    rng = np.random.default_rng(3)
    start, updates = random_numbers(rng, dtype, (9, 5)), random_numbers(rng, dtype, (20, 5))
    indices = rng.integers(-9, 9, 20)
    nbytes = start.itemsize
    for reduction in ("none", *REDUCTIONS):
        expected = start.copy()
        for index, row in zip(indices, updates, strict=True):
            expected[index] = row if reduction == "none" else REDUCTIONS[reduction](expected[index], row)
        out = start.copy()
        kernel = scatter((20,), (1,), (0,), [(9, 5 * nbytes)], 5 * nbytes, dtype=dtype, reduction=reduction, isa=isa)
        kernel(updates.view(np.uint8), indices, out.view(np.uint8))
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("spread", ["one", "all but the last", "none"])
def test_lines_whose_elements_have_one_index_or_nearly(spread, index_type, isa):
    rng = np.random.default_rng(11)
    index_dtype = "s32" if index_type is np.int32 else "s64"
    for width in (1, 2, 3, 64, 301):
        table = rng.integers(-8, 8, (7, width)).astype(np.float32)
        updates = rng.integers(-8, 8, (20, width)).astype(np.float32)
        indices = rng.integers(-7, 7, (20, width if spread == "none" else 1)).astype(index_type)
        indices = np.broadcast_to(indices, updates.shape).copy()
        if spread == "all but the last":
            indices[:, -1] = rng.integers(-7, 7, 20)
        geometry = updates.shape, (width, 1), (0, 4), [(7, 4 * width)], 4, index_dtype
        out = Guarded(updates.nbytes)
        gather(*geometry, isa=isa)(table, indices, out.bytes)
        np.testing.assert_array_equal(out.array(np.float32, updates.shape), np.take_along_axis(table, indices % 7, 0))
        at = indices % 7, np.arange(width)
        for reduction in ("none", *REDUCTIONS):
            expected, place = table.copy(), Guarded(table.nbytes)
            if reduction == "none":
                for row, update in zip(indices % 7, updates, strict=True):
                    expected[row, np.arange(width)] = update
            else:
                REDUCTIONS[reduction].at(expected, at, updates)
            place.array(np.float32, table.shape)[:] = table
            scatter(*geometry, dtype="f32", reduction=reduction, isa=isa)(updates, indices, place.bytes)
            np.testing.assert_array_equal(place.array(np.float32, table.shape), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", ["u8", "u16", "f32", "u64"])
def test_elements_of_every_size_along_every_axis(dtype, index_type, isa):
    rng = np.random.default_rng(5)
    table = random_numbers(rng, dtype, (5, 7, 6))
    item, index_dtype = table.itemsize, "s32" if index_type is np.int32 else "s64"
    steps = list(table.strides)
    for axis in range(3):
        shape = [4 if k == axis else dim for k, dim in enumerate(table.shape)]
        indices = rng.integers(-table.shape[axis], table.shape[axis], shape).astype(index_type)
        strides = [stride // indices.itemsize for stride in indices.strides]
        bases = [0 if k == axis else step for k, step in enumerate(steps)]
        geometry = shape, strides, bases, [(table.shape[axis], steps[axis])], item, index_dtype
        out = Guarded(item * indices.size)
        gather(*geometry, isa=isa)(table, indices, out.bytes)
        positive = indices % table.shape[axis]
        np.testing.assert_array_equal(out.array(NUMPY[dtype], indices.shape), np.take_along_axis(table, positive, axis))
        updates, expected, place = random_numbers(rng, dtype, shape), table.copy(), table.copy()
        for at in np.ndindex(*shape):
            expected[(*at[:axis], positive[at], *at[axis + 1 :])] = updates[at]
        scatter(*geometry, dtype=dtype, isa=isa)(updates.view(np.uint8), indices, place.view(np.uint8))
        np.testing.assert_array_equal(place, expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", ["u8", "u16", "f32", "u64"])
@pytest.mark.parametrize("count", [1, 3, 16, 17])
def test_columns_picked_from_rows(count, dtype, index_type, isa):
    rng = np.random.default_rng(7)
    table = random_numbers(rng, dtype, (2, 1000, 9))
    item, index_dtype = table.itemsize, "s32" if index_type is np.int32 else "s64"
    indices = rng.integers(-9, 9, count).astype(index_type)
    geometry = (2, 1000, count), (0, 0, 1), (1000 * 9 * item, 9 * item, 0), [(9, item)], item, index_dtype
    pick, out = gather(*geometry, isa=isa), Guarded(2000 * count * item)
    for task in reversed(range(pick.ntasks)):
        call(pick.kernel, pick.params, [table, indices, out.bytes], task, task + 1)
    np.testing.assert_array_equal(out.array(NUMPY[dtype], (2, 1000, count)), np.take(table, indices, 2))
    indices[-1] = 9
    assert pick(table, indices, out.bytes) == 1


def test_scatter_lets_nan_win():
    out, updates = np.array([np.nan, 1.0, 1.0]), np.array([2.0, np.nan, 0.5])
    scatter((3,), (1,), (0,), [(3, 8)], 8, dtype="f64", reduction="max")(updates, np.arange(3), out)
    np.testing.assert_array_equal(out, [np.nan, np.nan, 1.0])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", NUMPY)
def test_top_k(dtype, isa):
    rng = np.random.default_rng(5)
    for shape, axis in (((40,), 0), ((3, 17, 2), 1), ((5, 1), -1)):
        x = random_numbers(rng, dtype, shape)
        dim = x.shape[axis]
        for k in (0, 1, dim // 2, dim):
            for is_largest in (True, False):
                wide = np.flip(x, axis) if is_largest else x
                order = np.argsort(wide, axis, kind="stable")
                order = dim - 1 - np.flip(order, axis) if is_largest else order
                chosen = np.take(order, range(k), axis)
                values, indices = Guarded(chosen.size * x.itemsize), Guarded(chosen.size * 8)
                kernel = top_k(shape, axis, k, dtype, is_largest=is_largest, isa=isa)
                kernel(x.view(np.uint8) if dtype == "bf16" else x, indices.bytes, values.bytes)
                np.testing.assert_array_equal(indices.array(np.int64, chosen.shape), chosen)
                expected = np.take_along_axis(x, chosen, axis)
                np.testing.assert_array_equal(values.array(NUMPY[dtype], chosen.shape), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", ["f32", "f64", "s32", "s64"])
def test_what_vectors_pass_over_is_not_among_the_best(dtype, isa):
    """Lines side by side are looked at in blocks, others one by one: equal ones, NaN, infinities and zeros alike."""
    rng = np.random.default_rng(6)
    for length in (1, 31, 32, 33, 100, 333):
        x = rng.integers(-40, 40, (2, length)).astype(NUMPY[dtype])
        if dtype[0] == "f":
            special = rng.random(x.shape) < 0.1
            x[special] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], special.sum())
        for k in {1, min(length, 7), length}:
            for is_largest in (True, False):
                found = [np.empty((2, k), np.int64) for _ in range(2)]
                for memory, strides, out in zip((x, np.asfortranarray(x)), (None, (1, 2)), found, strict=True):
                    kernel = top_k(x.shape, 1, k, dtype, is_largest=is_largest, src_strides=strides, isa=isa)
                    kernel(memory.T if strides else memory, out, np.empty((2, k), x.dtype))
                np.testing.assert_array_equal(*found)


def pick_one(x, **flags):
    out = np.zeros(1, np.int64)
    top_k(x.shape, 0, 1, "f64", **flags)(x, out, np.zeros(1))
    return int(out[0])


def test_top_k_of_equal_numbers_and_nan():
    x = np.array([1.0, -0.0, 3.0, 0.0, 3.0, -1.0])
    assert pick_one(x) == 2
    assert pick_one(x[:2], is_largest=False) == 1
    assert pick_one(x[[1, 3]], is_largest=False) == 0
    with_nan = np.array([1.0, np.nan, 5.0, np.nan])
    assert pick_one(with_nan) == 1
    assert pick_one(with_nan, is_largest=False) == 0


def test_errors():
    with pytest.raises(InvalidArgumentError, match="s32, s64"):
        gather((1,), (1,), (0,), [(2, 4)], 4, "u8")
    with pytest.raises(InvalidShapeError, match="at least one element"):
        gather((1,), (1,), (0,), [(0, 4)], 4)
    with pytest.raises(InvalidArgumentError, match="unknown reduction"):
        scatter((1,), (1,), (0,), [(2, 4)], 4, reduction="mean")
    with pytest.raises(InvalidShapeError, match=r"0 \.\. 3"):
        top_k((3,), 0, 4, "f32")
