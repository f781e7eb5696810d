"""A Quantize behind a Concat moved in front of it: bytes are joined, and kernels write them where they belong."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ....graph.op import first_free_id

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ....graph.op import Op

__all__ = ["quantize_before_concat"]


def quantize_before_concat(ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int]) -> list[Op]:
    """The ops with each Quantize of a whole tensor in front of the Concat that it alone reads.

    A pass of `rewrites.REWRITES`. Copies of the Quantize have its id. Cost: linear in the ops.
    """
    quantized = {op.inputs[0].id for op in ops if _is_whole(op)}
    concats = {op.outputs[0].id: op for op in ops if op.kind == "Concat" and op.outputs[0].id in quantized}
    if not concats:
        return list(ops)
    readers = Counter(tensor.id for op in ops for tensor in op.inputs)
    readers.update(outputs)
    free = first_free_id(ops)
    taken = {tensor_id for tensor_id in concats if readers[tensor_id] == 1}
    moved: list[Op] = []
    for op in ops:
        if op.outputs and op.outputs[0].id in taken:
            continue
        if not _is_whole(op) or op.inputs[0].id not in taken:
            moved.append(op)
            continue
        concat, parts = concats[op.inputs[0].id], []
        for tensor in concat.inputs:
            parts.append(op.outputs[0].replace(id=free, shape=shapes[tensor.id]))
            shapes[free] = shapes[tensor.id]
            moved.append(op.with_ports((tensor,), (parts[-1],)))
            free += 1
        moved.append(concat.with_ports(tuple(parts), op.outputs))
    return moved


def _is_whole(op: Op) -> bool:
    """Whether the op quantises a tensor with one scale."""
    return op.kind == "Quantize" and op.attrs["qtype"] == "per_tensor"
