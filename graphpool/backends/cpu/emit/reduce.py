"""Reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._kernels.norm.reduce import reduce, reduce_row
from ..lower.epilogue import emit_by_rows, make_epilogue
from ..support import has_no_axes_input, rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._kernels.core.call import KernelCall
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..match.groups import AnchorGroup

NAMES = {
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min",
    "ReduceProd": "prod", "ReduceSum": "sum",
}  # fmt: skip


@rule(*NAMES, is_anchor=True, where=has_no_axes_input)
def lower_reduce(lowering: Lowering, group: AnchorGroup) -> None:
    """One reduction with its post-ops; kept axes of size one cost nothing, so keep_dims changes only the shape."""
    op = group.anchor
    ndim = len(lowering.shapes[op.inputs[0].id])
    emit_reduction(lowering, group, NAMES[op.kind], [axis % ndim for axis in op.attrs["axes"]])


def emit_reduction(lowering: Lowering, group: AnchorGroup, name: str, axes: Sequence[int]) -> None:
    """Reduce what the anchor reads, in f32, over axes counted from the front; its post-ops behind that."""
    source = lowering.typed(lowering.value(group.anchor.inputs[0].id))

    def make(epilogue: bytes) -> KernelCall:
        return reduce(name, source.shape, axes, src_strides=source.strides, epilogue=epilogue)

    row = reduce_row(source.shape, axes, source.strides)
    emit_by_rows(lowering, group, make, [source], make_epilogue(lowering, group), row)


@rule(*NAMES, where=has_no_axes_input)
def lower_wide_reduce(lowering: Lowering, op: Op) -> None:
    """Integers, exactly, and f64."""
    source, result = lowering.value(op.inputs[0].id), op.outputs[0].id
    axes = [axis % len(source.shape) for axis in op.attrs["axes"]]
    place = lowering.target(result)
    call = reduce(NAMES[op.kind], source.shape, axes, dtype=source.dtype.value, src_strides=source.strides)
    lowering.emit(call, [source, place])
    lowering.finish(result, place)
