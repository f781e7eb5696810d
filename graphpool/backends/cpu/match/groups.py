"""Ops of a partition grouped into what one kernel call computes: an anchor with its post-ops, or an elementwise region.

The groups are merged in the graph of groups, so that they stay acyclic, and come out in an order in which every group
finds its operands computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field
from graphpool.fork import cached_property

from ....graph.growth import Growth
from ....graph.partitioner import Quotient
from ....graph.shapes import are_equal
from ....graph.view import GraphView
from ....typing import DataType
from ..support import INTEGERS, is_anchor, is_elementwise, register_of, registers_go_together
from .attention import find_attention
from .attention_gradient import AttentionGradient, find_gradient
from .compressed import find_compressed
from .integers import find_dequantized
from .segments import split_region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op
    from .attention import Attention

__all__ = ["AnchorGroup", "GradientGroup", "Group", "make_groups"]

REQUANTIZED = frozenset({"Add", "BiasAdd", "ReLU", "Clamp", "Quantize"})
"""Kinds that may follow a rounding within int8 kernels."""

IN_REGISTERS = frozenset({"Add", "BatchNormInference", "BiasAdd", "Clamp", "Divide", "Multiply", "ReLU", "Subtract"})
"""Kinds that kernels of convolutions do in registers, or that go into their weights."""

NARROW = 64
"""Channels of a group of a convolution below which a region of its own is faster than one behind it: that one is
called for each pixel of each group. Measured: 64 channels of 28 x 28 with SiLU, in groups of 8 and 32: 490 and 376
microseconds behind, 222 and 326 apart; 128 in groups of 64: 1,199 and 1,203."""

ROUNDED_BY_STORES = frozenset({DataType.F8_E4M3, DataType.F8_E5M2})
"""Types that a register does not hold rounded: what reads them begins a region."""


@dataclass(frozen=True)
class Group:
    """A region of elementwise ops in topological order, or one op that stands alone."""

    ops: tuple[Op, ...]

    @property
    def first(self) -> Op:
        """The op that comes first."""
        return self.ops[0]

    @cached_property
    def result(self) -> int:
        """Id of the tensor that the group computes."""
        return self.last.outputs[0].id

    @property
    def outputs(self) -> tuple[LogicalTensor, ...]:
        """What others may read: the result, and what the group computes beside it."""
        return self.last.outputs

    @cached_property
    def last(self) -> Op:
        """The op that computes the result."""
        return self.ops[-1]


@dataclass(frozen=True)
class AnchorGroup(Group):
    """An op that computes accumulators, and the elementwise `ops` behind it.

    `attention` is what the anchor, the product with the values, is the end of; `dequantized` are, by input port of the
    anchor, the Dequantize ops in front that it takes part in (`integers.py`); `compressed` is the one in front of
    constant weights (`compressed.py`).
    """

    anchor: Op
    attention: Attention | None = None
    dequantized: Mapping[int, Op] = field(default_factory=dict)
    compressed: Op | None = None

    @property
    def first(self) -> Op:
        """The op that comes first."""
        return self.anchor if self.attention is None else self.attention.scores.product

    @property
    def outputs(self) -> tuple[LogicalTensor, ...]:
        """The result, and what the anchor or the attention computes beside it."""
        more = self.anchor.outputs[1:] if self.attention is None else self.attention.side_outputs
        return (*self.last.outputs, *(tensor for tensor in more if tensor not in self.last.outputs))

    @cached_property
    def last(self) -> Op:
        """The op that computes the result."""
        return self.ops[-1] if self.ops else self.anchor

    def reached(self, count: int = 0) -> int:
        """Id of the tensor that the anchor and the first `count` ops behind it compute."""
        return (self.ops[count - 1] if count else self.anchor).outputs[0].id


@dataclass(frozen=True)
class GradientGroup(Group):
    """All ops of the gradient of attention."""

    gradient: AttentionGradient

    @property
    def first(self) -> Op:
        """The product of queries and keys."""
        return self.gradient.scores.product

    @property
    def outputs(self) -> tuple[LogicalTensor, ...]:
        """The gradients."""
        found = self.gradient
        wanted = found.d_q, found.d_k, found.d_v, found.d_scores
        return tuple(tensor for op in self.ops for tensor in op.outputs if tensor.id in wanted)


def make_groups(
    ops: Sequence[Op],
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    constants: frozenset[int] = frozenset(),
    *,
    attentions: Callable[[Attention], bool] | None = None,
) -> list[Group]:
    """Groups of a partition's ops, in an order in which they can be computed.

    Post-ops keep the shape of their anchor. Tensors among `outputs` leave the partition: they are stored, so no region
    runs past them. `constants` are ids of constant inputs. With `attentions` kernels take what is behind an anchor and
    those attentions for which it holds, but neither dequantised operands nor gradients.
    """
    return _Grouper([op for op in ops if op.kind != "End"], shapes, outputs, constants).groups(attentions)


class _Grouper:
    """Merges the ops of a partition, first what kernels take in front of anchors, then what follows them."""

    def __init__(
        self,
        ops: Sequence[Op],
        shapes: Mapping[int, tuple[int, ...]],
        outputs: set[int],
        constants: frozenset[int],
    ) -> None:
        self.view = GraphView(ops)
        self.shapes = shapes
        self.outputs = outputs
        self.constants = constants
        self.free = [True] * len(self.view.ops)
        self.quotient = Quotient(self.view)
        self.dequantized: dict[int, dict[int, int]] = {}
        self.compressed: set[int] = set()
        self.attentions: dict[int, Attention] = {}
        self.gradients: dict[int, AttentionGradient] = {}
        self.is_by_pixels = False

    def groups(self, attentions: Callable[[Attention], bool] | None) -> list[Group]:
        """All groups, in an order in which they can be computed."""
        self.is_by_pixels = attentions is None
        if self.is_by_pixels:
            self._absorb_dequantized()
            self._absorb_compressed()
        self._merge_attentions(attentions)
        # int8 products first: they keep more in 8 bits than regions do
        for number in (*self.dequantized, *range(len(self.view.ops))):
            op = self.view.ops[number]
            if self.free[number] and (is_anchor(op) or is_elementwise(op)):
                self._take(self._grow([number]))
        return [self._as_group(numbers) for numbers in self.quotient.groups_in_order()]

    def _take(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.free[number] = False

    def _absorb_dequantized(self) -> None:
        """What `find_dequantized` finds: number of the product -> by port; merged with the product.

        Not of transposed convolutions whose weights can be dequantised once: no kernel multiplies bytes for these.
        """
        for number, op in enumerate(self.view.ops):
            if op.kind == "ConvTranspose" and self._find_compressed(number) is not None:
                continue
            by_port = find_dequantized(self.view, number, self.shapes, self.outputs)
            if by_port and self.quotient.merge([number, *by_port.values()]):
                self.dequantized[number] = by_port
                self._take(by_port.values())

    def _absorb_compressed(self) -> None:
        """Numbers of the ops that `find_compressed` finds, merged with their products."""
        for number in range(len(self.view.ops)):
            source = self._find_compressed(number)
            is_free = source is not None and self.free[number] and self.free[source]
            if source is not None and is_free and self.quotient.merge([number, source]):
                self.compressed.add(source)
                self._take([source])

    def _find_compressed(self, number: int) -> int | None:
        return find_compressed(self.view, number, self.shapes, self.outputs, self.constants)

    def _merge_attentions(self, accepts: Callable[[Attention], bool] | None) -> None:
        """The attentions among the ops, merged with their post-ops: number of the first member -> attention.

        Products of integers stay apart: they are summed exactly.
        """
        for number, op in enumerate(self.view.ops):
            found = find_attention(self.view, number, self.shapes, self.outputs) if op.kind == "SoftMax" else None
            for attention in () if found is None else (found, found.dequantized(), found.dequantized().repeated()):
                if (accepts is None or accepts(attention)) and self._try_merge(attention.members):
                    self._take(self._grow(list(attention.members)))
                    self.attentions[attention.members[0]] = attention
                    break
            has_gradients = accepts is None and op.kind == "Exp"
            gradient = find_gradient(self.view, number, self.shapes, self.outputs) if has_gradients else None
            if gradient is not None and self._try_merge(gradient.members):
                self._take(gradient.members)
                self.gradients[gradient.members[0]] = gradient

    def _try_merge(self, members: Sequence[int]) -> bool:
        """Make the ops one group; whether that is possible."""
        return all(self.free[n] and n not in self.dequantized for n in members) and self.quotient.merge(members)

    def _grow(self, taken: list[int]) -> list[int]:
        """The ops of a kernel, the last of which gives its result, and the regions behind that keep its shape.

        Besides what is behind, a region takes in the Dequantize ops in front of its other operands. An int8 product
        stores bytes where its kernel has no post-op for what follows: that is a table's or a region's matter.
        """
        view, shapes, outputs = self.view, self.shapes, self.outputs
        last, nmembers, is_bytes = view.ops[taken[-1]], len(taken), taken[0] in self.dequantized
        is_narrow = self.is_by_pixels and not is_bytes and _is_narrow(last, shapes)
        value = last.outputs[0].id
        shape = shapes[value]
        has_anchor = nmembers > 1 or is_anchor(last)
        register = "f32" if has_anchor else register_of(last) or "s64"
        # what a kernel computes beside its result is complete when it is done
        statistics = {tensor.id for number in taken for tensor in view.ops[number].outputs[1:]}

        def fits(op: Op) -> bool:
            is_alike = is_elementwise(op) and registers_go_together(op, register)
            if not is_alike or not statistics.isdisjoint(tensor.id for tensor in op.inputs):
                return False
            return are_equal(shapes[op.outputs[0].id], shape) and op.inputs[0].dtype not in ROUNDED_BY_STORES

        inside = set(taken)
        while value not in outputs:
            region = Growth(view, self.free).region(value, inside, fits)
            inner = {view.ops[n].outputs[0].id for n in region[:-1]}
            if is_bytes and _leads_away(view, region):
                break
            if is_narrow and not all(view.ops[n].kind in IN_REGISTERS for n in region):
                break
            region = [*self._find_sides(region, shape), *region]
            if not region or inner & outputs:
                break
            if has_anchor and len(split_region([view.ops[n] for n in (*taken[nmembers:], *region)])) > 1:
                break
            if not self.quotient.merge([taken[-1], *region]):
                break
            taken += region
            inside.update(region)
            value = view.ops[region[-1]].outputs[0].id
        return taken

    def _find_sides(self, region: Sequence[int], shape: tuple[int, ...]) -> list[int]:
        """Dequantize ops in front of operands of a region, each read by one of its ops alone."""
        view, sides = self.view, []
        for number in region:
            for tensor in view.ops[number].inputs:
                source = view.producer.get(tensor.id)
                if source is None or not self.free[source] or source in region or tensor.id in self.outputs:
                    continue
                is_side = view.ops[source].kind == "Dequantize" and are_equal(self.shapes[tensor.id], shape)
                if is_side and view.users(tensor.id) == [number] and view.ops[source].inputs[0].dtype in INTEGERS:
                    sides.append(source)
        return sides

    def _as_group(self, merged: Sequence[int]) -> Group:
        """The group of these ops: what is inside an attention, or absorbed in front of an anchor, apart from others."""
        ops = self.view.ops
        gradient = next((self.gradients[n] for n in merged if n in self.gradients), None)
        if gradient is not None:
            return GradientGroup(tuple(ops[n] for n in merged), gradient)
        numbers = [n for n in merged if n not in self.compressed]
        compressed = next((ops[n] for n in merged if n in self.compressed), None)
        attention = next((self.attentions[n] for n in numbers if n in self.attentions), None)
        if attention is not None:
            behind = tuple(ops[n] for n in numbers if n not in attention.members)
            return AnchorGroup(behind, attention.product, attention, compressed=compressed)
        by_port: Mapping[int, int] = next((self.dequantized[n] for n in numbers if n in self.dequantized), {})
        members = [n for n in numbers if n not in by_port.values()]
        anchor = next((n for n in members if is_anchor(ops[n])), None)
        if anchor is None:
            return Group(tuple(ops[n] for n in members))
        behind = tuple(ops[n] for n in _in_order_of_use(self.view, [n for n in members if n != anchor], anchor))
        dequantized = {port: ops[n] for port, n in by_port.items()}
        return AnchorGroup(behind, ops[anchor], dequantized=dequantized, compressed=compressed)


def _is_narrow(op: Op, shapes: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether the op is a convolution of groups of several channels, but few; one channel each is depthwise."""
    groups = op.attrs["groups"] if op.kind == "Convolution" else 1
    if groups == 1:
        return False
    counts = [
        shapes[tensor.id][1 if op.attrs["data_format"] == "NCX" else -1] for tensor in (op.inputs[0], op.outputs[0])
    ]
    return counts != [groups, groups] and counts[1] < NARROW * groups


def _leads_away(view: GraphView, region: Sequence[int]) -> bool:
    """Whether the region only brings bytes back to numbers, and elementwise ops follow that are done elsewhere."""
    if len(region) != 1 or view.ops[region[0]].kind != "Dequantize":
        return False
    readers = [view.ops[n] for n in view.users(view.ops[region[0]].outputs[0].id)]
    return any(is_elementwise(op) and op.kind not in REQUANTIZED for op in readers)


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
