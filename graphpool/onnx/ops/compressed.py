"""Weights of 8 or 4 bits with scales of blocks: they stay as they are, behind a DynamicDequantize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.typing import DataType

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

_NUMBERS = frozenset({DataType.S8, DataType.U8, DataType.S4, DataType.U4})


def dequantize_matrix(n: NodeView, x: Value, scale: Value, point: Value | None, axis: int, block: int) -> Value | None:
    """A known matrix in f32, by known scales of blocks along an axis, of the axis (block 0), or of all of it.

    None where x, scale or zero point is not known, or x is no matrix of such numbers.
    """
    numbers = [x, scale, *([point] if point is not None else [])]
    if not all(value.is_known for value in numbers) or x.dtype not in _NUMBERS or len(x.shape) != 2:
        return None
    options: dict[str, Any] = {"qtype": "per_tensor"}
    if block:
        n.require(x.shape[axis] == scale.shape[axis] * block, "a block that is cut off")
        options = {"qtype": "per_group", "group_shape": [block if k == axis % 2 else 1 for k in range(2)]}
    elif scale.shape not in ((), (1,)):
        options = {"qtype": "per_channel", "axis": axis}
    sides = [n.vector(value) for value in numbers[1:]]
    return n.emit_several(
        "DynamicDequantize", [DataType.F32], x, n.cast(sides[0], DataType.F32), *sides[1:], **options
    )[0]


# ---- ops that ONNX Runtime contributes


def _matmul_nbits(n: NodeView) -> Value:
    """A times the transpose of B, whose rows are blocks of 4 or 8 bits, the first number in the low bits.

    Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
    """
    bits, block, rows, k = n.attr("bits", 4), n.attr("block_size", 0), n.attr("N", 0), n.attr("K", 0)
    n.require(bits in (4, 8) and block > 0 and k % block == 0, "such bits, or a block that is cut off")
    n.require(not n.has(4), "an order of the groups")
    a, groups = n[0], k // block
    dtype = DataType.U4 if bits == 4 else DataType.U8
    n.require(n[1].is_known and n[1].dtype is DataType.U8, "weights that are not known")
    n.require(n[1].content.size == rows * k * bits // 8, "the size of the weights")
    weights = n.builder.reinterpreted(n[1], dtype, (rows, k))
    scale = n.cast(n.builder.literal(n.known(2).reshape(rows, groups), n[2].dtype), a.dtype)
    points = n.builder.literal(_points(n, bits, rows, groups), DataType.U8)
    kinds = {"qtype": "per_group", "group_shape": [1, block]}
    floats = n.emit_several("DynamicDequantize", [a.dtype], weights, scale, points, **kinds)[0]
    return n.emit("MatMul", a, floats, *([n[5]] if n.has(5) else []), transpose_b=True)


def _points(n: NodeView, bits: int, rows: int, groups: int) -> np.ndarray[Any, Any]:
    """The zero point of each block; half the range where none are given."""
    if not n.has(3):
        return np.full((rows, groups), 1 << (bits - 1), np.uint8)
    n.require(n[3].dtype is DataType.U8, "zero points that are no integers")
    packed = n.known(3).reshape(rows, -1)
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, -1)[:, :groups]


CONTRIBUTED = {"MatMulNBits": _matmul_nbits}
"""Converters of domain com.microsoft."""
