"""Ensembles of decision trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._kernels.tree.tree import TreeFormat
from ....typing import DataType
from ..support import rule

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value


@rule("TreeEnsemble")
def lower_trees(lowering: Lowering, op: Op) -> None:
    """One kernel scores rows by trees that another has packed: once where they are constants."""
    source, *parts = (lowering.value(tensor.id) for tensor in op.inputs)
    source = source if source.shape[1] < 2 or source.strides[1] == 1 else lowering.dense(source, source.dtype)
    thresholds, _, roots, weights, _, base = parts
    trees = TreeFormat(
        thresholds.shape[0], roots.shape[0], weights.shape[0], base.shape[0], source.shape[1], source.dtype.value
    )
    place = lowering.target(op.outputs[0].id)

    def fill(packed: Value) -> None:
        lowering.emit(trees.pack(weights.dtype.value), [*(lowering.dense(part, part.dtype) for part in parts), packed])

    def score(packed: Value) -> None:
        call = trees.score(
            source.shape[0], aggregate=op.attrs["aggregate"], row_stride=source.strides[0],
            dst_dtype=place.dtype.value,
        )  # fmt: skip
        lowering.emit(call, [source, packed, place])

    if all(lowering.is_constant(part) for part in parts):
        packed = lowering.packed_constant(parts, trees.nbytes, fill)
        lowering.read_packed(packed, lambda: score(packed))
    else:
        packed = lowering.temporary((trees.nbytes,), DataType.U8)
        fill(packed)
        score(packed)
    lowering.finish(op.outputs[0].id, place)
