"""Which tensors of a partition lie as f32 though their type is f16: images that convolutions hand on.

Kernels of convolutions compute in f32, so that f16 would only be rounded and converted back between them. Nobody
outside sees these tensors, and values inside a partition may be more exact than their type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....typing import DataType
from ..support import is_elementwise
from .channels import WINDOWS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ....graph.op import Op
    from ..match.groups import Group

__all__ = ["find_wide"]

_CONVOLUTIONS = frozenset({"Convolution", "ConvTranspose"})


def find_wide(
    ops: Iterable[Op], groups: Sequence[Group], dtypes: Mapping[int, DataType], outputs: Collection[int]
) -> frozenset[int]:
    """Ids of results of groups that are f16, and f32 in memory; `outputs` leave the partition as they are.

    Whoever writes or reads one takes elements of any type. Cost: linear in the ops.
    """
    readers: dict[int, list[Op]] = {}
    for op in ops:
        for tensor in op.inputs:
            readers.setdefault(tensor.id, []).append(op)
    return frozenset(
        group.result
        for group in groups
        if dtypes[group.result] is DataType.F16
        and group.result not in outputs
        and _may_be_wide(group)
        and all(map(_takes_any, readers.get(group.result, ())))
        and not _CONVOLUTIONS.isdisjoint(op.kind for op in (group.first, *readers.get(group.result, ())))
    )


def _may_be_wide(group: Group) -> bool:
    """Whether the group writes results of any type, and does not say itself that they are rounded."""
    return _takes_any(group.first) and (not group.ops or group.ops[-1].kind != "TypeCast")


def _takes_any(op: Op) -> bool:
    """Whether kernels of the op convert what they read and write."""
    return op.kind in WINDOWS or op.kind == "Concat" or op.kind.startswith("Reduce") or is_elementwise(op)
