"""Reshape, transpose, concat, reorder, index generation, dropout."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...._kernels.eltwise.random import dropout
from ...._kernels.move.move import concat, gen_index
from ....errors import UnsupportedError, explain
from ....typing import DataType
from ..lower.region import fill
from ..support import rule
from .inplace_concat import emit_concat

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value


@rule("StaticReshape")
def lower_reshape(lowering: Lowering, op: Op) -> None:
    """The same memory under another shape; a copy where the source has gaps, or lies elsewhere than the result must.

    Axes of one element come and go whatever the gaps.
    """
    source, result = lowering.value(op.inputs[0].id), op.outputs[0].id
    shape, place = lowering.shapes[result], lowering.place(result)
    if place is not None and place.is_plain_block:
        slot = place.reshaped(source.shape)
        if not source.is_at(slot):
            lowering.move(source, slot)
        lowering.finish(result, place)
        return
    seen = None if source.is_dense else source.with_ones(shape)
    lowering.finish(result, seen or lowering.dense(source, source.dtype).reshaped(shape))


@rule("StaticTranspose")
def lower_transpose(lowering: Lowering, op: Op) -> None:
    """The same memory with its axes in another order; copied only where the result leaves the partition."""
    source = lowering.value(op.inputs[0].id)
    ndim = len(source.shape)
    order = [axis % ndim for axis in op.attrs["order"]] or list(reversed(range(ndim)))
    lowering.finish(op.outputs[0].id, source.transposed(order))


@rule("Reorder")
def lower_reorder(lowering: Lowering, op: Op) -> None:
    """The same elements in the layout of the result."""
    result, source = op.outputs[0].id, lowering.any_value(op.inputs[0].id)
    place = lowering.place(result) or lowering.temporary(source.shape, source.dtype)
    if source.layout is None and place.layout is None:
        lowering.finish(result, source)
        return
    if source.layout is None and place.layout is not None:
        kept = place.as_elements(place.layout.kept, place.layout.nbytes)
        panels = place if kept.dtype is DataType.F32 else lowering.temporary((place.layout.npanel_floats,))
        fill(lowering, panels.as_bytes, 0.0)  # what packing leaves out between parts
        lowering.pack(place.layout, source, panels.as_bytes)
        if panels is not place:
            lowering.move(panels, kept)
    elif source.layout is not None and place.layout is None:
        panels = lowering.typed(source.as_elements(source.layout.kept, source.layout.nbytes))
        lowering.unpack(source.layout, panels.as_bytes, place)
    elif source.layout == place.layout:
        lowering.move(source.as_bytes, place.as_bytes)
    else:
        what = f"{op.label}: from {source.layout.name} to {place.layout.name}"  # type: ignore[union-attr]
        raise UnsupportedError(explain(what, hint="reorder to strided between"), op_id=op.id)
    lowering.finish(result, place)


@rule("Concat")
def lower_concat(lowering: Lowering, op: Op) -> None:
    """Nothing for inputs that were written into the joined tensor; one kernel for all, or a move for each, else."""
    result = op.outputs[0].id
    dtype, order = lowering.dtypes[result], lowering.order_of(result)
    sources = [lowering.value(tensor.id) for tensor in op.inputs]
    place = lowering.target(result, order=order, gaps=True)
    is_apart = all(source.buffer.whole is not place.buffer.whole for source in sources)
    if is_apart and all(value.dtype is dtype and value.lies_in(order) for value in (*sources, place)):
        axis = order.index(op.attrs["axis"] % len(order))
        call = concat([source.transposed(order).shape for source in sources], axis, dtype.bits // 8)
        lowering.emit(call, [*sources, place])
    else:
        emit_concat(lowering, op, place)
    lowering.finish(result, place)


@rule("GenIndex")
def lower_gen_index(lowering: Lowering, op: Op) -> None:
    """Positions along an axis."""
    result = op.outputs[0].id
    place = lowering.target(result)
    lowering.emit(gen_index(lowering.shapes[result], op.attrs["axis"]), [place])
    lowering.finish(result, place)


@rule("Dropout")
def lower_dropout(lowering: Lowering, op: Op) -> None:
    """Philox mask and scaled survivors."""
    source = lowering.dense(lowering.value(op.inputs[0].id))
    seed, offset, probability = (lowering.value(tensor.id) for tensor in op.inputs[1:])
    places: list[Value] = [lowering.target(op.outputs[0].id, dtype=DataType.F32)]
    places += [lowering.target(tensor.id) for tensor in op.outputs[1:]]
    call = dropout(prod(source.shape), mask=len(places) > 1)
    lowering.emit(call, [source, seed, offset, probability, *places])
    for tensor, place in zip(op.outputs, places, strict=True):
        lowering.finish(tensor.id, place)
