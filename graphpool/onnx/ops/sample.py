"""Elements of images at places that are data, as gathered rows of channels with weights.

GridSample, the grids that AffineGrid makes for it, and convolutions whose taps are moved.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from graphpool.graph.shapes import are_equal
from graphpool.typing import DataType

from .window import dilations_of, window_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of opset 16 -> those of later ones."""

_CUBIC = -0.75

_FLOATS = (DataType.F32, DataType.F16, DataType.BF16)


def _grid_sample(n: NodeView) -> Value:
    """Each place is unnormalised, and brought inside where the padding says so; its taps are rows of channels."""
    mode, padding = n.attr("mode", "linear"), n.attr("padding_mode", "zeros")
    mode, rank = _MODES.get(mode, mode), len(n[0].shape) - 2
    n.require(mode in ("linear", "nearest", "cubic") and padding in ("zeros", "border", "reflection"), "such a mode")
    n.require(rank in (2, 3) and n[1].shape[-1] == rank, "an input that is no image or volume")
    x, grid = n.cast(n[0], DataType.F32), n.cast(n[1], DataType.F32)
    batch, channels, *sizes = x.shape
    n.require(0 not in sizes, "an image without elements")
    wanted = tuple(grid.shape[1:-1])
    grid = n.reshape(grid, (batch, prod(wanted), rank))
    taps, is_aligned = [], bool(n.attr("align_corners", 0))
    for k, size in enumerate(sizes):  # the grid has the last axis first
        place = n.emit("Slice", grid, starts=[rank - 1 - k], ends=[rank - k], axes=[2])
        axis = _Axis(n, size, mode, padding, is_aligned)
        taps.append(axis.taps(axis.unnormalised(place)))
    image = n.reshape(_sampled(n, x, taps), (batch, *wanted, channels))
    return n.cast(n.emit("StaticTranspose", image, order=[0, rank + 1, *range(1, rank + 1)]), n[0].dtype)


def _sampled(n: NodeView, x: Value, taps: Sequence[Sequence[tuple[Value, Value | None]]]) -> Value:
    """Weighted sums of the channels of each image of x, (batch, channels, *space), at places as rows of channels.

    `taps` are those of each axis of the space, an index and a weight for each place: (batch, places, 1).
    """
    batch, channels, *sizes = x.shape
    rows = n.emit("StaticTranspose", x, order=[0, *range(2, len(sizes) + 2), 1]) if channels != 1 else x
    rows = n.reshape(rows, (batch * prod(sizes), channels))
    begin = n.multiples(batch, *sizes, behind=2) if batch != 1 else None  # the first row of each image
    found = None
    for combination in product(*taps):
        index, weight = combination[0]
        for size, (more, factor) in zip(sizes[1:], combination[1:], strict=True):
            index = n.emit("Add", n.emit("Multiply", index, n.count(size)), more)
            weight = factor if weight is None else weight if factor is None else n.emit("Multiply", weight, factor)
        index = index if begin is None else n.emit("Add", index, begin)
        part = n.emit("Gather", rows, n.reshape(index, index.shape[:2]), axis=0)
        part = part if weight is None else n.emit("Multiply", part, weight)
        found = part if found is None else n.emit("Add", found, part)
    assert found is not None  # every axis has a tap
    return found


def _affine_grid(n: NodeView) -> Value:
    """Sums of the columns of the matrices, each times the places along an axis, from -1 to 1."""
    theta, size = n[0], n.ints("", 1)
    assert size is not None  # ONNX has it as an input alone
    rank = len(size) - 2
    n.require(theta.dtype in _FLOATS, "matrices of another type")
    n.require(rank in (2, 3) and are_equal(theta.shape, (size[0], rank, rank + 1)), "other matrices than the size asks")
    is_aligned, matrices = bool(n.attr("align_corners", 0)), n.cast(theta, DataType.F32)
    columns = [
        n.reshape(
            n.emit("Slice", matrices, starts=[k], ends=[k + 1], axes=[2]), (size[0], *[1] * rank, rank)
        )
        for k in range(rank + 1)
    ]  # fmt: skip
    found = columns[rank]
    for k, extent in enumerate(size[2:]):  # the grid has the last axis first
        places = n.cast(n.builder.numbers(0, extent, behind=rank - k), DataType.F32)
        twice = n.emit("Multiply", places, n.literal(2.0, places))
        if is_aligned:
            last = n.emit("Maximum", n.count(extent - 1, DataType.F32), n.literal(1.0, places))
            places = n.emit("Divide", twice, last)
        else:
            places = n.emit("Divide", n.emit("Add", twice, n.literal(1.0, twice)), n.count(extent, DataType.F32))
        places = n.emit("Subtract", places, n.literal(1.0, places))
        found = n.emit("Add", found, n.emit("Multiply", columns[rank - 1 - k], places))
    return n.cast(found, theta.dtype)


def _deform_conv(n: NodeView) -> Value:
    """Columns of sampled elements, a tap after the other, times the weights of each group."""
    x, weights, offsets = (n.cast(n[k], DataType.F32) for k in range(3))
    n.require(n[0].dtype in _FLOATS, "another type")
    batch, channels, *sizes = x.shape
    rank, groups, moved = len(sizes), n.attr("group", 1), n.attr("offset_group", 1)
    kernel, outputs = weights.shape[2:], weights.shape[0]
    axes = window_axes(n, list(kernel), dilations_of(n, rank))
    ntaps, counts = prod(kernel), [axis.count for axis in axes]
    n.require(rank in (2, 3) and 0 not in (*sizes, *kernel, *counts), "an input that is no image or volume")
    n.require(channels % groups == channels % moved == outputs % groups == 0, "groups that do not divide the channels")
    wanted = [(outputs, channels // groups, *kernel), (batch, moved * ntaps * rank, *counts), (outputs,),
              (batch, moved * ntaps, *counts)]  # fmt: skip
    for k, shape in enumerate(wanted, 1):
        n.require(not n.has(k) or are_equal(n[k].shape, shape), f"input {k} of another shape")
    images, nplaces = batch * moved, ntaps * prod(counts)
    offsets = n.reshape(offsets, (images, ntaps, rank, *counts))
    taps = []
    for k, axis in enumerate(axes):
        place = n.emit("Slice", offsets, starts=[k], ends=[k + 1], axes=[2])
        starts = n.cast(n.builder.numbers(0, axis.count, behind=rank - 1 - k), DataType.F32)
        place = n.emit("Add", place, n.emit("Multiply", starts, n.literal(float(axis.stride), starts)))
        first = np.indices(kernel)[k] * axis.dilation - axis.begin
        place = n.emit("Add", place, n.literal(first.reshape(-1, *[1] * (rank + 1)), place))
        taps.append(_Axis(n, axis.size, "linear", "zeros", True).taps(n.reshape(place, (images, nplaces, 1))))
    columns = _sampled(n, n.reshape(x, (images, channels // moved, *sizes)), taps)
    if n.has(4):
        mask = n.reshape(n.cast(n[4], DataType.F32), (images, nplaces, 1))
        columns = n.emit("Multiply", columns, mask)
    inside = (batch, moved, ntaps, prod(counts), channels // moved)
    columns = n.emit("StaticTranspose", n.reshape(columns, inside), order=[0, 3, 1, 4, 2])
    depth = channels // groups * ntaps
    columns = n.reshape(columns, (batch, prod(counts), groups, depth))
    columns = n.emit("StaticTranspose", columns, order=[2, 0, 1, 3])
    columns = n.reshape(columns, (groups, batch * prod(counts), depth))
    matrices = n.reshape(weights, (groups, outputs // groups, depth))
    found = n.emit("MatMul", columns, matrices, transpose_b=True)
    found = n.reshape(found, (groups, batch, prod(counts), outputs // groups))
    found = n.emit("StaticTranspose", found, order=[1, 0, 3, 2])
    found = n.reshape(found, (batch, outputs, *counts))
    if n.has(3):
        found = n.emit("Add", found, n.reshape(n.cast(n[3], DataType.F32), (outputs, *[1] * rank)))
    return n.cast(found, n[0].dtype)


class _Axis:
    """The taps of all places along one axis: indices, s64, and weights, None for 1."""

    def __init__(self, n: NodeView, size: int, mode: str, padding: str, is_aligned: bool) -> None:
        self._n, self._mode, self._padding = n, mode, padding
        one = n.builder.literal(1.0, DataType.F32)
        extent = n.count(size, DataType.F32)
        self._last = n.emit("Subtract", extent, one)
        self._edge, self._extent = (0.0, self._last) if is_aligned else (-0.5, extent)
        self._is_aligned = is_aligned

    def unnormalised(self, place: Value) -> Value:
        """From -1 .. 1 to the centres of the first and the last element, or to their outer edges.

        In ONNX's order of operations: the nearest element of a place halfway depends on how that was rounded.
        """
        n, half, one = self._n, self._n.literal(0.5, place), self._n.literal(1.0, place)
        ahead = n.emit("Add", place, one)
        if self._is_aligned:
            return n.emit("Multiply", n.emit("Multiply", ahead, half), self._extent)
        return n.emit("Multiply", n.emit("Subtract", n.emit("Multiply", ahead, self._extent), one), half)

    def taps(self, place: Value) -> list[tuple[Value, Value | None]]:
        """Those of places that count elements."""
        n = self._n
        if self._mode == "nearest":
            return [self._tap(self._inside(n.emit("Round", place)), None)]
        if self._mode == "linear":
            place = self._inside(place)
        first = n.emit("Floor", place)
        share = n.emit("Subtract", place, first)
        if self._mode == "linear":
            rest = n.emit("Subtract", n.literal(1.0, share), share)
            return [self._tap(first, rest), self._tap(n.emit("Add", first, n.literal(1.0, first)), share)]
        places = [n.emit("Add", first, n.literal(float(step), first)) for step in (-1, 0, 1, 2)]
        if self._padding == "reflection":
            places = list(map(self._reflected, places))
        return [self._tap(tap, weight(share)) for tap, weight in zip(places, self._cubic(), strict=True)]

    def _inside(self, place: Value) -> Value:
        """The place as the padding moves it; zeros are for the weights."""
        if self._padding == "border":
            return self._limited(place)
        return place if self._padding == "zeros" else self._reflected(place)

    def _limited(self, place: Value) -> Value:
        n = self._n
        return n.emit("Maximum", n.emit("Minimum", place, self._last), n.literal(0.0, place))

    def _reflected(self, place: Value) -> Value:
        """To and fro between the edges; rows behind them are those before."""
        n, edge = self._n, self._n.literal(self._edge, place)
        far = n.emit("Abs", n.emit("Subtract", place, edge))
        period = n.emit("Maximum", n.emit("Multiply", self._extent, n.literal(2.0, place)), n.literal(1.0, place))
        turns = n.emit("Floor", n.emit("Divide", far, period))
        far = n.emit("Subtract", far, n.emit("Multiply", turns, period))
        return self._limited(n.emit("Add", n.emit("Minimum", far, n.emit("Subtract", period, far)), edge))

    def _tap(self, place: Value, weight: Value | None) -> tuple[Value, Value | None]:
        """A whole place as an index inside the axis, and its weight, 0 outside where the padding is zeros."""
        n, index = self._n, self._limited(place)
        if self._padding == "zeros":
            is_inside = n.cast(n.emit_several("Equal", [DataType.BOOLEAN], index, place)[0], DataType.F32)
            weight = is_inside if weight is None else n.emit("Multiply", weight, is_inside)
        return n.cast(index, DataType.S64), weight

    def _cubic(self) -> list[Callable[[Value], Value]]:
        """Weights of the four taps: Keys' kernel, by the distance of the place from the second one."""

        def near(x: Value) -> Value:
            return self._polynomial(x, [_CUBIC + 2, -(_CUBIC + 3), 0.0, 1.0])

        def far(x: Value) -> Value:
            return self._polynomial(x, [_CUBIC, -5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC])

        def moved(x: Value, factor: float, step: float) -> Value:
            n = self._n
            return n.emit("Add", n.emit("Multiply", x, n.literal(factor, x)), n.literal(step, x))

        return [
            lambda x: far(moved(x, 1.0, 1.0)),
            near,
            lambda x: near(moved(x, -1.0, 1.0)),
            lambda x: far(moved(x, -1.0, 2.0)),
        ]

    def _polynomial(self, x: Value, coefficients: list[float]) -> Value:
        n, found = self._n, self._n.literal(np.float32(coefficients[0]), x)
        for coefficient in coefficients[1:]:
            found = n.emit("Add", n.emit("Multiply", x, found), n.literal(np.float32(coefficient), x))
        return found


CONVERTERS = {"GridSample": _grid_sample, "AffineGrid": _affine_grid, "DeformConv": _deform_conv}
