"""Reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._kernels.reduce import reduce
from .epilogue import make_epilogue

if TYPE_CHECKING:
    from .groups import Group
    from .lowering import Lowering

__all__ = ["RULES"]

NAMES = {
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min",
    "ReduceProd": "prod", "ReduceSum": "sum",
}  # fmt: skip


def lower_reduce(lowering: Lowering, group: Group) -> None:
    """One reduction with its post-ops; kept axes of size one cost nothing, so keep_dims changes only the shape."""
    op = group.anchor
    assert op is not None
    source = lowering.typed(lowering.value(op.inputs[0].id))
    epilogue = make_epilogue(lowering, group)
    axes = [axis % len(source.shape) for axis in op.attrs["axes"]]
    call = reduce(NAMES[op.kind], source.shape, axes, src_strides=source.strides, epilogue=epilogue.block)
    lowering.emit(call, [source, epilogue.place, *epilogue.operands], epilogue.name)
    lowering.finish(group.result, epilogue.place)


RULES = dict.fromkeys(NAMES, lower_reduce)
