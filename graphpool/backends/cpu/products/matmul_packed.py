"""Matrix products with constant weights in panels."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...._kernels.gemm.packed import PackedFormat, k_parts
from ...._kernels.move.move import copy
from ....errors import UnsupportedError, explain
from ....typing import DataType, PropertyType, dense_strides
from ..choices import allows_bf16, forced
from ..layout.opaque import Panels
from ..lower.epilogue import emit_sum_of_parts
from ..support import FLOATS
from .choice import Choice
from .weights import PackedWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from .matmul_problem import MatmulSite

__all__ = ["find_given", "find_packed", "move_panels", "panels_wanted"]


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
    types = {product.a.dtype, b.dtype}
    dtype = "bf16" if types == {DataType.BF16} or allows_bf16(site.fpmath, types) else "f32"
    weights_format, place = PackedFormat(product.k, product.n, dtype), site.epilogue.place

    def fill(panels: Value) -> None:
        is_read = b.dtype is DataType.F32 or b.dtype.value == dtype
        source, rows = (b, strides[-2:]) if is_read else (lowering.dense(b), _dense_order(b, strides))
        lowering.emit(weights_format.pack(rows, b_dtype=source.dtype.value), [source, panels])

    def restore(panels: Value) -> None:
        lowering.emit(weights_format.unpack(strides[-2:]), [panels, b])

    is_exact = b.dtype.value == dtype and b.is_whole
    panels = lowering.packed_constant([b], weights_format.nbytes, fill, restore if is_exact else None)
    return Choice(lambda _: _emit(site, PackedWeights(panels, weights_format)), place, panels)


def panels_wanted(ops: Sequence[Op], tensor: LogicalTensor) -> Panels | None:
    """The panels in which the ops want an input: one that is the weights of one product, and nothing else."""
    users = [(op, port) for op in ops for port, source in enumerate(op.inputs) if source.id == tensor.id]
    if len(users) != 1 or users[0][0].kind != "MatMul" or users[0][1] != 1 or forced("MatMul") == "blas":
        return None
    is_constant = tensor.property is PropertyType.CONSTANT
    if not is_constant or tensor.dtype is not DataType.F32 or tensor.ndim != 2 or 0 in (tensor.shape or ()):
        return None
    return Panels(bool(users[0][0].attrs["transpose_b"]))


def find_given(site: MatmulSite) -> Choice | None:
    """The product with weights that the user has brought into panels.

    Raises UnsupportedError where they were made for a product that sums over the other axis.
    """
    weights = None if site.group.dequantized else site.lowering.any_value(site.op.inputs[1].id)
    if weights is None or weights.panels is None:
        return None
    if weights.panels.is_transposed != site.op.attrs["transpose_b"]:
        accepted = "those of this op's transpose_b"
        raise UnsupportedError(explain(f"{site.op.label}: panels", accepted=accepted), op_id=site.op.id)
    product = site.product()
    packed = PackedWeights(weights, PackedFormat(product.k, product.n))
    return Choice(lambda _: _emit(site, packed), site.epilogue.place)


def _emit(site: MatmulSite, weights: PackedWeights[PackedFormat]) -> Value:
    """The product of any activations with weights in panels, with the bias and the post-ops of the group."""
    lowering, epilogue = site.lowering, site.epilogue
    a = lowering.value(site.op.inputs[0].id)
    product = site.product(a if _takes(weights.format, a.dtype) else lowering.dense(a))
    shape = product.shape
    parts = k_parts(prod(shape[:-1]), product.n, product.k, weights.format.dtype)
    if parts > 1:
        sums = lowering.temporary((parts, *epilogue.place.shape))
        lowering.emit(weights.format.matmul(product.problem(), parts=parts), [product.a, weights.panels, sums])
        emit_sum_of_parts(lowering, site.group, sums, site.bias, epilogue.place, epilogue.name)
        return epilogue.place
    own = epilogue.strides_in(shape)
    fused = None if own is None else site.find_post_ops(product.n, epilogue.place)
    if fused is None:
        tail = epilogue.tail(needs_scratch=own is None)
    else:
        tail = fused.tail(epilogue.place, site.group.ops, dense_strides(shape)[:-1])
    call = weights.format.matmul(product.problem(own), tail.post_ops)
    lowering.emit(call, [product.a, weights.panels, *tail.args], tail.name)
    return epilogue.place


def _takes(weights_format: PackedFormat, dtype: DataType) -> bool:
    """Whether activations of this type are multiplied as they are."""
    return dtype is DataType.F32 if weights_format.dtype == "f32" else dtype in FLOATS


def _dense_order(b: Value, strides: Sequence[int]) -> tuple[int, int]:
    """Row and column stride, in a dense copy of `b`, of the matrix that had `strides` in it."""
    seen = dict(zip(b.strides, dense_strides(b.shape), strict=True))
    return seen.get(strides[-2], 0), seen.get(strides[-1], 0)


def move_panels(lowering: Lowering, source: Value, place: Value) -> None:
    """Bring f32 weights into panels, out of them, or copy panels as they are.

    Raises UnsupportedError where both sides are panels, of another order.
    """
    panels = source.panels or place.panels
    if panels is None or (source.panels and place.panels and source.panels != place.panels):
        raise UnsupportedError(explain("panels of one order to panels of another", hint="reorder to strided between"))
    if source.panels == place.panels:
        lowering.emit(copy((source.buffer.nbytes,), (1,), (1,), 1), [source, place])
        return
    plain = source if source.panels is None else place
    (rows, cols), strides = plain.shape, plain.strides
    k, n, strides = (cols, rows, strides[::-1]) if panels.is_transposed else (rows, cols, strides)
    weights = PackedFormat(k, n)
    lowering.emit((weights.pack if source.panels is None else weights.unpack)(strides), [source, place])
