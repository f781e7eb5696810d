"""Scaled dot-product attention among the ops of a partition.

scores = q k^T [* or / scale] [soft cap] [+ mask];  result = SoftMax(scores) v
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ..support import FLOATS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....graph.op import Op
    from ....graph.view import GraphView

__all__ = ["BATCH_AXES", "Attention", "find_attention"]


BATCH_AXES = 1
"""Leading axes that are the batch; all others but the last two are heads."""


@dataclass(frozen=True)
class Attention:
    """Two products with a SoftMax between them.

    `members` are the numbers, in the view, of `scores`, the product of queries and keys, `softmax`, `product`, that
    with the values, and of the ops between them. `scale` (a divisor perhaps), `cap` and `mask` are tensors: the factor
    of the scores, their soft cap, what is added to them.
    """

    scores: Op
    softmax: Op
    product: Op
    members: tuple[int, ...]
    scale: int | None = None
    is_divisor: bool = False
    cap: int | None = None
    mask: int | None = None


def find_attention(
    view: GraphView, number: int, shapes: Mapping[int, tuple[int, ...]], outputs: set[int]
) -> Attention | None:
    """The attention around the SoftMax of this number; None where there is none, or none that the kernel computes.

    Tensors among `outputs` are needed elsewhere.
    """
    softmax = view.ops[number]
    rank = len(shapes[softmax.inputs[0].id])
    if softmax.attrs["axis"] not in (-1, rank - 1) or not 2 <= rank <= 5 or len(softmax.outputs) != 1:
        return None
    behind = _follow(view, number, outputs)
    before = _trace(view, softmax.inputs[0].id, shapes, outputs, [])
    if behind is None or before is None:
        return None
    scores, chain = before[0], before[1:]
    steps = _read_chain(view, scores, chain, shapes)
    product = view.ops[behind[-1]]
    if steps is None or not _are_matrices(view.ops[scores], product, shapes):
        return None
    members = tuple(sorted((scores, *chain, number, *behind)))
    return Attention(view.ops[scores], softmax, product, members, **steps)


def _sole_user(view: GraphView, tensor_id: int, outputs: set[int]) -> int | None:
    users = view.users(tensor_id)
    return users[0] if len(users) == 1 and tensor_id not in outputs else None


def _follow(view: GraphView, number: int, outputs: set[int]) -> list[int] | None:
    """Numbers of the ops from behind the SoftMax to the product with the values."""
    found: list[int] = []
    while True:
        result = view.ops[number].outputs[0]
        user = _sole_user(view, result.id, outputs)
        if user is None or result.dtype not in FLOATS:
            return None
        found.append(user)
        op = view.ops[user]
        if op.kind == "MatMul":
            is_left = [t.id for t in op.inputs].index(result.id) == 0 and len(op.inputs) == 2
            return found if is_left and not op.attrs["transpose_a"] else None
        if op.kind != "TypeCast":
            return None
        number = user


def _trace(
    view: GraphView, tensor_id: int, shapes: Mapping[int, tuple[int, ...]], outputs: set[int], behind: list[int]
) -> list[int] | None:
    """Numbers of the ops from the product of queries and keys to the tensor, each read by the next one alone."""
    number = view.producer.get(tensor_id)
    if number is None or _sole_user(view, tensor_id, outputs) is None or len(behind) > 6:
        return None
    op = view.ops[number]
    found = [number, *behind]
    if op.kind == "MatMul":
        return found if len(op.inputs) == 2 else None
    if op.kind not in ("Multiply", "Divide", "Tanh", "Add", "TypeCast"):
        return None
    for tensor in op.inputs:
        if shapes[tensor.id] == shapes[op.outputs[0].id] and tensor.dtype in FLOATS:
            whole = _trace(view, tensor.id, shapes, outputs, found)
            if whole is not None:
                return whole
    return None


def _read_chain(
    view: GraphView, scores: int, chain: Sequence[int], shapes: Mapping[int, tuple[int, ...]]
) -> dict[str, Any] | None:
    """What the ops between the product and the SoftMax do: scale, then soft cap, then mask, each at most once."""
    found: dict[str, Any] = {}
    todo = [view.ops[number] for number in chain if view.ops[number].kind != "TypeCast"]
    values = {view.ops[number].outputs[0].id for number in (scores, *chain)}
    while todo:
        op = todo.pop(0)
        others = [tensor.id for tensor in op.inputs if tensor.id not in values]
        if len(others) != 1 or "mask" in found:
            return None
        is_number = prod(shapes[others[0]]) == 1
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


def _undoes(op: Op, cap: int) -> bool:
    """Whether the op multiplies by the number that the scores were divided by in front of the Tanh."""
    return op.kind == "Multiply" and cap in [tensor.id for tensor in op.inputs]


def _are_matrices(scores: Op, product: Op, shapes: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether all operands are floats of the results' rank, and neighbouring heads share keys and values."""
    operands = [*scores.inputs, product.inputs[1]]
    result = shapes[product.outputs[0].id]
    if any(t.dtype not in FLOATS or len(shapes[t.id]) != len(result) for t in operands) or 0 in result:
        return False
    q, k, v = (shapes[t.id][:-2] for t in operands)
    if q != result[:-2] or k != v or 0 in shapes[scores.outputs[0].id]:
        return False
    shared = [b == 1 and a > 1 for a, b in zip(q[BATCH_AXES:], k[BATCH_AXES:], strict=True)]
    own = [b > 1 for b in k[BATCH_AXES:]]
    return not any(earlier and later for i, earlier in enumerate(shared) for later in own[i + 1 :])
