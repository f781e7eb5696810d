"""Reductions."""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._kernels.move.index import top_k
from ...._kernels.norm.reduce import reduce, reduce_row, running
from ....typing import DataType
from ..lower.epilogue import emit_by_rows, make_epilogue
from ..support import has_no_axes_input, rule

if TYPE_CHECKING:
    from ...._kernels.core.call import KernelCall
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup

NAMES = {
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min",
    "ReduceProd": "prod", "ReduceSum": "sum",
}  # fmt: skip


@rule(*NAMES, is_anchor=True, where=has_no_axes_input)
def lower_reduce(lowering: Lowering, group: AnchorGroup) -> None:
    """One reduction with its post-ops; kept axes of size one cost nothing, so keep_dims changes only the shape."""
    op = group.anchor
    source = lowering.typed(lowering.value(op.inputs[0].id))
    axes = [axis % len(source.shape) for axis in op.attrs["axes"]]

    def make(epilogue: bytes) -> KernelCall:
        return reduce(NAMES[op.kind], source.shape, axes, src_strides=source.strides, epilogue=epilogue)

    row = reduce_row(source.shape, axes, source.strides)
    emit_by_rows(lowering, group, make, [source], make_epilogue(lowering, group), row)


@rule(*NAMES, where=has_no_axes_input)
def lower_wide_reduce(lowering: Lowering, op: Op) -> None:
    """Integers and f64, exactly: lines to be reduced side by side, then a running sum or the selection of the best."""
    result = op.outputs[0].id
    source = lowering.value(op.inputs[0].id)
    reduced = sorted(axis % len(source.shape) for axis in op.attrs["axes"])
    kept = [axis for axis in range(len(source.shape)) if axis not in reduced]
    count = prod(source.shape[axis] for axis in reduced)
    place = lowering.target(result)
    if count == 0:
        identity = lowering.literal(_identity(op.kind, source.dtype))
        lowering.move(identity.broadcast(place.shape), place)
        lowering.finish(result, place)
        return
    lines = source.transposed([*kept, *reduced])
    shape = (prod(source.shape[axis] for axis in kept), count)
    is_best = op.kind in ("ReduceMax", "ReduceMin")
    wide = source.dtype if is_best or source.dtype is DataType.F64 else DataType.S64
    dense = lowering.dense(lines, wide).reshaped(shape)
    best = (_best if is_best else _total)(lowering, op.kind, dense)
    lowering.move(best, place.reshaped(best.shape))
    lowering.finish(result, place)


def _identity(kind: str, dtype: DataType) -> np.ndarray[Any, Any]:
    """What the reduction of nothing gives."""
    if kind in ("ReduceSum", "ReduceProd"):
        return np.array(kind == "ReduceProd", dtype.numpy)
    limits = np.iinfo(dtype.numpy) if dtype is not DataType.F64 else None
    low, high = (-inf, inf) if limits is None else (limits.min, limits.max)
    return np.array(low if kind == "ReduceMax" else high, dtype.numpy)


def _total(lowering: Lowering, kind: str, lines: Value) -> Value:
    """The last of the running sums or products of each line."""
    place = lowering.temporary(lines.shape, lines.dtype)
    lowering.emit(running(lines.shape, 1, dtype=lines.dtype.value, is_product=kind == "ReduceProd"), [lines, place])
    return place.cut(1, lines.shape[1] - 1, 1)


def _best(lowering: Lowering, kind: str, lines: Value) -> Value:
    """The first of each line by order."""
    shape = (lines.shape[0], 1)
    indices, values = lowering.temporary(shape, DataType.S64), lowering.temporary(shape, lines.dtype)
    is_largest = kind == "ReduceMax"
    call = top_k(lines.shape, 1, 1, lines.dtype.value, is_largest=is_largest, is_nan_first=True)
    lowering.emit(call, [lines, indices, values])
    return values
