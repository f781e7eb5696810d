"""The structural key of a partition: what its compilation depends on, free of ids, names and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._kernels import _dispatch
from ...typing import PropertyType

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ...graph.logical_tensor import LogicalTensor
    from ...graph.partition import Partition

__all__ = ["structural_key"]


def structural_key(
    partition: Partition, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor], engine: Any
) -> Hashable:
    """Equal for partitions that compile to the same program; compared in full by the cache.

    Tensors are numbered in the order in which the ops name them, so that layers of one network, and graphs that were
    numbered differently, share. The engine's kind, device, context and threads, the instruction set and the float mode
    belong to the key.

    Notes
    -----
    Cost: linear in ops and ports; about a microsecond an op.
    """
    numbers: dict[int, int] = {}
    ops = tuple(
        (
            op.kind,
            tuple(op.attrs.items()),
            tuple((numbers.setdefault(t.id, len(numbers)), t.dtype) for t in op.inputs),
            tuple((numbers.setdefault(t.id, len(numbers)), t.dtype) for t in op.outputs),
        )
        for op in partition.ops
    )
    ports = tuple(tuple((numbers[t.id], *_content(t)) for t in side) for side in (inputs, outputs))
    device = (engine.kind, engine.index, engine.context, engine.threads)
    return "cpu", device, tuple(_dispatch.isas()), partition.fpmath, ops, ports


def _content(tensor: LogicalTensor) -> tuple[Any, ...]:
    is_constant = tensor.property is PropertyType.CONSTANT
    return tensor.shape, tensor.layout, tensor.strides, tensor.layout_id, is_constant
