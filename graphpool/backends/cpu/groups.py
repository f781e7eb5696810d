"""Ops of a partition grouped into what one kernel call computes: an anchor with its post-ops, or an elementwise region.

The groups are merged in the graph of groups, so that they stay acyclic, and come out in an order in which every group
finds its operands computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...graph.growth import grow_region
from ...graph.partitioner import Quotient
from ...graph.view import GraphView
from ...typing import DataType
from .segments import split_region
from .support import ANCHORS, is_elementwise, register_of, registers_go_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...graph.op import Op

__all__ = ["Group", "make_groups"]

ROUNDED_BY_STORES = frozenset({DataType.F8_E4M3, DataType.F8_E5M2})
"""Types that a register does not hold rounded: what reads them begins a region."""


@dataclass(frozen=True)
class Group:
    """Ops of one kernel call, in topological order.

    Attributes
    ----------
    anchor : Op or None
        What computes the accumulators; None for a region of elementwise ops alone, or one op that stands alone.
    ops : tuple of Op
        The elementwise ops, in topological order; a single other op when it stands alone.
    """

    anchor: Op | None
    ops: tuple[Op, ...]

    @property
    def first(self) -> Op:
        """The op that comes first."""
        return self.ops[0] if self.anchor is None else self.anchor

    @property
    def result(self) -> int:
        """Id of the tensor that the group computes."""
        last = self.ops[-1] if self.ops else self.anchor
        assert last is not None
        return last.outputs[0].id


def make_groups(ops: Sequence[Op], shapes: Mapping[int, tuple[int, ...]], outputs: set[int]) -> list[Group]:
    """Groups of a partition's ops, in an order in which they can be computed.

    Parameters
    ----------
    ops : sequence of Op
    shapes : mapping of int to tuple of int
        Shape of every tensor. Post-ops keep the shape of their anchor.
    outputs : set of int
        Ids of tensors that leave the partition: they are stored, so no region runs past them.
    """
    view = GraphView([op for op in ops if op.kind != "End"])
    free = [True] * len(view.ops)
    quotient = Quotient(view)
    for number, op in enumerate(view.ops):
        if free[number] and (op.kind in ANCHORS or is_elementwise(op)):
            taken = _grow(view, number, free, shapes, outputs, quotient)
            for member in taken:
                free[member] = False
    return [_as_group([view.ops[n] for n in numbers]) for numbers in quotient.groups_in_order()]


def _grow(
    view: GraphView,
    number: int,
    free: list[bool],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    quotient: Quotient,
) -> list[int]:
    """The op and the elementwise regions behind it that keep its shape."""
    shape = shapes[view.ops[number].outputs[0].id]
    has_anchor = view.ops[number].kind in ANCHORS
    register = "f32" if has_anchor else register_of(view.ops[number]) or "s64"

    def fits(op: Op) -> bool:
        is_alike = is_elementwise(op) and registers_go_together(op, register)
        return is_alike and shapes[op.outputs[0].id] == shape and op.inputs[0].dtype not in ROUNDED_BY_STORES

    taken = [number]
    value = view.ops[number].outputs[0].id
    while value not in outputs:
        region = grow_region(view, value, set(taken), free, fits)
        inner = {view.ops[n].outputs[0].id for n in region[:-1]}
        post_ops = [view.ops[n] for n in (*taken[1:], *region)]
        if not region or inner & outputs or (has_anchor and len(split_region(post_ops)) > 1):
            break
        if not quotient.merge([*taken, *region]):
            break
        taken += region
        value = view.ops[region[-1]].outputs[0].id
    return taken


def _as_group(ops: list[Op]) -> Group:
    return Group(ops[0], tuple(ops[1:])) if ops[0].kind in ANCHORS else Group(None, tuple(ops))
