"""Scaled dot-product attention among the ops of a partition.

scores = q k^T [* or / scale] [soft cap] [+ mask], with one Select in front of all or behind;
result = [Dropout](SoftMax(scores)) v, or Dequantize(Quantize(SoftMax(scores))) v;
q, k and v may each come of a Dequantize
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field, replace

from ...._kernels.gemm.attention import ROUNDED_DTYPES
from ....graph.shapes import are_equal
from ....typing import DataType
from ..support import FLOATS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op
    from ....graph.view import GraphView

__all__ = ["BATCH_AXES", "Attention", "Finder", "Scores", "SharedHeads", "find_attention", "zero_point_of"]


BATCH_AXES = 1
"""Leading axes that are the batch; all others but the last two are heads."""

_MOST_STEPS = 9


@dataclass(frozen=True)
class Scores:
    """The product of queries and keys, and what it goes through; tensors where they are said by id.

    Attributes
    ----------
    product : Op
        Of queries and keys.
    scale, factor, cap, mask, fill : int, optional
        The number that scores are multiplied or divided by, or a tensor of such; their soft cap; what is added to them;
        the number that hidden ones become: in front of the scale if `fills_first`, else behind all others.
    shown : int, optional
        A condition: where it is false, or true if `is_inverted`, scores are hidden.
    is_causal : bool
        Whether query i hides the keys behind i, plus the number `ahead`, minus the number `behind`.
    """

    product: Op
    scale: int | None = None
    factor: int | None = None
    is_divisor: bool = False
    cap: int | None = None
    mask: int | None = None
    fill: int | None = None
    fills_first: bool = False
    shown: int | None = None
    is_inverted: bool = False
    is_causal: bool = False
    ahead: int | None = None
    behind: int | None = None


@dataclass(frozen=True)
class SharedHeads:
    """Keys or values that are repeated for the heads which share them: (batch, heads, 1, positions, depth) in `source`.

    `members` are the numbers of the ops that repeat, and of one that turns positions and depth round if there is any.
    """

    source: int
    members: tuple[int, ...]
    is_turned: bool


@dataclass(frozen=True)
class Attention:
    """Two products with a SoftMax between them.

    `members` are the numbers, in the view, of all ops from the product of queries and keys to `product`, that with the
    values. `keys` and `values` are set where they need not be repeated, `rounding` to a Quantize and a Dequantize
    behind the SoftMax; `quantized` are the Dequantize ops among the members that make q, k and v.
    """

    scores: Scores
    softmax: Op
    product: Op
    members: tuple[int, ...]
    dropout: Op | None = None
    keys: SharedHeads | None = None
    values: SharedHeads | None = None
    rounding: tuple[Op, Op] | None = None
    quantized: Mapping[str, Op] = field(default_factory=dict)
    quantized_members: tuple[int, ...] = ()

    @property
    def side_outputs(self) -> tuple[LogicalTensor, ...]:
        """The statistics, and the mask of Dropout, where they are asked for."""
        return (*self.softmax.outputs[1:], *(self.dropout.outputs[1:] if self.dropout else ()))

    def repeated(self) -> Attention:
        """The same for repeated keys and values."""
        shared = [*(self.keys.members if self.keys else ()), *(self.values.members if self.values else ())]
        return replace(self, members=_without(self.members, shared), keys=None, values=None)

    def dequantized(self) -> Attention:
        """The same for operands that are dequantised in front of it."""
        members = _without(self.members, self.quantized_members)
        return replace(self, members=members, quantized={}, quantized_members=())


def find_attention(
    view: GraphView, number: int, shapes: Mapping[int, tuple[int, ...]], outputs: set[int]
) -> Attention | None:
    """The attention around the SoftMax of this number; None where there is none, or none that the kernel computes.

    Tensors among `outputs` are needed elsewhere.
    """
    return Finder(view, shapes, outputs).find(number)


@dataclass(frozen=True)
class Finder:
    """Looks for attention among the ops of a view, with the shapes of all tensors; `outputs` are needed elsewhere."""

    view: GraphView
    shapes: Mapping[int, tuple[int, ...]]
    outputs: set[int]

    # ---- forward

    def find(self, number: int) -> Attention | None:
        """The attention around the SoftMax of this number."""
        softmax = self.view.ops[number]
        rank = len(self.shapes[softmax.inputs[0].id])
        if softmax.attrs["axis"] not in (-1, rank - 1) or not 2 <= rank <= 5:
            return None
        behind, before = self._follow(number), self.find_scores(softmax.inputs[0].id)
        if behind is None or before is None:
            return None
        scores, inside = before
        product = self.view.ops[behind[-1]]
        members = {*inside, number, *behind}
        keys, values = (self._find_shared(tensor.id) for tensor in (scores.product.inputs[1], product.inputs[1]))
        if keys is None or values is None or not self._are_alike(keys, values):
            keys = values = None
        else:
            members |= {*keys.members, *values.members}
        between = {op.kind: op for op in map(self.view.ops.__getitem__, behind)}
        dropout, quantize = between.get("Dropout"), between.get("Quantize")
        rounding = None if quantize is None else (quantize, between["Dequantize"])
        operands = *scores.product.inputs, product.inputs[1]
        sources = {name: self._find_quantized(tensor.id) for name, tensor in zip("qkv", operands, strict=True)}
        quantized = {name: self.view.ops[numbers[-1]] for name, numbers in sources.items() if numbers}
        before_products = tuple(number for numbers in sources.values() for number in numbers)
        found = Attention(
            scores, softmax, product, tuple(sorted({*members, *before_products})), dropout, keys, values, rounding,
            quantized, before_products,
        )  # fmt: skip
        results = {product.outputs[0].id, *(tensor.id for tensor in found.side_outputs)}
        is_whole = self.is_closed(members, results) and self.are_matrices(operands, self.shapes[product.outputs[0].id])
        return found if is_whole else None

    def _find_quantized(self, tensor_id: int) -> list[int]:
        """Numbers of the ops, a Dequantize the last, that make the tensor of numbers of one byte; none if others do."""
        members: list[int] = []
        while self._sole_user(tensor_id) is not None:
            op = None if (number := self.view.producer.get(tensor_id)) is None else self.view.ops[number]
            if number is None or op is None or op.kind not in ("TypeCast", "Dequantize"):
                break
            members.append(number)
            if op.kind == "Dequantize":
                return members if _has_one_scale(op) and op.inputs[0].dtype.value in ROUNDED_DTYPES else []
            tensor_id = op.inputs[0].id
        return []

    def _find_shared(self, tensor_id: int) -> SharedHeads | None:
        """What is repeated to become the tensor: by an Expand, whose new axis is then joined to that of the heads."""
        members: list[int] = []
        for kind in ("StaticTranspose", "StaticReshape", "Expand"):
            number = None if self._sole_user(tensor_id) is None else self.view.producer.get(tensor_id)
            if number is not None and self.view.ops[number].kind == kind:
                members.append(number)
                tensor_id = self.view.ops[number].inputs[0].id
            elif kind != "StaticTranspose":
                return None
        turn, join, expand = (self.view.ops[number] for number in (members[0], *members[-2:]))
        is_turned = turn is not join
        if is_turned and [axis % 4 for axis in turn.attrs["order"]] != [0, 1, 3, 2]:
            return None
        own, whole, joined = (self.shapes[i] for i in (tensor_id, expand.outputs[0].id, join.outputs[0].id))
        if (len(own), len(whole), len(joined)) != (5, 5, 4) or own[2] != 1:
            return None
        is_alike = (*own[:2], *own[3:]) == (*whole[:2], *whole[3:]) and (own[0], *own[3:]) == (joined[0], *joined[2:])
        return SharedHeads(tensor_id, tuple(members), is_turned) if is_alike else None

    def _are_alike(self, keys: SharedHeads, values: SharedHeads) -> bool:
        """Whether as many heads share the keys as the values."""
        return self.shapes[keys.source][:2] == self.shapes[values.source][:2]

    def _sole_user(self, tensor_id: int) -> int | None:
        users = self.view.users(tensor_id)
        return users[0] if len(users) == 1 and tensor_id not in self.outputs else None

    def _follow(self, number: int) -> list[int] | None:
        """Numbers of the ops from behind the SoftMax to the product with the values."""
        found: list[int] = []
        while True:
            before = self.view.ops[number]
            users = self.view.users(before.outputs[0].id)
            is_rounded = before.kind == "Quantize"
            if len(users) != 1 or (before.outputs[0].dtype not in FLOATS and not is_rounded):
                return None
            number = users[0]
            op = self.view.ops[number]
            if is_rounded and not (op.kind == "Dequantize" and _undoes_rounding(before, op)):
                return None
            if op.kind == "MatMul":
                is_left = op.inputs[0].id == before.outputs[0].id and len(op.inputs) == 2
                return [*found, number] if is_left and not op.attrs["transpose_a"] else None
            is_second = any(self.view.ops[n].kind in ("Dropout", "Quantize") for n in found)
            is_change = op.kind == "Dropout" or (op.kind == "Quantize" and _rounds(op))
            if not (is_rounded or op.kind == "TypeCast" or (is_change and not is_second)):
                return None
            found.append(number)

    def is_closed(self, members: Collection[int], results: Collection[int]) -> bool:
        """Whether nobody outside reads what the members compute but the results."""
        return all(
            tensor.id in results
            or (tensor.id not in self.outputs and all(user in members for user in self.view.users(tensor.id)))
            for number in members
            for tensor in self.view.ops[number].outputs
        )

    # ---- scores

    def find_scores(self, tensor_id: int) -> tuple[Scores, set[int]] | None:
        """What a tensor is as scores, and the numbers of the ops that make it so."""
        chain = self._trace(tensor_id, [])
        return None if chain is None else self._read_chain(chain)

    def _trace(self, tensor_id: int, behind: list[int]) -> list[int] | None:
        """Numbers of the ops from the product of queries and keys to the tensor."""
        number = self.view.producer.get(tensor_id)
        if number is None or len(behind) > _MOST_STEPS:
            return None
        op = self.view.ops[number]
        found = [number, *behind]
        if op.kind == "MatMul":
            return found if len(op.inputs) == 2 else None
        if op.kind not in ("Multiply", "Divide", "Tanh", "Add", "TypeCast", "Select"):
            return None
        shape = self.shapes[op.outputs[0].id]
        like = [t.id for t in op.inputs if t.dtype in FLOATS and are_equal(self.shapes[t.id], shape)]
        return next((whole for tensor in like if (whole := self._trace(tensor, found)) is not None), None)

    def _read_chain(self, chain: Sequence[int]) -> tuple[Scores, set[int]] | None:
        """What the ops from the product on do: scale, then soft cap, then mask, each at most once, and one Select."""
        ops = [self.view.ops[number] for number in chain]
        found, members = Scores(ops[0]), set(chain)
        todo = [op for op in ops[1:] if op.kind != "TypeCast"]
        values = {op.outputs[0].id for op in ops}
        while todo:
            op = todo.pop(0)
            others = [tensor.id for tensor in op.inputs if tensor.id not in values]
            if op.kind == "Select":
                selected = self._read_select(op, found, values)
                if selected is None:
                    return None
                found, inside = selected
                members |= inside
                continue
            is_late = found.mask is not None or (found.fill is not None and not found.fills_first)
            if len(others) != 1 or is_late:
                return None
            is_number = self.is_number(others[0])
            scales = op.kind == "Multiply" or (op.kind == "Divide" and op.inputs[0].id in values)
            if op.kind == "Divide" and scales and len(todo) >= 2 and todo[0].kind == "Tanh":
                if not is_number or found.cap is not None or not _undoes(todo[1], others[0]):
                    return None
                found = replace(found, cap=others[0])
                todo = todo[2:]
            elif scales and found.scale is found.factor is found.cap is None and (is_number or found.fill is None):
                found = replace(found, is_divisor=op.kind == "Divide")
                found = replace(found, scale=others[0]) if is_number else replace(found, factor=others[0])
            elif op.kind == "Add":
                found = replace(found, mask=others[0])
            else:
                return None
        if found.scale is found.factor is found.cap is found.mask is None:
            found = replace(found, fills_first=False)
        return found, members

    def _read_select(self, op: Op, found: Scores, values: Collection[int]) -> tuple[Scores, set[int]] | None:
        """What is known of scores with a Select behind it, and the numbers of the ops that make its condition."""
        condition, scores, fill = op.inputs
        is_inverted = scores.id not in values
        scores, fill = (fill, scores) if is_inverted else (scores, fill)
        if found.fill is not None or scores.id not in values or not self.is_number(fill.id) or fill.id in values:
            return None
        if fill.dtype not in FLOATS:
            return None
        is_first = found.scale is found.factor is found.cap is found.mask is None
        found = replace(found, fill=fill.id, fills_first=is_first)
        causal = None if is_inverted else self._find_causal(condition.id, self.shapes[scores.id])
        if causal is not None:
            ahead, behind, members = causal
            return replace(found, is_causal=True, ahead=ahead, behind=behind), members
        return replace(found, shown=condition.id, is_inverted=is_inverted), set()

    def _find_causal(self, tensor_id: int, shape: tuple[int, ...]) -> tuple[int | None, int | None, set[int]] | None:
        """What is added to a query's number in front of a comparison with those of keys, what is subtracted then.

        Third come the numbers of the ops that make the condition.
        """
        number = self.view.producer.get(tensor_id)
        op = None if number is None else self.view.ops[number]
        if number is None or op is None or op.kind != "GreaterEqual":
            return None
        rows, columns = (tensor.id for tensor in op.inputs)
        added: dict[str, int | None] = {"Subtract": None, "Add": None}
        members = {number}
        for kind in added:
            before = self.producer_of(rows, kind)
            if before is None:
                continue
            sides = [tensor.id for tensor in self.view.ops[before].inputs]
            sides = sides[::-1] if kind == "Add" and self.is_number(sides[0]) else sides
            rows, added[kind] = sides
            if not self.is_number(sides[1]) or self.view.ops[before].inputs[0].dtype is not DataType.S32:
                return None
            members.add(before)
        for positions, axis in ((rows, len(shape) - 2), (columns, len(shape) - 1)):
            index = self.producer_of(positions, "GenIndex")
            if index is None or self.shapes[positions] != shape:
                return None
            if self.view.ops[index].attrs["axis"] % len(shape) != axis:
                return None
            members.add(index)
        return added["Add"], added["Subtract"], members

    def is_number(self, tensor_id: int) -> bool:
        """Whether the tensor has one element."""
        return prod(self.shapes[tensor_id]) == 1

    def producer_of(self, tensor_id: int, kind: str) -> int | None:
        """Number of the op that computes the tensor, if it is of this kind."""
        number = self.view.producer.get(tensor_id)
        return number if number is not None and self.view.ops[number].kind == kind else None

    def are_matrices(self, operands: Sequence[LogicalTensor], result: tuple[int, ...]) -> bool:
        """Whether q, k, v are floats of the result's rank, nothing is empty, and neighbouring heads share k and v."""
        if any(t.dtype not in FLOATS or len(self.shapes[t.id]) != len(result) for t in operands) or 0 in result:
            return False
        q, k, v = (self.shapes[t.id][:-2] for t in operands)
        if q != result[:-2] or k != v or any(0 in self.shapes[t.id][-2:] for t in operands[:2]):
            return False
        shared = [b == 1 and a > 1 for a, b in zip(q[BATCH_AXES:], k[BATCH_AXES:], strict=True)]
        own = [b > 1 for b in k[BATCH_AXES:]]
        return not any(earlier and later for i, earlier in enumerate(shared) for later in own[i + 1 :])


def _undoes(op: Op, cap: int) -> bool:
    """Whether the op multiplies by the number that the scores were divided by in front of the Tanh."""
    return op.kind == "Multiply" and cap in [tensor.id for tensor in op.inputs]


def _rounds(op: Op) -> bool:
    """Whether a Quantize has one scale, one zero point at most, and a type of one byte."""
    is_whole = op.attrs["qtype"] == "per_tensor" and len(op.attrs["scales"]) == 1
    return is_whole and op.outputs[0].dtype.value in ROUNDED_DTYPES


def _undoes_rounding(quantize: Op, op: Op) -> bool:
    """Whether a Dequantize has one scale, and the zero point of the Quantize: what is 0 stays 0."""
    return _has_one_scale(op) and zero_point_of(quantize) == zero_point_of(op)


def _has_one_scale(op: Op) -> bool:
    """Whether a Dequantize has one scale, which is not 0."""
    return op.attrs["qtype"] == "per_tensor" and len(op.attrs["scales"]) == 1 and op.attrs["scales"][0] != 0


def zero_point_of(op: Op) -> int:
    """That of a Quantize or Dequantize which has one at most."""
    return int((op.attrs.get("zps") or [0])[0])


def _without(members: Sequence[int], others: Collection[int]) -> tuple[int, ...]:
    return tuple(number for number in members if number not in others)
