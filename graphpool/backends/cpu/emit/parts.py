"""Parts and copies: slice, split, expand, tile, pad, triangles, rotary embedding."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...._kernels.move.move import triangle
from ...._sizes import is_variable, largest, least
from ....graph.shapes import slice_part
from ....typing import MAX_NDIM
from ..lower.region import fill
from ..support import rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value


def _finish_view(lowering: Lowering, tensor_id: int, view: Value) -> None:
    """A view as the tensor; copied where kernels could not read it as it lies."""
    if lowering.place(tensor_id) is None and any(
        s <= 0 for d, s in zip(view.shape, view.strides, strict=True) if d > 1
    ):
        place = lowering.target(tensor_id, dtype=view.dtype)
        lowering.move(view, place)
        view = place
    lowering.finish(tensor_id, view)


@rule("Slice")
def lower_slice(lowering: Lowering, op: Op) -> None:
    """The same memory, of which some elements are left out."""
    view = lowering.value(op.inputs[0].id)
    starts, ends = op.attrs["starts"], op.attrs["ends"]
    axes, steps = op.attrs["axes"] or range(len(starts)), op.attrs["steps"] or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        view = view.cut(axis, *slice_part(view.shape[axis], start, end, step), step)
    _finish_view(lowering, op.outputs[0].id, view)


@rule("Split")
def lower_split(lowering: Lowering, op: Op) -> None:
    """Each part is the same memory."""
    source, at = lowering.value(op.inputs[0].id), 0
    for tensor in op.outputs:
        count = lowering.shapes[tensor.id][op.attrs["axis"]]
        _finish_view(lowering, tensor.id, source.cut(op.attrs["axis"], at, count))
        at += count


@rule("Expand")
def lower_expand(lowering: Lowering, op: Op) -> None:
    """The same memory, read again and again along the new dimensions."""
    result = op.outputs[0].id
    _finish_view(lowering, result, lowering.value(op.inputs[0].id).broadcast(lowering.shapes[result]))


@rule("Tile")
def lower_tile(lowering: Lowering, op: Op) -> None:
    """One copy, in which each repeated axis is two; where kernels have too few axes for that, one copy an axis."""
    result, repeats = op.outputs[0].id, op.attrs["repeats"]
    source = lowering.value(op.inputs[0].id)
    repeated = [axis for axis, count in enumerate(repeats) if count != 1]
    if len(repeats) + len(repeated) > MAX_NDIM:
        source = lowering.dense(source, source.dtype)
        for axis in repeated:
            source = _repeat_axis(lowering, source, axis, repeats[axis])
        lowering.finish(result, source)
        return
    place = lowering.target(result)
    axes: list[tuple[int, int, int]] = []
    for dim, count, src, dst in zip(source.shape, repeats, source.strides, place.strides, strict=True):
        axes += [(count, 0, dst * dim)] if count != 1 else []
        axes.append((dim, src, dst))
    dims, src_strides, dst_strides = zip(*axes, strict=True) if axes else ((), (), ())
    lowering.move(source._replace(shape=dims, strides=src_strides), place._replace(shape=dims, strides=dst_strides))
    lowering.finish(result, place)


def _repeat_axis(lowering: Lowering, source: Value, axis: int, count: int) -> Value:
    """A dense value repeated along one axis: everything before the axis, the repetitions, everything from it on."""
    shape = list(source.shape)
    before, behind = prod(shape[:axis]), prod(shape[axis:])
    shape[axis] *= count
    place = lowering.temporary(shape, source.dtype)
    dims = before, count, behind
    lowering.move(source._replace(shape=dims, strides=(behind, 0, 1)), place.reshaped(dims))
    return place


# ---- pad


@rule("Pad")
def lower_pad(lowering: Lowering, op: Op) -> None:
    """The inside is one copy; a border is a constant, or copies of the inside."""
    source, place = lowering.value(op.inputs[0].id), lowering.target(op.outputs[0].id)
    before, after = op.attrs["pads_begin"], op.attrs["pads_end"]
    if op.attrs["mode"] == "constant":
        pad_with(lowering, source, place, before, after, op.attrs["value"])
    else:
        source, inside = _find_inside(source, place, before, after)
        lowering.move(source, inside)
        for axis in range(len(source.shape)):
            inside = _extend(lowering, inside, axis, before[axis], after[axis], op.attrs["mode"])
    lowering.finish(op.outputs[0].id, place)


def pad_with(
    lowering: Lowering, source: Value, place: Value, before: Sequence[int], after: Sequence[int], number: float
) -> None:
    """Write a value with a border of one number, or without what a negative pad takes away."""
    source, inside = _find_inside(source, place, before, after)
    borders = _borders(place, before, after)
    if borders is None:
        fill(lowering, place, number)
    lowering.move(source, inside)
    for border in borders or ():  # behind the inside, whose cache lines they share
        fill(lowering, border, number)


def _find_inside(source: Value, place: Value, before: Sequence[int], after: Sequence[int]) -> tuple[Value, Value]:
    """What of the source stays, and where it lies in a padded value."""
    for axis, (a, b) in enumerate(zip(before, after, strict=True)):
        source = source.cut(axis, largest(-a, 0), largest(source.shape[axis] + least(a, 0) + least(b, 0), 0))
        place = place.cut(axis, largest(a, 0), source.shape[axis])
    return source, place


_RUN_COST = 20
"""Elements that are filled in the time that one more run of them takes, which lies apart from the one before."""


def _borders(place: Value, before: Sequence[int], after: Sequence[int]) -> list[Value] | None:
    """What lies around the inside, for a constant; None where filling everything is faster."""
    if any(map(is_variable, (*place.shape, *before, *after))):
        return None
    borders, rest, cost = [], place, 0
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        low, high, dim = max(low, 0), max(high, 0), rest.shape[axis]
        for border in [rest.cut(axis, at, count) for at, count in ((0, low), (dim - high, high)) if count]:
            cost += prod(border.shape) + _RUN_COST * prod(border.shape[:axis])
            borders.append(border)
        rest = rest.cut(axis, low, dim - low - high)
    return borders if cost < prod(place.shape) else None


def _extend(lowering: Lowering, inside: Value, axis: int, before: int, after: int, mode: str) -> Value:
    """Write what lies beside a value along an axis, from what it holds; returns the whole.

    Mirrored once or repeated, what is written repeats itself with a period, so that each further copy doubles it.
    """
    dim, total = inside.shape[axis], before + inside.shape[axis] + after
    whole = inside.cut(axis, -before, total)
    period = dim if mode == "wrap" else max(2 * (dim - 1), 1)

    def put(at: int, source: int, count: int, step: int) -> None:
        lowering.move(whole.cut(axis, source, count, step), whole.cut(axis, at, count))

    low, high = before, before + dim
    if mode == "edge":
        put(0, low, low, 0)
        put(high, high - 1, total - high, 0)
        return whole
    while high < total or low > 0:
        repeated = (high - low) // period * period
        if high < total:
            count = min(total - high, repeated or dim - 1)
            put(high, high - repeated if repeated else high - 2, count, 1 if repeated else -1)
            high += count
        else:
            count = min(low, repeated or dim - 1)
            low -= count
            put(low, low + (repeated or 2 * count), count, 1 if repeated else -1)
    return whole


# ---- triangles


@rule("Trilu")
def lower_trilu(lowering: Lowering, op: Op) -> None:
    """Copies of parts of rows."""
    value, place = lowering.value(op.inputs[0].id), lowering.target(op.outputs[0].id)
    source = lowering.dense(value, value.dtype)
    call = triangle(source.shape, op.attrs["k"], source.dtype.bits // 8, is_upper=op.attrs["upper"])
    lowering.emit(call, [source, place])
    lowering.finish(op.outputs[0].id, place)
