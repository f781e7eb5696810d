"""Matrix products with constant weights in panels."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...._kernels.gemm.packed import PackedFormat, k_parts
from ....typing import DataType, dense_strides
from ..choices import allows_bf16, forced
from ..layout.packed import MatrixWeights
from ..lower.epilogue import emit_sum_of_parts
from ..support import FLOATS
from .choice import Choice, is_small
from .weights import PackedWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..lower.steps import Emitter
    from ..lower.values import Value
    from .matmul_problem import MatmulSite, Product

__all__ = ["find_given", "find_packed"]

_LONG_COLUMN = 64
"""Numbers of a single column from which on dot products are faster, where rows of a lie side by side."""


def find_packed(site: MatmulSite) -> Choice | None:
    """The product with weights in panels, kept by the constant tensor cache.

    None where they are no constants or not one matrix, or where BLAS is forced, which does not read panels.
    """
    if site.group.dequantized:
        return None
    lowering, product = site.lowering, site.product()
    b, strides = product.b, product.b_strides
    if not lowering.is_constant(b) or b.dtype not in FLOATS or not product.has_one_b or forced("MatMul") == "blas":
        return None
    dtype, place = _packed_dtype(site, product), site.epilogue.place
    if product.n == 1 and product.k >= _LONG_COLUMN and dtype == "f32" and product.a_strides[-1] == 1:
        return None
    weights_format = PackedFormat(product.k, product.n, dtype)

    def fill(panels: Value) -> None:
        is_read = b.dtype is DataType.F32 or b.dtype.value == dtype
        source, rows = (b, strides[-2:]) if is_read else (lowering.dense(b), _dense_order(b, strides))
        lowering.emit(weights_format.pack(rows, b_dtype=source.dtype.value), [source, panels])

    def restore(emitter: Emitter, panels: Value) -> None:
        emitter.emit(weights_format.unpack(strides[-2:]), [panels, b])

    is_exact = b.dtype.value == dtype and b.is_whole
    panels = lowering.packed_constant([b], weights_format.nbytes, fill, restore if is_exact else None)
    return Choice(lambda _: _emit(site, PackedWeights(panels, weights_format)), place, panels, is_small(panels))


def find_given(site: MatmulSite) -> Choice | None:
    """The product with weights that the user packs."""
    lowering, tensor_id = site.lowering, site.op.inputs[1].id
    if site.group.dequantized:
        return None
    b = lowering.any_value(tensor_id)
    if b.dtype not in FLOATS or len(b.shape) != 2:
        return None
    if b.layout is None and forced("MatMul") == "blas":
        return None
    product, transposed = site.product(), site.op.attrs["transpose_b"]
    if not product.has_one_b:
        return None
    dtypes = dict.fromkeys((_packed_dtype(site, product), "f32"))
    layouts = [MatrixWeights.of(b.dtype, b.shape, transposed, dtype) for dtype in dtypes]
    given = lowering.find_given(tensor_id, layouts)
    if not isinstance(given, MatrixWeights):
        return None
    packed = PackedWeights(b.as_bytes, given.format)
    return Choice(lambda _: _emit(site, packed), site.epilogue.place)


def _packed_dtype(site: MatmulSite, product: Product) -> str:
    """The type in which weights are packed."""
    types = {product.a.dtype, product.b.dtype}
    return "bf16" if types == {DataType.BF16} or allows_bf16(site.fpmath, types) else "f32"


def _emit(site: MatmulSite, weights: PackedWeights[PackedFormat]) -> Value:
    """The product of any activations with weights in panels, with the bias and the post-ops of the group."""
    lowering, epilogue = site.lowering, site.epilogue
    a = lowering.value(site.op.inputs[0].id)
    product = site.product(a if _takes(weights.format, a.dtype) else lowering.dense(a))
    shape = product.shape
    parts = k_parts(prod(shape[:-1]), product.n, product.k, weights.format.dtype)
    if parts > 1:
        sums = lowering.temporary((parts, *epilogue.place.shape))
        call = weights.format.matmul(product.problem(threads=lowering.threads), parts=parts)
        lowering.emit(call, [product.a, weights.panels, sums])
        emit_sum_of_parts(lowering, site.group, sums, site.bias, epilogue.place, epilogue.name)
        return epilogue.place
    own = epilogue.strides_in(shape)
    fused = None if own is None else site.find_post_ops(product.n, epilogue.place)
    if fused is None:
        tail = epilogue.tail(needs_scratch=own is None)
    else:
        tail = fused.tail(epilogue.place, site.group.ops, dense_strides(shape)[:-1])
    call = weights.format.matmul(product.problem(own, threads=lowering.threads), tail.post_ops)
    lowering.emit(call, [product.a, weights.panels, *tail.args], tail.name)
    return epilogue.place


def _takes(weights_format: PackedFormat, dtype: DataType) -> bool:
    """Whether activations of this type are multiplied as they are."""
    return dtype is DataType.F32 if weights_format.dtype == "f32" else dtype in FLOATS


def _dense_order(b: Value, strides: Sequence[int]) -> tuple[int, int]:
    """Row and column stride, in a dense copy of `b`, of the matrix that had `strides` in it."""
    seen = dict(zip(b.strides, dense_strides(b.shape), strict=True))
    return seen.get(strides[-2], 0), seen.get(strides[-1], 0)
