"""Scaled dot-product attention as one kernel: found among the ops of a partition, and lowered without a score matrix.

    scores = q k^T [* or / scale] [soft cap] [+ mask];  result = SoftMax(scores) v;  post-ops

Source of the kernel's method: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from ..._kernels.gemm.attention import attention
from ...typing import DataType
from .epilogue import make_epilogue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...graph.op import Op
    from ...graph.view import GraphView
    from .groups import Group
    from .lowering import Lowering, Value

__all__ = ["Attention", "find_attention", "lower_attention"]

FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})

BATCH_AXES = 1
"""Leading axes that are the batch; all others but the last two are heads."""


@dataclass(frozen=True)
class Attention:
    """Two products with a SoftMax between them.

    Attributes
    ----------
    scores, softmax, product : Op
        The product of queries and keys, the SoftMax, the product with the values.
    members : tuple of int
        Numbers, in the view, of these ops and of those between them.
    scale, cap, mask : int or None
        Tensors: the factor (or divisor) of the scores, their soft cap, what is added to them.
    is_divisor : bool
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
    """The attention around a SoftMax; None where there is none, or one that the kernel does not compute.

    Parameters
    ----------
    view : GraphView
    number : int
        Of the SoftMax.
    shapes : mapping of int to tuple of int
        Shape of every tensor.
    outputs : set of int
        Ids of tensors that are needed elsewhere.
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


def lower_attention(lowering: Lowering, group: Group) -> None:
    """The kernel, with the post-ops of the group behind it."""
    found = group.attention
    assert found is not None
    q, k, v = _operands(lowering, found)
    heads, kv_heads = q.shape[:-2], k.shape[BATCH_AXES:-2]
    numbers = [lowering.typed(lowering.value(t)) for t in (found.scale, found.cap) if t is not None]
    masks = [] if found.mask is None else [lowering.typed(lowering.value(found.mask))]
    masks = [_broadcast(mask, (*heads, q.shape[-2], k.shape[-2])) for mask in masks]
    batch = heads[:BATCH_AXES]
    k, v = (_broadcast(x, (*batch, *x.shape[len(batch) :])) for x in (k, v))
    q, k, v, *masks = (_foldable(lowering, x) for x in (q, k, v, *masks))
    epilogue = make_epilogue(lowering, group)
    call = attention(
        (prod(batch), prod(heads[BATCH_AXES:]), *q.shape[-2:]),
        (prod(batch), prod(kv_heads), *k.shape[-2:]),
        v.shape[-1],
        scale=1.0 if found.scale is None else None,
        is_divisor=found.is_divisor,
        soft_cap=0.0 if found.cap is None else None,
        additive_strides=_fold(masks[0]) if masks else None,
        inf_as_zero=found.softmax.attrs["mode"] == "inf_as_zero",
        q_strides=_fold(q),
        k_strides=_fold(k),
        v_strides=_fold(v),
        epilogue=epilogue.block,
    )
    lowering.emit(call, [q, k, v, *numbers, *masks, epilogue.place, *epilogue.operands], epilogue.name)
    lowering.finish(group.result, epilogue.place)


def _operands(lowering: Lowering, found: Attention) -> list[Value]:
    """Queries, keys and values in f32, each (..., positions, depth)."""
    sides = [
        (found.scores.inputs[0], found.scores.attrs["transpose_a"]),
        (found.scores.inputs[1], not found.scores.attrs["transpose_b"]),
        (found.product.inputs[1], found.product.attrs["transpose_b"]),
    ]
    values = [(lowering.typed(lowering.value(tensor.id)), is_turned) for tensor, is_turned in sides]
    order = list(range(len(values[0][0].shape)))
    turned = [*order[:-2], order[-1], order[-2]]
    return [value.transposed(turned) if is_turned else value for value, is_turned in values]


def _broadcast(value: Value, shape: Sequence[int]) -> Value:
    """A view of the value under a larger shape."""
    missing = len(shape) - len(value.shape)
    pairs = zip(value.shape, value.strides, strict=True)
    strides = [0] * missing + [0 if dim == 1 else stride for dim, stride in pairs]
    return value._replace(shape=tuple(shape), strides=tuple(strides))


def _foldable(lowering: Lowering, value: Value) -> Value:
    """The value, or a dense copy, such that one stride runs over all head axes."""
    axes = [(d, s) for d, s in zip(value.shape[BATCH_AXES:-2], value.strides[BATCH_AXES:-2], strict=True) if d != 1]
    is_even = all(outer == dim * inner for (_, outer), (dim, inner) in pairwise(axes))
    return value if is_even else lowering.dense(value)


def _fold(value: Value) -> tuple[int, int, int, int]:
    """Strides over (batch, heads, rows, columns)."""
    groups = [value.strides[:BATCH_AXES], value.strides[BATCH_AXES:-2]]
    dims = [value.shape[:BATCH_AXES], value.shape[BATCH_AXES:-2]]
    folded = [
        next((s for d, s in zip(reversed(size), reversed(strides), strict=True) if d != 1), 0)
        for size, strides in zip(dims, groups, strict=True)
    ]
    return folded[0], folded[1], value.strides[-2], value.strides[-1]
