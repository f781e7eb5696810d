"""A plan for the largest sizes in a range of shapes, which holds for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphpool.graph.logical_tensor import LogicalTensor

    from .variable_partition import Plan

__all__ = ["RangeLayout"]


@dataclass(frozen=True)
class RangeLayout:
    """Places of all that one arena holds in the runs of a form, whatever the shapes in the range.

    No two tensors that live at one time share bytes, as every one is at most as large as it was planned, and lives
    through the same steps for all shapes of a form.

    Attributes
    ----------
    plans : tuple of Plan
        Of the temporaries of each compiled partition.
    sizes : dict of int to int
        Tensor between partitions -> most bytes that it takes.
    offsets : dict
        As of `plan_arena`.
    nbytes : int
        Size of the arena. Unit: bytes.
    """

    plans: tuple[Plan, ...]
    sizes: Mapping[int, int]
    offsets: Mapping[Any, int]
    nbytes: int

    def holds(self, tensors: Mapping[int, LogicalTensor]) -> bool:
        """Whether no tensor is larger than planned; partitions say that of their temporaries."""
        return all(tensors[i].nbytes <= nbytes for i, nbytes in self.sizes.items())
