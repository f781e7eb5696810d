"""Matrix products as kernels see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool.fork import cached_property

from ...._kernels.gemm.problem import MatmulProblem
from ....graph.shapes import broadcast_shapes
from ....typing import dense_strides
from ..lower.epilogue import Epilogue, make_epilogue
from ..lower.post_ops import FusedPostOps, find_post_ops
from .choice import Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..lower.values import Value

__all__ = ["MatmulSite", "Product", "as_matrix"]


@dataclass(frozen=True)
class Product:
    """A batch of products of two matrices, each with the strides of its batch axes, then of rows and columns.

    The batch is that after broadcasting. Unit of the strides: elements.
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Value
    b: Value
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]

    @classmethod
    def of(cls, op: Op, a: Value, b: Value) -> Product:
        """The operands as matrices where they lie."""
        a_shape, a_strides = as_matrix(a, transpose=op.attrs["transpose_a"], is_left=True)
        b_shape, b_strides = as_matrix(b, transpose=op.attrs["transpose_b"], is_left=False)
        ndim, batch = max(len(a_shape), len(b_shape)), broadcast_shapes(a_shape[:-2], b_shape[:-2])
        assert not isinstance(batch, int)  # the shape rule refuses those that clash
        return cls(
            batch,
            a_shape[-2],
            b_shape[-1],
            a_shape[-1],
            a,
            b,
            (*_batch_strides(a_shape, a_strides, ndim), *a_strides[-2:]),
            (*_batch_strides(b_shape, b_strides, ndim), *b_strides[-2:]),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result: (batch..., m, n)."""
        return *self.batch, self.m, self.n

    @property
    def has_one_b(self) -> bool:
        """Whether b is one matrix for the whole batch, and nothing is empty."""
        return not any(self.b_strides[:-2]) and 0 not in (*self.batch, self.m, self.n, self.k)

    def problem(self, strides: Sequence[int] | None = None, zero_point: int = 0, *, threads: int = 1) -> MatmulProblem:
        """What the product asks of its kernel; `strides` are those of the result, dense by default. Unit: elements."""
        c_strides = (strides or dense_strides(self.shape))[:-1]
        dtype = self.a.dtype.value
        return MatmulProblem(self.batch, self.m, self.n, self.k, self.a_strides, c_strides, dtype, zero_point, threads)


def as_matrix(value: Value, *, transpose: bool, is_left: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand with at least two axes: (..., m, k) on the left, (..., k, n) on the right."""
    shape, strides = value.shape, value.strides
    if len(shape) == 1:
        return ((1, *shape), (0, *strides)) if is_left else ((*shape, 1), (*strides, 0))
    if transpose:
        return (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    return shape, strides


@dataclass(frozen=True)
class MatmulSite(Site):
    """A matrix product with the ops behind it, while it is lowered."""

    def product(self, a: Value | None = None) -> Product:
        """The operands where they lie, the activations perhaps elsewhere."""
        a = self.lowering.value(self.op.inputs[0].id) if a is None else a
        return Product.of(self.op, a, self.lowering.any_value(self.op.inputs[1].id))

    @cached_property
    def epilogue(self) -> Epilogue:
        """What runs on the results, with the bias; all floating-point implementations write to its place."""
        is_whole = min(len(self.lowering.shapes[tensor.id]) for tensor in self.op.inputs[:2]) > 1
        return make_epilogue(self.lowering, self.group, self.bias, gaps=is_whole and self.group.compressed is None)

    def find_post_ops(self, cols: int, place: Value) -> FusedPostOps | None:
        """The post-ops that the product's kernel can fuse, whose columns must be the last axis of the result."""
        if place.shape[-1:] != (cols,):
            return None
        group, axis = self.group, len(place.shape) - 1
        is_quantized = bool(group.dequantized)
        return find_post_ops(
            self.lowering, group.ops, group.reached(), place, self.bias, axis, is_quantized=is_quantized
        )


def _batch_strides(shape: Sequence[int], strides: Sequence[int], ndim: int) -> list[int]:
    """Strides of the batch axes, 0 where the operand is broadcast."""
    own = [0 if dim == 1 else stride for dim, stride in zip(shape[:-2], strides[:-2], strict=True)]
    return [0] * (ndim - len(shape)) + own
