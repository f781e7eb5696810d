"""Bytes of dynamic ranges, and elements of 8-bit floats, against the reference."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.helpers.cuda_engine import run_partitions
from tests.helpers.partitions import run_reference

RNG = np.random.default_rng(5)
RANGES = {
    "both signs": RNG.standard_normal((3, 130), np.float32),
    "positive": RNG.random((7, 5, 3), np.float32) + 1,
    "negative": -RNG.random(33).astype(np.float32),
    "zeros": np.zeros((2, 3), np.float32),
    "NaN": np.array([np.nan, 2, -1], np.float32),
    "nothing": np.zeros((0, 4), np.float32),
    "a number": np.array(-3, np.float32),
}


@pytest.mark.parametrize("name", RANGES)
def test_bytes_of_a_range(gpu, name):
    g = GraphBuilder(graph=gp.Graph("gpu"))
    array = RANGES[name]
    x = g.input(array.shape)
    results = g.op("DynamicQuantizeLinear", x, n=3, dtype=["u8", "f32", "u8"])
    [partition] = g.finish()
    assert partition.backend_name == "cuda"
    expected = run_reference(g.graph.ops, {x.id: array})
    found = run_partitions([partition], {x.id: array}, gpu)
    numbers = ~np.isnan(array)
    np.testing.assert_array_equal(found[results[0].id][numbers], expected[results[0].id][numbers])
    for tensor in results[1:]:
        np.testing.assert_array_equal(found[tensor.id], expected[tensor.id])


@pytest.mark.parametrize("dtype", ["f8_e5m2", "f8_e4m3"])
def test_floats_of_eight_bits(gpu, dtype):
    """All of them to f32; and to them their values, those half way between two, the next ones, and the largest."""
    lt = gp.LogicalTensor(0, dtype, (256,))
    codes = np.arange(256, dtype=np.uint8).view(lt.dtype.numpy)
    values = codes.astype(np.float32)
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
    more = np.array([np.inf, -np.inf, np.nan, 1e-30, -0.0, 460, 463, 465, 6e4, 6.2e4, -1e9], np.float32)
    for array in (codes, np.concatenate([finite, middles, *near, more])):
        g = GraphBuilder(graph=gp.Graph("gpu"))
        x = g.input(array.shape, dtype if array is codes else "f32")
        y = g.op("TypeCast", x, dtype="f32" if array is codes else dtype)
        [partition] = g.finish()
        assert partition.backend_name == "cuda"
        expected = run_reference(g.graph.ops, {x.id: array})[y.id]
        found = run_partitions([partition], {x.id: array}, gpu)[y.id]
        np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
