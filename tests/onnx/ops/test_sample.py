"""Elements at places that are data, without the host, against definitions, one element at a time."""

from itertools import product
from math import floor

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

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


@pytest.mark.parametrize("is_aligned", [0, 1])
def test_the_nearest_element_of_places_halfway(is_aligned):
    """What rounding of f32 in ONNX's order of operations makes of places that are written with few digits."""
    x = RNG.normal(size=(1, 1, 16, 2)).astype(np.float32)
    grid = RNG.choice(np.linspace(-1, 1, 21).astype(np.float32), (1, 16, 16, 2))
    one, half, places = np.float32(1), np.float32(0.5), []
    for size, c in zip(x.shape[2:], (grid[..., 1], grid[..., 0]), strict=True):
        extent = np.float32(size)
        place = (c + one) * half * (extent - one) if is_aligned else ((c + one) * extent - one) * half
        places.append(np.rint(place).astype(int))
    inside = (places[0] >= 0) & (places[0] < 16) & (places[1] >= 0) & (places[1] < 2)
    wanted = np.where(inside, x[0, 0][np.clip(places[0], 0, 15), np.clip(places[1], 0, 1)], 0)
    with gp.onnx.load(model(2, mode="nearest", align_corners=is_aligned), fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x, "grid": grid})["y"][0], wanted)


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


def one_node(kind, ports, constants=None, **attributes):
    """A model of one node, whose inputs have these dimensions or contents."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in ports.items()]
    known = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    node = helper.make_node(kind, [*ports, *(constants or {})], ["y"], **attributes)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("is_aligned", [0, 1])
@pytest.mark.parametrize("space", [(4, 7), (1, 5), (3, 1, 4)])
def test_affine_grid(space, is_aligned):
    """Against its definition: each matrix times homogeneous places from -1 to 1, the last axis first."""
    rank = len(space)
    theta = RNG.normal(size=(3, rank, rank + 1)).astype(np.float32)
    proto = one_node("AffineGrid", {"theta": ["n", rank, rank + 1]}, {"size": [3, 5, *space]}, align_corners=is_aligned)
    rows = []
    for size in space:
        row = np.arange(size, dtype=np.float64)
        rows.append(2 * row / max(size - 1, 1) - 1 if is_aligned else (2 * row + 1) / size - 1)
    places = np.stack([*np.meshgrid(*rows, indexing="ij")[::-1], np.ones(space)], -1)
    with gp.onnx.load(proto, fallback=False) as loaded:
        found = loaded.run({"theta": theta})["y"]
    np.testing.assert_allclose(found, np.einsum("...c,nrc->n...r", places, theta), rtol=1e-5, atol=1e-5)


def deformed(x, w, offset, mask, pads, strides, dilations, groups, moved):
    """The definition of DeformConv, one element at a time."""
    (batch, channels, *_), (outputs, inside, *kernel) = x.shape, w.shape
    y = np.zeros((batch, outputs, *offset.shape[2:]))
    offset = offset.reshape(batch, moved, *kernel, 2, *offset.shape[2:])
    mask = np.ones_like(offset[:, :, :, :, 0]) if mask is None else mask.reshape(batch, moved, *kernel, *mask.shape[2:])
    for b, m, i, j in np.ndindex(y.shape):
        for c, *tap in np.ndindex(inside, *kernel):
            channel = m // (outputs // groups) * inside + c
            group = channel // (channels // moved)
            start = np.array([i, j]) * strides - pads[:2] + np.array(tap) * dilations
            down, across = start + offset[b, group, *tap, :, i, j]
            taps = product(taps_of(down, "linear"), taps_of(across, "linear"))
            value = sum(
                u * v * x[b, channel, r, s] for (r, u), (s, v) in taps if 0 <= r < x.shape[2] and 0 <= s < x.shape[3]
            )
            y[b, m, i, j] += w[m, c, *tap] * mask[b, group, *tap, i, j] * value
    return y


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(("groups", "moved"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_convolutions_whose_taps_are_moved(groups, moved, has_mask):
    options = {"pads": [1, 0, 0, 2], "strides": [2, 1], "dilations": [1, 2]}
    w = RNG.normal(size=(4, 4 // groups, 3, 2)).astype(np.float32)
    ports = {"x": ["n", 4, "h", "v"], "w": w.shape, "offset": ["n", moved * 12, "i", "j"]}
    ports |= {"b": [4]} | ({"mask": ["n", moved * 6, "i", "j"]} if has_mask else {})
    with gp.onnx.load(
        one_node("DeformConv", ports, group=groups, offset_group=moved, **options), fallback=False
    ) as loaded:
        for batch, height, width in ((2, 5, 4), (1, 2, 6), (1, 4, 1), (3, 6, 3)):
            counts = (height - 2) // 2 + 1, width
            x, b = (RNG.normal(size=shape).astype(np.float32) for shape in ((batch, 4, height, width), 4))
            offset = (1.5 * RNG.normal(size=(batch, moved * 12, *counts))).astype(np.float32)
            feeds = {"x": x, "w": w, "offset": offset, "b": b}
            if has_mask:
                feeds["mask"] = RNG.uniform(size=(batch, moved * 6, *counts)).astype(np.float32)
            wanted = deformed(x, w, offset, feeds.get("mask"), groups=groups, moved=moved, **options)
            found = loaded.run(feeds)["y"]
            np.testing.assert_allclose(found, wanted + b.reshape(-1, 1, 1), rtol=1e-4, atol=1e-4)


def test_offsets_of_another_shape_are_refused():
    ports = {"x": [1, 2, 4, 4], "w": [2, 2, 3, 3], "offset": [1, 18, 3, 3]}
    with pytest.raises(gp.GraphpoolError, match="DeformConv"), gp.onnx.load(one_node("DeformConv", ports)) as loaded:
        loaded.run({name: np.ones(shape, np.float32) for name, shape in ports.items()})
