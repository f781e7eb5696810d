"""Attention as one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._kernels.cuda.attention import Scores, attention
from ...typing import DataType
from ..cpu.match.attention import BATCH_AXES
from ..cpu.products.attention import as_positions
from .lowering import Tail

if TYPE_CHECKING:
    from ..cpu.lower.values import Value
    from ..cpu.match.attention import Attention
    from ..cpu.match.groups import AnchorGroup
    from .lowering import CudaLowering

__all__ = ["has_kernel", "lower_attention"]

_NUMBERS = ("scale", "cap", "fill", "ahead", "behind")
_TENSORS = ("factor", "mask", "shown")


def has_kernel(found: Attention) -> bool:
    """Whether the kernel computes it: without Dropout, rounding and operands of one byte."""
    return found.dropout is None and found.rounding is None and not found.quantized


def lower_attention(lowering: CudaLowering, group: AnchorGroup) -> None:
    """The kernel, with the post-ops of the group behind it."""
    found = group.attention
    assert found is not None
    scores, product = found.scores, found.scores.product
    sides = (
        (product.inputs[0], product.attrs["transpose_a"], None),
        (product.inputs[1], not product.attrs["transpose_b"], found.keys),
        (found.product.inputs[1], found.product.attrs["transpose_b"], found.values),
    )
    q, k, v = (as_positions(lowering, *side) for side in sides)
    heads = q.shape[:-2]
    group_size = 1 if found.keys is None else heads[BATCH_AXES] // k.shape[BATCH_AXES]

    def operand(value: Value, *, is_shared: bool = False) -> tuple[str, tuple[int, ...]]:
        """Type and strides; where heads share keys, with an axis for those that do."""
        if not is_shared:
            value = value.broadcast((*heads, *value.shape[-2:]))
        if found.keys is None:
            return value.dtype.value, value.strides
        *outer, head, row, column = value.strides
        return value.dtype.value, (*outer, *((head, 0) if is_shared else (head * group_size, head)), row, column)

    numbers = {name: lowering.value(i) for name in _NUMBERS if (i := getattr(scores, name)) is not None}
    whole = (*heads, q.shape[-2], k.shape[-2])
    tensors = {
        name: lowering.value(i).broadcast(whole) for name in _TENSORS if (i := getattr(scores, name)) is not None
    }
    problem = Scores(
        {name: value.dtype.value for name, value in numbers.items()},
        {name: operand(value) for name, value in tensors.items()},
        scores.is_divisor, scores.fills_first, scores.is_causal, scores.is_inverted,
        found.softmax.attrs["mode"] == "inf_as_zero",
    )  # fmt: skip
    split = heads if found.keys is None else (*heads[:BATCH_AXES], heads[BATCH_AXES] // group_size, group_size)
    stats = [lowering.target(tensor.id, dtype=DataType.F32) for tensor in found.side_outputs]
    tail = Tail(lowering, group)
    is_shared = found.keys is not None
    call = attention(
        split, (q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]),
        (operand(q), operand(k, is_shared=is_shared), operand(v, is_shared=is_shared)), problem, tail.program,
        stats=bool(stats),
    )  # fmt: skip
    tail.emit(call, [q, k, v, *numbers.values(), *tensors.values(), *stats])
    for tensor, value in zip(found.side_outputs, stats, strict=True):
        lowering.finish(tensor.id, value)
