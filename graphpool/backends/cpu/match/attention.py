"""Scaled dot-product attention among the ops of a partition.

scores = q k^T [* or / scale] [soft cap] [+ mask];  result = SoftMax(scores) v
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from ..support import FLOATS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....graph.op import Op
    from ....graph.view import GraphView

__all__ = ["BATCH_AXES", "Attention", "SharedHeads", "find_attention"]


BATCH_AXES = 1
"""Leading axes that are the batch; all others but the last two are heads."""


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

    `members` are the numbers, in the view, of `scores`, the product of queries and keys, `softmax`, `product`, that
    with the values, and of the ops between them. `scale` (a divisor perhaps), `cap` and `mask` are tensors: the factor
    of the scores, their soft cap, what is added to them. `keys` and `values` are set where they need not be repeated.
    """

    scores: Op
    softmax: Op
    product: Op
    members: tuple[int, ...]
    scale: int | None = None
    is_divisor: bool = False
    cap: int | None = None
    mask: int | None = None
    keys: SharedHeads | None = None
    values: SharedHeads | None = None

    def repeated(self) -> Attention:
        """The same for repeated keys and values."""
        shared = [*(self.keys.members if self.keys else ()), *(self.values.members if self.values else ())]
        members = tuple(number for number in self.members if number not in shared)
        return replace(self, members=members, keys=None, values=None)


def find_attention(
    view: GraphView, number: int, shapes: Mapping[int, tuple[int, ...]], outputs: set[int]
) -> Attention | None:
    """The attention around the SoftMax of this number; None where there is none, or none that the kernel computes.

    Tensors among `outputs` are needed elsewhere.
    """
    return _Finder(view, shapes, outputs).find(number)


@dataclass(frozen=True)
class _Finder:
    view: GraphView
    shapes: Mapping[int, tuple[int, ...]]
    outputs: set[int]

    def find(self, number: int) -> Attention | None:
        softmax = self.view.ops[number]
        rank = len(self.shapes[softmax.inputs[0].id])
        if softmax.attrs["axis"] not in (-1, rank - 1) or not 2 <= rank <= 5 or len(softmax.outputs) != 1:
            return None
        behind, before = self._follow(number), self._trace(softmax.inputs[0].id, [])
        if behind is None or before is None:
            return None
        ops = [self.view.ops[n] for n in before]
        steps, product = self._read_chain(ops), self.view.ops[behind[-1]]
        if steps is None or not self._are_matrices(ops[0], product):
            return None
        members = [*before, number, *behind]
        keys, values = (self._find_shared(tensor.id) for tensor in (ops[0].inputs[1], product.inputs[1]))
        if keys is not None and values is not None and self._are_alike(keys, values):
            members += [*keys.members, *values.members]
        else:
            keys = values = None
        return Attention(ops[0], softmax, product, tuple(sorted(members)), **steps, keys=keys, values=values)

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
            result = self.view.ops[number].outputs[0]
            user = self._sole_user(result.id)
            if user is None or result.dtype not in FLOATS:
                return None
            found.append(user)
            op = self.view.ops[user]
            if op.kind == "MatMul":
                is_left = op.inputs[0].id == result.id and len(op.inputs) == 2
                return found if is_left and not op.attrs["transpose_a"] else None
            if op.kind != "TypeCast":
                return None
            number = user

    def _trace(self, tensor_id: int, behind: list[int]) -> list[int] | None:
        """Numbers of the ops from the product of queries and keys to the tensor, each read by the next one alone."""
        number = self.view.producer.get(tensor_id)
        if number is None or self._sole_user(tensor_id) is None or len(behind) > 6:
            return None
        op = self.view.ops[number]
        found = [number, *behind]
        if op.kind == "MatMul":
            return found if len(op.inputs) == 2 else None
        if op.kind not in ("Multiply", "Divide", "Tanh", "Add", "TypeCast"):
            return None
        like = [t.id for t in op.inputs if self.shapes[t.id] == self.shapes[op.outputs[0].id] and t.dtype in FLOATS]
        return next((whole for tensor in like if (whole := self._trace(tensor, found)) is not None), None)

    def _read_chain(self, chain: Sequence[Op]) -> dict[str, Any] | None:
        """What the ops from the product to the SoftMax do: scale, then soft cap, then mask, each at most once."""
        found: dict[str, Any] = {}
        todo = [op for op in chain[1:] if op.kind != "TypeCast"]
        values = {op.outputs[0].id for op in chain}
        while todo:
            op = todo.pop(0)
            others = [tensor.id for tensor in op.inputs if tensor.id not in values]
            if len(others) != 1 or "mask" in found:
                return None
            is_number = prod(self.shapes[others[0]]) == 1
            scales = op.kind == "Multiply" or (op.kind == "Divide" and op.inputs[0].id in values)
            if op.kind == "Divide" and scales and len(todo) >= 2 and todo[0].kind == "Tanh":
                if not is_number or "cap" in found or not _undoes(todo[1], others[0]):
                    return None
                found["cap"] = others[0]
                todo = todo[2:]
            elif scales and is_number and not found:
                found |= {"scale": others[0], "is_divisor": op.kind == "Divide"}
            elif op.kind == "Add":
                found["mask"] = others[0]
            else:
                return None
        return found

    def _are_matrices(self, scores: Op, product: Op) -> bool:
        """Whether all operands are floats of the results' rank, and neighbouring heads share keys and values."""
        operands = [*scores.inputs, product.inputs[1]]
        result = self.shapes[product.outputs[0].id]
        if any(t.dtype not in FLOATS or len(self.shapes[t.id]) != len(result) for t in operands) or 0 in result:
            return False
        q, k, v = (self.shapes[t.id][:-2] for t in operands)
        if q != result[:-2] or k != v or 0 in self.shapes[scores.outputs[0].id]:
            return False
        shared = [b == 1 and a > 1 for a, b in zip(q[BATCH_AXES:], k[BATCH_AXES:], strict=True)]
        own = [b > 1 for b in k[BATCH_AXES:]]
        return not any(earlier and later for i, earlier in enumerate(shared) for later in own[i + 1 :])


def _undoes(op: Op, cap: int) -> bool:
    """Whether the op multiplies by the number that the scores were divided by in front of the Tanh."""
    return op.kind == "Multiply" and cap in [tensor.id for tensor in op.inputs]
