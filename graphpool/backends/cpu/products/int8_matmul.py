"""Products of 8-bit activations and constant 8-bit weights: weights in panels, sums in s32, results back in 8 bits.

Taken where s32 holds every sum; else `integers.py` multiplies in f32. Where the constant tensor cache keeps no panels
each run fills them, which reads and writes a quarter of what weights in f32 would take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...._kernels.gemm.packed import PackedFormat
from ...._kernels.gemm.requant import Dynamic
from ....typing import DataType, dense_strides
from ..choices import forced
from ..lower.epilogue import make_epilogue
from ..match.integers import byte_range, dynamic_numbers, scales_of
from .weights import matmul_post_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup
    from .weights import Product

__all__ = [
    "DEPTH",
    "Int8Weights",
    "emit_int8_matmul",
    "find_dynamic",
    "find_int8_weights",
    "scale_vector",
    "zero_points_of",
]

DEPTH = 2**15
"""Terms up to which s32 holds the sum of (a - zero)(b - zero) whatever the operands."""


@dataclass(frozen=True)
class Int8Weights:
    """Weights of 8 bits in panels.

    Attributes
    ----------
    packed : Value
        What the cache keeps.
    zero_point : int
        Of the activations; 0 where the run gives it.
    columns : tuple of int
        Zero points of the weights as the panels hold them; none where all are 0.
    """

    packed: Value
    zero_point: int
    columns: tuple[int, ...]


def zero_points_of(group: AnchorGroup, size: int) -> tuple[int, tuple[int, ...]] | None:
    """Zero points of the activations and, unless all are 0, of `size` columns of weights as s8.

    None where they are not within their types, or the run gives those of the weights; one of the activations that it
    gives counts as 0.
    """
    if dynamic_numbers(group.dequantized[1]):
        return None
    points: list[list[int]] = []
    for op in (group.dequantized[0], group.dequantized[1]):
        limits, found = byte_range(op.inputs[0].dtype), [int(zp) for zp in op.attrs.get("zps") or [0]]
        if limits is None or not all(limits[0] <= zp <= limits[1] for zp in set(found)):
            return None
        points.append(found)
    flip = 128 if group.dequantized[1].inputs[0].dtype is DataType.U8 else 0
    columns = tuple(zp - flip for zp in points[1])
    columns = columns * size if len(columns) == 1 else columns
    return points[0][0], columns if any(columns) else ()


def scale_vector(lowering: Lowering, group: AnchorGroup, size: int) -> Value:
    """The product of both operands' scales for each column."""
    return lowering.literal(np.broadcast_to(scales_of(group.dequantized).astype(np.float32), (size,)))


def find_dynamic(
    lowering: Lowering, group: AnchorGroup, columns: Sequence[int], *, scale: bool
) -> tuple[Dynamic, list[Value]]:
    """What kernels take as arguments of the numbers of both operands, and where it lies.

    That is what the run gives of the activations', the scale if it is wanted, and the zero points of columns.
    """
    numbers = [lowering.value(tensor_id) for tensor_id in dynamic_numbers(group.dequantized[0])]
    given = Dynamic(scale and bool(numbers), len(numbers) > 1, bool(columns))
    zeros = [lowering.literal(np.array(columns, np.int32))] if columns else []
    return given, [*(numbers if scale else numbers[1:]), *zeros]


def find_int8_weights(lowering: Lowering, group: AnchorGroup, product: Product) -> Int8Weights | None:
    """The weights of a product of quantised operands in panels.

    None where they are no constants or not one matrix, or where BLAS is forced.
    """
    b, strides, zero_points = product.b, product.b_strides, zero_points_of(group, product.n)
    if forced("MatMul") == "blas" or zero_points is None or not lowering.is_constant(b) or product.k > DEPTH:
        return None
    if any(strides[:-2]) or 0 in (*product.batch, product.m, product.n, product.k):
        return None

    weights = PackedFormat(product.k, product.n, "s8")

    def fill(panels: Value) -> None:
        lowering.emit(weights.pack(strides[-2:], b_dtype=b.dtype.value), [b, panels])

    return Int8Weights(lowering.packed_constant([b], weights.nbytes, fill), *zero_points)


def emit_int8_matmul(
    lowering: Lowering, group: AnchorGroup, product: Product, panels: Int8Weights, bias: Value | None, place: Value
) -> None:
    """The product with weights in panels, with the bias and the post-ops of the group, to `place`."""
    weights, rows = PackedFormat(product.k, product.n, "s8"), _row_strides(place, product.shape)
    found = None if rows is None else matmul_post_ops(lowering, group, product.n, bias, place)
    dynamic, given = find_dynamic(lowering, group, panels.columns, scale=found is not None)
    if found is None:
        epilogue = make_epilogue(lowering, group, bias, place=place)
        rows = epilogue.strides_in(product.shape)
        scales = lowering.literal(np.ones(product.n, np.float32))
        tail = epilogue.tail(needs_scratch=rows is None, dynamic=dynamic)
    else:
        scales = scale_vector(lowering, group, product.n)
        tail = found.tail(place, group.ops, dense_strides(product.shape)[:-1], dynamic)
    call = weights.matmul(product.problem(rows, panels.zero_point), tail.post_ops)
    lowering.emit(call, [product.a, panels.packed, scales, *given, *tail.args], tail.name)


def _row_strides(place: Value, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides by which the kernel writes the place, which may leave gaps between rows; None: not at all."""
    if place.shape == shape:
        return place.row_strides(range(len(shape)))
    return dense_strides(shape) if place.is_dense else None
