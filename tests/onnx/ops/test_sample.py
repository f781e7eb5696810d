"""GridSample without the host, against its definition, one element at a time."""

from itertools import product
from math import floor

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphpool as gp

RNG = np.random.default_rng(0)


def model(rank, **attributes):
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], "the_node", **attributes)
    space = [f"size{k}" for k in range(rank)]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "channels", *space]),
        helper.make_tensor_value_info("grid", TensorProto.FLOAT, ["batch", *(f"place{k}" for k in range(rank)), rank]),
    ]
    graph = helper.make_graph([node], "g", ports, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def reflected(place, low, high):
    while not low <= place <= high:
        place = 2 * low - place if place < low else 2 * high - place
    return place


def taps_of(place, mode):
    if mode == "nearest":
        return [(int(np.round(place)), 1.0)]
    first, share = floor(place), place - floor(place)
    if mode == "linear":
        return [(first, 1 - share), (first + 1, share)]
    a, found = -0.75, []
    for k in range(-1, 3):
        d = abs(share - k)
        near = (a + 2) * d**3 - (a + 3) * d**2 + 1
        found.append((first + k, near if d <= 1 else a * (d**3 - 5 * d**2 + 8 * d - 4)))
    return found


def expected(x, grid, mode, padding, is_aligned):
    sizes = x.shape[2:]
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for b, *at in np.ndindex(*grid.shape[:-1]):
        axes = []
        for size, c in zip(sizes, grid[b, *at][::-1].astype(np.float64), strict=True):
            low, high = (0, size - 1) if is_aligned else (-0.5, size - 0.5)
            place = (c + 1) / 2 * (high - low) + low
            if mode == "nearest":
                place = np.round(place)
            if padding == "border" and mode != "cubic":
                place = min(max(place, 0), size - 1)
            if padding == "reflection" and mode != "cubic":
                place = reflected(place, low, high) if high > low else 0.0
            axes.append(taps_of(place, mode))
        for combination in product(*axes):
            where = [index for index, _ in combination]
            if padding == "reflection" and mode == "cubic":  # tap by tap
                edges = [(0, size - 1) if is_aligned else (-0.5, size - 0.5) for size in sizes]
                where = [int(reflected(index, *edge)) if edge[1] > edge[0] else 0
                         for index, edge in zip(where, edges, strict=True)]  # fmt: skip
            inside = [min(max(index, 0), size - 1) for index, size in zip(where, sizes, strict=True)]
            if padding != "zeros" or where == inside:
                y[b, :, *at] += np.prod([weight for _, weight in combination]) * x[b, :, *inside]
    return y


@pytest.mark.parametrize("is_aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode, padding, is_aligned):
    """Places inside and outside, of images of one element and of one channel too, by one model."""
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": is_aligned}
    with gp.onnx.load(model(2, **attributes), fallback=False) as loaded:
        for shape, places in (
            ((2, 3, 5, 7), (4, 3)),
            ((1, 1, 6, 4), (5, 5)),
            ((3, 2, 4, 1), (1, 6)),
            ((2, 3, 9, 8), (7, 5)),
        ):
            x = RNG.normal(size=shape).astype(np.float32)
            grid = (RNG.normal(size=(shape[0], *places, 2)) * 1.3).astype(np.float32)
            wanted = expected(x, grid, mode, padding, is_aligned)
            np.testing.assert_allclose(loaded.run({"x": x, "grid": grid})["y"], wanted, rtol=1e-4, atol=2e-5)


def test_grid_sample_of_a_volume():
    x = RNG.normal(size=(2, 3, 4, 5, 3)).astype(np.float32)
    grid = RNG.normal(size=(2, 2, 3, 4, 3)).astype(np.float32)
    with gp.onnx.load(model(3), fallback=False) as loaded:
        wanted = expected(x, grid, "linear", "zeros", is_aligned=False)
        np.testing.assert_allclose(loaded.run({"x": x, "grid": grid})["y"], wanted, rtol=1e-4, atol=2e-5)


def test_sizes_of_grid_sample_vary_without_a_compilation():
    with gp.onnx.load(model(2), fallback=False) as loaded:
        for height, width in ((5, 7), (8, 9), (12, 11)):
            x = RNG.normal(size=(2, 3, height, width)).astype(np.float32)
            loaded.run({"x": x, "grid": RNG.normal(size=(2, 4, height, 2)).astype(np.float32)})
        assert loaded.stats().compilations == 1
