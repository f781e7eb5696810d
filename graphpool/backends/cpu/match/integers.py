"""Products of quantised operands, and their scales and zero points; `lower/integers.py` computes them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ....graph.op import first_free_id
from ....graph.shapes import conv_weight_axes
from ....typing import DataType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ....graph.op import Op
    from ....graph.view import GraphView

__all__ = [
    "DEQUANTIZE",
    "POOLS",
    "PRODUCTS",
    "byte_range",
    "dynamic_numbers",
    "exact_depth",
    "find_dequantized",
    "scales_of",
    "split_dequantized",
]


PRODUCTS = frozenset({"MatMul", "Convolution", "ConvTranspose"})

POOLS = frozenset({"AvgPool", "MaxPool"})

_EXACT = 2**24
"""Integers up to this are exact in f32."""

_LIMITS = {DataType.U8: (0, 255), DataType.S8: (-128, 127)}

DEQUANTIZE = frozenset({"Dequantize", "DynamicDequantize"})


def split_dequantized(ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int]) -> list[Op]:
    """The ops with a Dequantize of its own for each product and each pool that reads one, but for its last reader.

    A Dequantize costs less within a kernel than its result costs in memory, but a kernel takes in only what nobody else
    reads. Other readers share one: they may lie in one region. Ops keep their ids, copies have that of their original.
    A pass of `rewrites.REWRITES`.
    """
    makers = {op.outputs[0].id: op for op in ops if op.kind in DEQUANTIZE and op.outputs[0].id not in outputs}
    if not makers:
        return list(ops)
    readers = Counter(tensor.id for op in ops for tensor in op.inputs if tensor.id in makers)
    free = first_free_id(ops)
    split: list[Op] = []
    for op in ops:
        inputs = list(op.inputs)
        for port, tensor in enumerate(op.inputs):
            if readers[tensor.id] > 1 and (op.kind in PRODUCTS or op.kind in POOLS):
                readers[tensor.id] -= 1
                inputs[port] = tensor.replace(id=free)
                shapes[free] = shapes[tensor.id]
                split.append(makers[tensor.id].with_ports(makers[tensor.id].inputs, (inputs[port],)))
                free += 1
        split.append(op if inputs == list(op.inputs) else op.with_ports(tuple(inputs), op.outputs))
    return split


def find_dequantized(
    view: GraphView, number: int, shapes: Mapping[int, tuple[int, ...]], outputs: set[int]
) -> dict[int, int]:
    """Numbers of the Dequantize ops in front of both operands of a product, by port; empty unless both are exact.

    Likewise in front of a pool, whose one scale must keep the order.
    """
    op = view.ops[number]
    if op.kind not in PRODUCTS and op.kind not in POOLS:
        return {}
    found: dict[int, int] = {}
    for port, tensor in enumerate(op.inputs[: 1 if op.kind in POOLS else 2]):
        source = view.producer.get(tensor.id)
        if source is None or tensor.id in outputs or view.consumers[tensor.id] != [(number, port)]:
            return {}
        columns = _columns(op, shapes[tensor.id]) if port else None
        if not _is_exact(view.ops[source], columns, len(shapes[tensor.id])):
            return {}
        found[port] = source
    largest = [_largest(view.ops[source]) for source in found.values()]
    return found if prod(largest) <= _EXACT and (op.kind not in POOLS or _keeps_order(view.ops[found[0]])) else {}


def _keeps_order(op: Op) -> bool:
    """Whether larger bytes are larger numbers."""
    return op.kind == "Dequantize" and op.attrs["scales"][0] > 0


def _is_exact(op: Op, columns: tuple[int, int] | None, ndim: int) -> bool:
    """Whether a Dequantize has 8-bit input, and one scale or as many as `columns` says along its axis."""
    if op.kind not in DEQUANTIZE or op.inputs[0].dtype not in _LIMITS:
        return False
    if op.kind == "DynamicDequantize":
        x, scale, *zero_points = (tensor.dtype for tensor in op.inputs)
        is_f32 = scale is DataType.F32 and op.outputs[0].dtype is DataType.F32
        return op.attrs["qtype"] == "per_tensor" and is_f32 and all(dtype is x for dtype in zero_points)
    return len(op.attrs["scales"]) == 1 or (op.attrs["axis"] % ndim, len(op.attrs["scales"])) == columns


def _columns(op: Op, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The axis of the second operand along which columns or channels of the result lie, and how many there are."""
    ndim = len(shape)
    if op.kind == "MatMul":
        axis = ndim - 2 if op.attrs["transpose_b"] else ndim - 1
        return None if ndim < 2 else (axis, shape[axis])
    axis = conv_weight_axes(ndim, op.attrs["weights_format"])[1]
    return axis, shape[axis] * (op.attrs["groups"] if op.kind == "ConvTranspose" else 1)


def byte_range(dtype: DataType) -> tuple[int, int] | None:
    """The least and the largest value of an 8-bit integer; None for other types."""
    return _LIMITS.get(dtype)


def _largest(op: Op) -> int:
    """The largest absolute value of x - zp."""
    limits = _LIMITS[op.inputs[0].dtype]
    zero_points = limits if len(op.inputs) > 2 else set(op.attrs.get("zps") or [0])
    return max(abs(limit - int(zp)) for limit, zp in product(limits, zero_points))


def dynamic_numbers(op: Op) -> list[int]:
    """Ids of scale and, if there is one, zero point of a Dequantize that gets them as tensors."""
    return [tensor.id for tensor in op.inputs[1:]]


def exact_depth(dequantized: Mapping[int, Op]) -> int:
    """Terms whose sum f32 holds exactly; 0 where the operands of a product, by port, are no integers."""
    if not dequantized:
        return 0
    return max(1, _EXACT // max(1, _largest(dequantized[0]) * _largest(dequantized[1])))


def scales_of(dequantized: Mapping[int, Op]) -> np.ndarray[Any, Any]:
    """The product of the scales of operands (at least one) that are known, in float64: one, or one for each column."""
    (first,), *others = (dequantized[port].attrs.get("scales", [1.0]) for port in sorted(dequantized))
    return np.multiply(others[0] if others else [1.0], float(first))
