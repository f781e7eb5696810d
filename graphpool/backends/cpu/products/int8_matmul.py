"""Int8 GEMM: the second operand in panels, accumulators in s32, results back in 8 bits.

Taken where s32 holds every sum; else the integers are multiplied in f32. Where the second operand is computed, as those
of attention are, or the constant tensor cache keeps no panels, each run fills them, which reads and writes a quarter of
what integers in f32 would take.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import replace

from ...._kernels.gemm.packed import PackedFormat
from ...._kernels.gemm.requant import Dynamic
from ....typing import DataType, dense_strides
from ..choices import forced
from ..layout.packed import MatrixWeights
from ..lower.epilogue import make_epilogue
from ..match.integers import byte_range, dynamic_numbers, scales_of
from .choice import Choice, Site
from .matmul_problem import MatmulSite, Product
from .weights import PackedWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..lower.post_ops import FusedPostOps, Tail
    from ..lower.values import Value
    from ..match.groups import AnchorGroup

__all__ = ["DEPTH", "find_int8", "int8_tail", "zero_points_of"]


DEPTH = 2**15
"""Terms up to which s32 holds the sum of (a - zero)(b - zero) whatever the operands."""


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


def int8_tail(
    site: Site,
    weights: PackedWeights[Any],
    count: int | None,
    place: Value,
    fused: FusedPostOps | None,
    *,
    bias_axis: int | None = None,
    residual_strides: Sequence[int] | None = None,
    needs_scratch: bool = True,
) -> Tail:
    """What an int8 kernel does to its accumulators: what it takes of both operands' numbers, and the post-ops.

    `count` are columns or channels of the result; None where a kernel takes one number for all that are alike, and
    `weights.columns` are as many as there are. Where nothing is fused, an epilogue scales the accumulators, adds the
    bias along `bias_axis` and does the rest; with `needs_scratch` it may not find them in the place itself.
    """
    lowering, group = site.lowering, site.group
    numbers = [lowering.value(tensor_id) for tensor_id in dynamic_numbers(group.dequantized[0])]
    zeros = [lowering.literal(np.array(weights.columns, np.int32))] if weights.columns else []
    dynamic = Dynamic(fused is not None and bool(numbers), len(numbers) > 1, bool(zeros))
    if fused is None:
        epilogue = make_epilogue(lowering, group, site.bias, bias_axis, place=place)
        tail = epilogue.tail(needs_scratch=needs_scratch, dynamic=dynamic)
        scales, numbers = np.ones(1, np.float32), numbers[1:]
    else:
        tail = fused.tail(place, group.ops, residual_strides, dynamic)
        scales = scales_of(group.dequantized).astype(np.float32)
    if count is not None:
        scales = np.broadcast_to(scales, (count,))
    return replace(tail, args=[lowering.literal(scales), *numbers, *zeros, *tail.args])


def find_int8(site: MatmulSite) -> Choice | None:
    """The product of quantised operands as one of bytes.

    None where nothing is summed up, zero points are the run's, or BLAS is forced.
    """
    lowering, group = site.lowering, site.group
    if not group.dequantized:
        return None
    tensor_id = group.dequantized[1].inputs[0].id
    product = Product.of(site.op, lowering.value(group.dequantized[0].inputs[0].id), lowering.any_value(tensor_id))
    b, zero_points = product.b, zero_points_of(group, 1)
    if forced("MatMul") == "blas" or zero_points is None or product.k > DEPTH or 0 in (*product.shape, product.k):
        return None
    axes = [(size, stride) for size, stride in zip(product.batch, product.b_strides, strict=False) if stride]
    shape, strides = [size for size, _ in axes], [stride for _, stride in axes]
    weights_format, place = PackedFormat(product.k, product.n, "s8", batch=prod(shape)), site.target()
    layout = MatrixWeights.of(b.dtype, b.shape, site.op.attrs["transpose_b"], "s8") if len(b.shape) == 2 else None
    is_given = layout is not None and lowering.find_given(tensor_id, [layout]) is not None

    def fill(panels: Value) -> None:
        call = weights_format.pack(
            product.b_strides[-2:], batch_shape=shape, batch_strides=strides, b_dtype=b.dtype.value
        )
        lowering.emit(call, [b, panels])

    def emit(panels: Value) -> Value:
        weights = PackedWeights(panels, weights_format, zero_point=zero_points[0], columns=zero_points[1])
        return _emit(site, product, weights, place)

    def emit_filled() -> Value:
        panels = lowering.temporary((weights_format.nbytes,), DataType.U8)
        fill(panels)
        return emit(panels)

    if is_given:
        return Choice(lambda _: emit(b.as_bytes), place)
    if not lowering.is_constant(b):
        return Choice(lambda _: emit_filled(), place)
    packed = lowering.packed_constant([b], weights_format.nbytes, fill)
    return Choice(lambda _: emit(packed), place, packed, is_filled=True)


def _emit(site: MatmulSite, product: Product, weights: PackedWeights[PackedFormat], place: Value) -> Value:
    """The product with an operand in panels, with the bias and the post-ops of the group, to `place`."""
    rows = _row_strides(place, product.shape)
    fused = None if rows is None else site.find_post_ops(product.n, place)
    if fused is None and place.dtype is not DataType.F32:
        rows = None  # the epilogue converts accumulators, which do not lie in the place
    residual_strides = dense_strides(product.shape)[:-1]
    tail = int8_tail(site, weights, None, place, fused, residual_strides=residual_strides, needs_scratch=rows is None)
    call = weights.format.matmul(
        product.problem(rows, weights.zero_point, threads=site.lowering.threads),
        tail.post_ops,
        weight_strides=_matrix_strides(product),
        one_scale=fused is None or scales_of(site.group.dequantized).size == 1,
        one_zero=len(weights.columns) == 1,
    )
    site.lowering.emit(call, [product.a, weights.panels, *tail.args], tail.name)
    return place


def _matrix_strides(product: Product) -> list[int]:
    """Strides over the batch axes, in packed matrices, which lie one behind the other; 0 where one is repeated."""
    sizes = [size if stride else 1 for size, stride in zip(product.batch, product.b_strides, strict=False)]
    return [step if stride else 0 for step, stride in zip(dense_strides(sizes), product.b_strides, strict=False)]


def _row_strides(place: Value, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides by which the kernel writes the place, which may leave gaps between rows; None: not at all."""
    if place.shape == shape:
        return place.row_strides(range(len(shape)))
    return dense_strides(shape) if place.is_dense else None
