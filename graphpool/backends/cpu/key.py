"""The structural key of a partition: what its compilation depends on, free of ids, names and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._kernels.core import _dispatch
from ...graph.partition import flat_key
from ...typing import PropertyType
from .choices import forced_all

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ...graph.logical_tensor import LogicalTensor
    from ...graph.partition import Partition

__all__ = ["structural_key"]


def structural_key(
    partition: Partition, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor], engine: Any
) -> Hashable:
    """Equal for partitions that compile to the same program; compared in full by the caches.

    It consists of the partition's `Structure`, float mode included, of the number, shape and layout of each port in the
    caller's order, of the engine's kind, device, context, threads and planner, of the instruction set, and of what
    ``GRAPHPOOL_IMPL`` forces. Both caches use it: that of compiled partitions with the ports as they are given, that of
    primitives with all layouts settled.

    Notes
    -----
    Cost: a microsecond a port; the structure is computed once for each partition.
    """
    structure = partition.structure
    ports = flat_key([[(structure.numbers[t.id], *_content(t)) for t in side] for side in (inputs, outputs)])
    device = (engine.kind, engine.index, engine.context, engine.threads, engine.planner)
    return "cpu", device, tuple(_dispatch.isas()), tuple(forced_all().items()), structure.content, ports


def _content(tensor: LogicalTensor) -> tuple[Any, ...]:
    is_constant = tensor.property is PropertyType.CONSTANT
    return tensor.shape, tensor.layout.value, tensor.strides, tensor.layout_id, is_constant
