"""Ops of a partition grouped into what one kernel call computes: an anchor with its post-ops, or an elementwise region.

The groups are merged in the graph of groups, so that they stay acyclic, and come out in an order in which every group
finds its operands computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ....graph.growth import grow_region
from ....graph.partitioner import Quotient
from ....graph.view import GraphView
from ....typing import DataType
from ..support import INTEGERS, is_anchor, is_elementwise, register_of, registers_go_together
from .attention import find_attention
from .compressed import find_compressed
from .integers import find_dequantized
from .segments import split_region

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op
    from .attention import Attention

__all__ = ["AnchorGroup", "Group", "make_groups"]

REQUANTIZED = frozenset({"Add", "BiasAdd", "ReLU", "Clamp", "Quantize"})
"""Kinds that may follow a rounding within int8 kernels."""

ROUNDED_BY_STORES = frozenset({DataType.F8_E4M3, DataType.F8_E5M2})
"""Types that a register does not hold rounded: what reads them begins a region."""


@dataclass(frozen=True)
class Group:
    """A region of elementwise ops, or one op that stands alone.

    Attributes
    ----------
    ops : tuple of Op
        In topological order.
    """

    ops: tuple[Op, ...]

    @property
    def first(self) -> Op:
        """The op that comes first."""
        return self.ops[0]

    @property
    def result(self) -> int:
        """Id of the tensor that the group computes."""
        return self.last.outputs[0].id

    @property
    def outputs(self) -> tuple[LogicalTensor, ...]:
        """What others may read: the result, and what the group computes beside it."""
        return self.last.outputs

    @property
    def last(self) -> Op:
        """The op that computes the result."""
        return self.ops[-1]


@dataclass(frozen=True)
class AnchorGroup(Group):
    """An op that computes accumulators, and the elementwise ops behind it.

    Attributes
    ----------
    ops : tuple of Op
        Those behind the anchor.
    anchor : Op
    attention : Attention or None
        What the anchor, the product with the values, is the end of.
    dequantized : mapping of int to Op
        Input ports of the anchor -> the Dequantize in front, which the anchor takes part in (`integers.py`).
    compressed : Op or None
        The Dequantize in front of the anchor's weights, which are read as they are (`compressed.py`).
    """

    anchor: Op
    attention: Attention | None = None
    dequantized: Mapping[int, Op] = field(default_factory=dict)
    compressed: Op | None = None

    @property
    def first(self) -> Op:
        """The op that comes first."""
        return self.anchor if self.attention is None else self.attention.scores

    @property
    def outputs(self) -> tuple[LogicalTensor, ...]:
        """The result, and statistics that the anchor computes beside it."""
        return (*self.last.outputs, *(tensor for tensor in self.anchor.outputs[1:] if tensor not in self.last.outputs))

    @property
    def last(self) -> Op:
        """The op that computes the result."""
        return self.ops[-1] if self.ops else self.anchor

    def reached(self, count: int = 0) -> int:
        """Id of the tensor that the anchor and the first `count` ops behind it compute."""
        return (self.ops[count - 1] if count else self.anchor).outputs[0].id


def make_groups(
    ops: Sequence[Op],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    constants: frozenset[int] = frozenset(),
) -> list[Group]:
    """Groups of a partition's ops, in an order in which they can be computed.

    Parameters
    ----------
    ops : sequence of Op
    shapes : mapping of int to tuple of int
        Shape of every tensor. Post-ops keep the shape of their anchor.
    outputs : set of int
        Ids of tensors that leave the partition: they are stored, so no region runs past them.
    constants : frozenset of int
        Ids of constant inputs.
    """
    view = GraphView([op for op in ops if op.kind != "End"])
    free = [True] * len(view.ops)
    quotient = Quotient(view)
    dequantized = _absorb_dequantized(view, free, shapes, outputs, quotient)
    compressed = _absorb_compressed(view, free, shapes, outputs, quotient, constants)
    attentions = _merge_attentions(view, free, shapes, outputs, quotient, dequantized)
    for number in (*dequantized, *range(len(view.ops))):  # int8 products keep more in 8 bits than regions do
        op = view.ops[number]
        if free[number] and (is_anchor(op) or is_elementwise(op)):
            taken = _grow(view, [number], free, shapes, outputs, quotient, is_bytes=number in dequantized)
            for member in taken:
                free[member] = False
    groups = []
    for numbers in quotient.groups_in_order():
        group = _as_group(view, [n for n in numbers if n not in compressed], attentions, dequantized)
        fronts = [view.ops[n] for n in numbers if n in compressed]
        groups.append(replace(group, compressed=fronts[0]) if isinstance(group, AnchorGroup) and fronts else group)
    return groups


def _merge_attentions(
    view: GraphView,
    free: list[bool],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    quotient: Quotient,
    integers: Mapping[int, object],
) -> dict[int, Attention]:
    """The attentions among the ops, merged with their post-ops: number of the first member -> attention.

    Products of `integers` stay apart: they are summed exactly.
    """
    found: dict[int, Attention] = {}
    for number, op in enumerate(view.ops):
        attention = find_attention(view, number, shapes, outputs) if op.kind == "SoftMax" else None
        if attention is None or not all(free[n] and n not in integers for n in attention.members):
            continue
        if not quotient.merge(attention.members):
            continue
        for member in _grow(view, list(attention.members), free, shapes, outputs, quotient):
            free[member] = False
        found[attention.members[0]] = attention
    return found


def _absorb_dequantized(
    view: GraphView,
    free: list[bool],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    quotient: Quotient,
) -> dict[int, dict[int, int]]:
    """Numbers of products -> what `find_dequantized` finds; taken from `free` and merged with the product."""
    found: dict[int, dict[int, int]] = {}
    for number in range(len(view.ops)):
        by_port = find_dequantized(view, number, shapes, outputs)
        if by_port and quotient.merge([number, *by_port.values()]):
            found[number] = by_port
            for source in by_port.values():
                free[source] = False
    return found


def _absorb_compressed(
    view: GraphView,
    free: list[bool],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    quotient: Quotient,
    constants: frozenset[int],
) -> set[int]:
    """Numbers of the ops that `find_compressed` finds, taken from `free` and merged with their products."""
    found: set[int] = set()
    for number in range(len(view.ops)):
        source = find_compressed(view, number, shapes, outputs, constants)
        if source is not None and free[number] and free[source] and quotient.merge([number, source]):
            found.add(source)
            free[source] = False
    return found


def _grow(
    view: GraphView,
    taken: list[int],
    free: list[bool],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    quotient: Quotient,
    *,
    is_bytes: bool = False,
) -> list[int]:
    """The ops of a kernel, the last of which gives its result, and the regions behind that keep its shape.

    Besides what is behind, a region takes in the Dequantize ops in front of its other operands. An int8 product
    (`is_bytes`) stores bytes where its kernel has no post-op for what follows: that is a table's or a region's matter.
    """
    last, nmembers = view.ops[taken[-1]], len(taken)
    value = last.outputs[0].id
    shape = shapes[value]
    has_anchor = nmembers > 1 or is_anchor(last)
    register = "f32" if has_anchor else register_of(last) or "s64"
    statistics = {tensor.id for tensor in last.outputs[1:]}  # they are complete when the kernel is done

    def fits(op: Op) -> bool:
        is_alike = is_elementwise(op) and registers_go_together(op, register)
        if not is_alike or not statistics.isdisjoint(tensor.id for tensor in op.inputs):
            return False
        return shapes[op.outputs[0].id] == shape and op.inputs[0].dtype not in ROUNDED_BY_STORES

    inside = set(taken)
    while value not in outputs:
        region = grow_region(view, value, inside, free, fits)
        inner = {view.ops[n].outputs[0].id for n in region[:-1]}
        if is_bytes and _leads_away(view, region):
            break
        region = [*_find_sides(view, region, free, shape, shapes, outputs), *region]
        if not region or inner & outputs:
            break
        if has_anchor and len(split_region([view.ops[n] for n in (*taken[nmembers:], *region)])) > 1:
            break
        if not quotient.merge([taken[-1], *region]):
            break
        taken += region
        inside.update(region)
        value = view.ops[region[-1]].outputs[0].id
    return taken


def _leads_away(view: GraphView, region: Sequence[int]) -> bool:
    """Whether the region only brings bytes back to numbers, and elementwise ops follow that are done elsewhere."""
    if len(region) != 1 or view.ops[region[0]].kind != "Dequantize":
        return False
    readers = [view.ops[n] for n in view.users(view.ops[region[0]].outputs[0].id)]
    return any(is_elementwise(op) and op.kind not in REQUANTIZED for op in readers)


def _find_sides(
    view: GraphView,
    region: Sequence[int],
    free: Sequence[bool],
    shape: tuple[int, ...],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
) -> list[int]:
    """Dequantize ops in front of operands of a region, each read by one of its ops alone."""
    sides: list[int] = []
    for number in region:
        for tensor in view.ops[number].inputs:
            source = view.producer.get(tensor.id)
            if source is None or not free[source] or source in region or tensor.id in outputs:
                continue
            is_side = view.ops[source].kind == "Dequantize" and shapes[tensor.id] == shape
            if is_side and view.users(tensor.id) == [number] and view.ops[source].inputs[0].dtype in INTEGERS:
                sides.append(source)
    return sides


def _as_group(
    view: GraphView,
    numbers: Sequence[int],
    attentions: Mapping[int, Attention],
    dequantized: Mapping[int, Mapping[int, int]],
) -> Group:
    """The group of these ops: what is inside an attention, or absorbed in front of an anchor, apart from the rest."""
    attention = attentions.get(numbers[0])
    if attention is not None:
        behind = [n for n in numbers if n not in attention.members]
        return AnchorGroup(tuple(view.ops[n] for n in behind), attention.product, attention)
    by_port: Mapping[int, int] = next((dequantized[n] for n in numbers if n in dequantized), {})
    members = [n for n in numbers if n not in by_port.values()]
    anchor = next((n for n in members if is_anchor(view.ops[n])), None)
    if anchor is None:
        return Group(tuple(view.ops[n] for n in members))
    ops = tuple(view.ops[n] for n in _in_order_of_use(view, [n for n in members if n != anchor], anchor))
    return AnchorGroup(ops, view.ops[anchor], dequantized={port: view.ops[n] for port, n in by_port.items()})


def _in_order_of_use(view: GraphView, numbers: Sequence[int], anchor: int) -> list[int]:
    """Ops of an anchor's kernel: what does not depend on it stands right in front of its reader."""
    behind = {anchor}
    ordered: list[int] = []
    for number in numbers:
        before = view.predecessors(number)
        if behind.isdisjoint(before):
            continue
        behind.add(number)
        ordered += [*(n for n in before if n in numbers and n not in behind), number]
    return ordered
