"""Constant weights of matrix products in panels, and the products that read them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...._kernels.gemm.packed import PackedFormat, k_parts
from ...._kernels.gemm.problem import MatmulProblem
from ...._kernels.move.move import copy
from ....errors import UnsupportedError, explain
from ....typing import DataType, PropertyType, dense_strides
from ..choices import allows_bf16, forced
from ..layout.opaque import Panels
from ..lower.epilogue import emit_sum_of_parts
from ..lower.post_ops import find_post_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op
    from ..lower.epilogue import Epilogue
    from ..lower.lowering import Lowering
    from ..lower.post_ops import FusedPostOps
    from ..lower.values import Value
    from ..match.groups import AnchorGroup

__all__ = [
    "PackedMatrix",
    "Product",
    "as_matrix",
    "emit_packed",
    "find_packed",
    "given_panels",
    "matmul_post_ops",
    "move_panels",
    "panels_wanted",
]

_FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})


@dataclass(frozen=True)
class Product:
    """A batch of products of two matrices, each with the strides of its batch axes, then of rows and columns.

    Attributes
    ----------
    batch : tuple of int
        After broadcasting.
    m, n, k : int
    a, b : Value
    a_strides, b_strides : tuple of int
        Unit: elements.
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Value
    b: Value
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result: (batch..., m, n)."""
        return *self.batch, self.m, self.n

    def problem(self, strides: Sequence[int] | None = None, zero_point: int = 0) -> MatmulProblem:
        """What the product asks of its kernel; `strides` are those of the result, dense by default. Unit: elements."""
        c_strides = (strides or dense_strides(self.shape))[:-1]
        dtype = self.a.dtype.value
        return MatmulProblem(self.batch, self.m, self.n, self.k, self.a_strides, c_strides, dtype, zero_point)


def as_matrix(value: Value, *, transpose: bool, is_left: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand with at least two axes: (..., m, k) on the left, (..., k, n) on the right."""
    shape, strides = value.shape, value.strides
    if len(shape) == 1:
        return ((1, *shape), (0, *strides)) if is_left else ((*shape, 1), (*strides, 0))
    if transpose:
        return (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    return shape, strides


@dataclass(frozen=True)
class PackedMatrix:
    """Weights in panels.

    Attributes
    ----------
    panels : Value
        Where they lie.
    dtype : {"f32", "bf16"}
        Of the panels.
    """

    panels: Value
    dtype: str

    def takes(self, dtype: DataType) -> bool:
        """Whether activations of this type are multiplied as they are."""
        return dtype is DataType.F32 if self.dtype == "f32" else dtype in _FLOATS


def find_packed(lowering: Lowering, product: Product) -> PackedMatrix | None:
    """The weights in panels, kept by the constant tensor cache.

    None where they are no constants or not one matrix, or where BLAS is forced, which does not read panels.
    """
    b, strides = product.b, product.b_strides
    if not lowering.is_constant(b) or b.dtype not in _FLOATS or forced("MatMul") == "blas":
        return None
    if any(strides[:-2]) or 0 in (*product.batch, product.m, product.n, product.k):
        return None
    types = {product.a.dtype, b.dtype}
    dtype = "bf16" if types == {DataType.BF16} or allows_bf16(lowering.fpmath, types) else "f32"
    weights = PackedFormat(product.k, product.n, dtype)

    def fill(panels: Value) -> None:
        is_read = b.dtype is DataType.F32 or b.dtype.value == dtype
        source, rows = (b, strides[-2:]) if is_read else (lowering.dense(b), _dense_order(b, strides))
        lowering.emit(weights.pack(rows, b_dtype=source.dtype.value), [source, panels])

    def restore(panels: Value) -> None:
        lowering.emit(weights.unpack(strides[-2:]), [panels, b])

    is_whole = b.dtype.value == dtype and b.buffer.nbytes == b.dtype.nbytes(product.k * product.n)
    return PackedMatrix(lowering.packed_constant([b], weights.nbytes, fill, restore if is_whole else None), dtype)


def panels_wanted(ops: Sequence[Op], tensor: LogicalTensor) -> Panels | None:
    """The panels in which the ops want an input: one that is the weights of one product, and nothing else."""
    users = [(op, port) for op in ops for port, source in enumerate(op.inputs) if source.id == tensor.id]
    if len(users) != 1 or users[0][0].kind != "MatMul" or users[0][1] != 1 or forced("MatMul") == "blas":
        return None
    is_constant = tensor.property is PropertyType.CONSTANT
    if not is_constant or tensor.dtype is not DataType.F32 or tensor.ndim != 2 or 0 in (tensor.shape or ()):
        return None
    return Panels(bool(users[0][0].attrs["transpose_b"]))


def given_panels(weights: Value, op: Op) -> PackedMatrix:
    """Weights that the user has brought into panels.

    Raises
    ------
    UnsupportedError
        They were made for a product that sums over the other axis.
    """
    assert weights.panels is not None
    if weights.panels.is_transposed != op.attrs["transpose_b"]:
        raise UnsupportedError(explain(f"{op.label}: panels", accepted="those of this op's transpose_b"), op_id=op.id)
    return PackedMatrix(weights, "f32")


def move_panels(lowering: Lowering, source: Value, place: Value) -> None:
    """Bring f32 weights into panels, out of them, or copy panels as they are.

    Raises
    ------
    UnsupportedError
        Both sides are panels, of another order.
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


def _dense_order(b: Value, strides: Sequence[int]) -> tuple[int, int]:
    """Row and column stride, in a dense copy of `b`, of the matrix that had `strides` in it."""
    seen = dict(zip(b.strides, dense_strides(b.shape), strict=True))
    return seen.get(strides[-2], 0), seen.get(strides[-1], 0)


def emit_packed(
    lowering: Lowering,
    group: AnchorGroup,
    product: Product,
    packed: PackedMatrix,
    bias: Value | None,
    epilogue: Epilogue,
) -> None:
    """The product of any activations with weights in panels, with the bias and the post-ops of the group."""
    shape = product.shape
    weights = PackedFormat(product.k, product.n, packed.dtype)
    parts = k_parts(prod(shape[:-1]), product.n, product.k, packed.dtype)
    if parts > 1:
        sums = lowering.temporary((parts, *epilogue.place.shape))
        lowering.emit(weights.matmul(product.problem(), parts=parts), [product.a, packed.panels, sums])
        emit_sum_of_parts(lowering, group, sums, bias, epilogue.place, epilogue.name)
        return
    own = epilogue.strides_in(shape)
    fused = None if own is None else matmul_post_ops(lowering, group, product.n, bias, epilogue.place)
    if fused is None:
        tail = epilogue.tail(needs_scratch=own is None)
    else:
        tail = fused.tail(epilogue.place, group.ops, dense_strides(shape)[:-1])
    call = weights.matmul(product.problem(own), tail.post_ops)
    lowering.emit(call, [product.a, packed.panels, *tail.args], tail.name)


def matmul_post_ops(
    lowering: Lowering, group: AnchorGroup, cols: int, bias: Value | None, place: Value
) -> FusedPostOps | None:
    """The post-ops that the product's kernel can fuse, whose columns must be the last axis of the result."""
    if place.shape[-1:] != (cols,):
        return None
    is_quantized = bool(group.dequantized)
    return find_post_ops(
        lowering, group.ops, group.reached(), place, bias, len(place.shape) - 1, is_quantized=is_quantized
    )
