"""Walks along an axis: running sums and products, extremes, the k best; searches whose results a count tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._kernels.move.index import top_k
from ...._kernels.move.search import nonzero, suppress
from ...._kernels.norm.reduce import arg_extreme, running
from ...._sizes import least
from ....typing import DataType
from ..support import rule

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering

_NARROW = frozenset({DataType.F32, DataType.BF16, DataType.F16, DataType.S8, DataType.U8, DataType.S16, DataType.U16})
"""Types whose values are values of f32."""


@rule("ArgMax", "ArgMin")
def lower_arg_extreme(lowering: Lowering, op: Op) -> None:
    """One kernel; in f32 where that holds all values of the type."""
    source = lowering.value(op.inputs[0].id)
    place = lowering.target(op.outputs[0].id)
    if source.dtype in _NARROW:
        source = lowering.typed(source)
    call = arg_extreme(
        source.shape, op.attrs["axis"], dtype=source.dtype.value, is_min=op.kind == "ArgMin",
        select_last_index=op.attrs["select_last_index"], src_strides=source.strides,
    )  # fmt: skip
    lowering.emit(call, [source, place])
    lowering.finish(op.outputs[0].id, place)


@rule("CumProd", "CumSum")
def lower_running(lowering: Lowering, op: Op) -> None:
    """In f32 (collected in f64), f64, s32 or s64, whose sums are those of every integer type modulo its range."""
    result = op.outputs[0].id
    dtype = lowering.dtypes[result]
    narrow = DataType.S64 if dtype.value[0] in "su" else DataType.F32
    wide = dtype if dtype in (DataType.F64, DataType.S32) else narrow
    source = lowering.typed(lowering.value(op.inputs[0].id), wide)
    place = lowering.target(result, dtype=wide)
    call = running(
        source.shape, op.attrs["axis"], dtype=wide.value, is_product=op.kind == "CumProd",
        is_exclusive=op.attrs["exclusive"], is_reverse=op.attrs["reverse"], src_strides=source.strides,
    )  # fmt: skip
    lowering.emit(call, [source, place])
    lowering.finish(result, place)


@rule("TopK")
def lower_top_k(lowering: Lowering, op: Op) -> None:
    """One kernel finds values and indices; it passes over lines in vectors, where these are contiguous."""
    source = lowering.value(op.inputs[0].id)
    axis = op.attrs["axis"] % len(source.shape)
    if source.dtype is DataType.F32:
        source = lowering.arranged(op.inputs[0].id, (*(k for k in range(len(source.shape)) if k != axis), axis))
    values, indices = (lowering.target(tensor.id) for tensor in op.outputs)
    call = top_k(
        source.shape, axis, op.attrs["k"], source.dtype.value, is_largest=op.attrs["largest"],
        src_strides=source.strides,
    )  # fmt: skip
    lowering.emit(call, [source, indices, values])
    for tensor, place in zip(op.outputs, (values, indices), strict=True):
        lowering.finish(tensor.id, place)


@rule("FindNonZero")
def lower_find_non_zero(lowering: Lowering, op: Op) -> None:
    """One kernel, of one task."""
    source = lowering.value(op.inputs[0].id)
    source = lowering.dense(source, source.dtype)
    targets = [lowering.target(tensor.id) for tensor in op.outputs]
    is_float = source.dtype in (DataType.F32, DataType.F64, DataType.F16, DataType.BF16)
    lowering.emit(nonzero(source.shape, source.dtype.bits // 8, is_float=is_float), [source, *targets])
    for tensor, place in zip(op.outputs, targets, strict=True):
        lowering.finish(tensor.id, place)


@rule("SelectBoxes")
def lower_select_boxes(lowering: Lowering, op: Op) -> None:
    """One kernel finds the boxes of each class, another joins what was found."""
    boxes, scores = (lowering.dense(lowering.value(tensor.id), DataType.F32) for tensor in op.inputs)
    nbatch, nclasses, nboxes = scores.shape
    most = least(op.attrs["max_boxes"], nboxes)
    find, join = suppress(
        nbatch, nclasses, nboxes, most, overlap=op.attrs["iou_threshold"],
        least_score=op.attrs.get("score_threshold"), is_centred=op.attrs["center_point_box"],
    )  # fmt: skip
    chosen = lowering.temporary((nbatch * nclasses * most,), DataType.S64)
    counts = lowering.temporary((nbatch * nclasses,), DataType.S64)
    lowering.emit(find, [boxes, scores, chosen, counts])
    targets = [lowering.target(tensor.id) for tensor in op.outputs]
    lowering.emit(join, [chosen, counts, *targets])
    for tensor, place in zip(op.outputs, targets, strict=True):
        lowering.finish(tensor.id, place)
