"""Walks along lines, access by index and resampling: sizes around blocks, equal numbers, NaN, rows put twice."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.helpers.cuda_engine import run_partitions
from tests.helpers.partitions import assert_close, run_reference

RNG = np.random.default_rng(11)


def check(driver, gpu, kind, *arrays, dtype=None, n=1, **attrs):
    """One op on these arrays equals the reference."""
    g = GraphBuilder(graph=gp.Graph("gpu"))
    ports = [g.input(array.shape, str(gp.DataType.parse(array.dtype))) for array in arrays]
    results = g.op(kind, *ports, dtype=dtype, n=n, **attrs)
    [partition] = g.finish()
    assert partition.backend_name == "cuda"
    values = {port.id: array for port, array in zip(ports, arrays, strict=True)}
    expected = run_reference(g.graph.ops, values)
    driver.seed(sum(array.size for array in arrays))
    found = run_partitions([partition], values, gpu)
    for tensor in results if n > 1 else [results]:
        assert_close(found[tensor.id], expected[tensor.id], tensor.dtype, scale=4)


@pytest.mark.parametrize("length", [1, 31, 33, 257, 700])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(driver, gpu, length, exclusive, reverse):
    walk = {"exclusive": exclusive, "reverse": reverse}
    check(driver, gpu, "CumSum", RNG.standard_normal((2, length, 2), np.float32), axis=1, **walk)
    check(driver, gpu, "CumProd", RNG.integers(-5, 5, (3, length)).astype(np.int32), axis=1, **walk)


def with_repeats(length):
    """Few distinct numbers, zeros of both signs, infinities, and NaN of both signs."""
    numbers = np.array([0.0, -0.0, 1, 2, np.inf, -np.inf, np.nan, -np.nan], np.float32)
    return RNG.choice(numbers, (3, length))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("length", "k"), [(1, 1), (33, 32), (300, 17), (300, 300), (5, 0)])
def test_the_best_come_in_order(driver, gpu, length, k, largest):
    results = {"n": 2, "axis": 1, "k": k, "largest": largest}
    check(driver, gpu, "TopK", with_repeats(length), dtype=["f32", "s64"], **results)
    check(driver, gpu, "TopK", RNG.integers(-9, 9, (2, length, 2)), dtype=["s64", "s64"], **results)


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("length", [1, 40, 300])
def test_extremes(driver, gpu, kind, is_last, length):
    for array in (with_repeats(length), RNG.integers(0, 3, (2, length)).astype(np.uint8)):
        check(driver, gpu, kind, array, dtype="s64", axis=1, select_last_index=is_last)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_rows_that_are_put_twice(driver, gpu, reduction):
    """In the order of positions: sums are those of the reference, bit for bit."""
    rows = np.array([[2], [-1], [2], [0], [2]])
    table, updates = (RNG.standard_normal((dim, 3, 2), np.float32) for dim in (4, 5))
    check(driver, gpu, "ScatterND", table, rows, updates, reduction=reduction)
    columns = RNG.integers(-7, 7, (4, 30))
    table, updates = (RNG.integers(-9, 9, (5, dim)).astype(np.int16) for dim in (7, 30))
    check(driver, gpu, "ScatterElements", table, columns, updates[:4], axis=1, reduction=reduction)


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"])
@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float64])
def test_wide_reductions(driver, gpu, kind, dtype):
    for length in (0, 1, 500):
        check(driver, gpu, kind, RNG.integers(-4, 5, (2, length, 3)).astype(dtype), axes=[1])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("corners", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("sizes", [(7,), (3, 11), (1, 5, 4)], ids=str)
def test_resampling(driver, gpu, mode, corners, sizes):
    array = RNG.standard_normal((2, 3, *(4, 5, 6)[: len(sizes)]), np.float32)
    array[0, 0] = np.inf  # which weights of 0 must not meet
    attrs = {"mode": mode, "coordinate_transformation_mode": corners, "data_format": "NCX"}
    check(driver, gpu, "Interpolate", array, sizes=list(sizes), **attrs)
