"""GridSample: elements of an image at places that are data, as gathered rows of channels with weights."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from graphpool._sizes import is_variable
from graphpool.onnx.build import Value
from graphpool.onnx.shape_values import shape_array
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView

__all__ = ["CONVERTERS"]

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of opset 16 -> those of later ones."""

_CUBIC = -0.75


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
    taps = []
    for axis, size in enumerate(sizes):  # the grid has the last axis first
        place = n.emit("Slice", grid, starts=[rank - 1 - axis], ends=[rank - axis], axes=[2])
        taps.append(_Axis(n, place, size, mode, padding).taps())

    rows = n.emit("StaticTranspose", x, order=[0, *range(2, rank + 2), 1]) if channels != 1 else x
    rows = n.reshape(rows, (batch * prod(sizes), channels))
    begin = _begin(n, batch, prod(sizes))
    found = None
    for combination in product(*taps):
        index, weight = combination[0]
        for size, (more, factor) in zip(sizes[1:], combination[1:], strict=True):
            index = n.emit("Add", n.emit("Multiply", index, _number(n, size)), more)
            weight = factor if weight is None else weight if factor is None else n.emit("Multiply", weight, factor)
        index = index if begin is None else n.emit("Add", index, begin)
        part = n.emit("Gather", rows, n.reshape(index, index.shape[:2]), axis=0)
        part = part if weight is None else n.emit("Multiply", part, weight)
        found = part if found is None else n.emit("Add", found, part)
    assert found is not None  # every axis has a tap
    image = n.reshape(found, (batch, *wanted, channels))
    return n.cast(n.emit("StaticTranspose", image, order=[0, rank + 1, *range(1, rank + 1)]), n[0].dtype)


def _number(n: NodeView, size: int, dtype: DataType = DataType.S64) -> Value:
    """A size as data, which may vary."""
    value = Value(content=shape_array([size]))
    return (
        n.emit_several("TypeCast", [dtype], value)[0]
        if is_variable(size) and dtype is not DataType.S64
        else (n.cast(value, dtype))
    )


def _begin(n: NodeView, batch: int, size: int) -> Value | None:
    """The first row of each image; None where there is one image."""
    if batch == 1:
        return None
    numbers = n.cast(n.builder.positions(batch), DataType.S64)
    return n.reshape(n.emit("Multiply", numbers, _number(n, size)), (batch, 1, 1))


class _Axis:
    """The taps of all places along one axis."""

    def __init__(self, n: NodeView, place: Value, size: int, mode: str, padding: str) -> None:
        self._n, self._mode, self._padding = n, mode, padding
        self._last = n.emit("Subtract", _number(n, size, DataType.F32), n.literal(1.0, place))
        is_aligned = bool(n.attr("align_corners", 0))
        # from -1 .. 1 to the centres of the first and the last element, or to their outer edges
        extent = self._last if is_aligned else _number(n, size, DataType.F32)
        scaled = n.emit("Multiply", n.emit("Multiply", place, n.literal(0.5, place)), extent)
        self._place = n.emit("Add", scaled, n.emit("Multiply", self._last, n.literal(0.5, place)))
        self._edge, self._extent = 0.0 if is_aligned else -0.5, extent

    def taps(self) -> list[tuple[Value, Value | None]]:
        """Indices, s64, and weights, None for 1."""
        n, place = self._n, self._place
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


CONVERTERS = {"GridSample": _grid_sample}
