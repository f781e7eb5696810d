"""Post-ops that packed kernels do on registers: a bias, a residual, a clamp, in this order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...._kernels.gemm.post_ops import PostOps
from ....graph.shapes import channel_axis
from ....typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....graph.op import Op
    from .lowering import Lowering
    from .values import Value

__all__ = ["FusedPostOps", "find_post_ops", "is_vector"]


@dataclass(frozen=True)
class FusedPostOps:
    """Post-ops of a kernel.

    Attributes
    ----------
    bias : Value or None
        One number for each column.
    residual : Value or None
        Lies as the result does.
    clamp : (float, float) or None
    """

    bias: Value | None = None
    residual: Value | None = None
    clamp: tuple[float, float] | None = None

    @property
    def operands(self) -> list[Value]:
        """Arguments of the kernel, in its order."""
        return [value for value in (self.bias, self.residual) if value is not None]

    def post_ops(
        self, residual_strides: Sequence[int] | None = None, *, epilogue: bytes = b"", dst_needs_scratch: bool = True
    ) -> PostOps:
        """What the kernel is asked; `residual_strides` where there is a residual."""
        return PostOps(
            bias=self.bias is not None,
            residual_strides=residual_strides,
            clamp=self.clamp,
            epilogue=epilogue,
            dst_needs_scratch=dst_needs_scratch,
        )


def find_post_ops(
    lowering: Lowering,
    ops: Sequence[Op],
    first: int,
    place: Value,
    bias: Value | None,
    axis: int,
    *,
    is_residual: Callable[[Value], bool] | None = None,
) -> FusedPostOps | None:
    """The ops behind a kernel that it can fuse, or None where they are others, or the result is not f32.

    Parameters
    ----------
    lowering : Lowering
    ops : sequence of Op
        In topological order.
    first : int
        Id of the tensor that the kernel's sums are.
    place : Value
        Where the result goes.
    bias : Value or None
        Added first.
    axis : int
        Of the columns.
    is_residual : callable, optional
        Whether the kernel can read an f32 addend of the result's shape as it lies; by default it must lie as `place`
        does, without gaps.
    """
    fused, value = FusedPostOps(bias), first
    if place.dtype is not DataType.F32:
        return None
    for op in ops:
        longer = _extend(lowering, fused, op, value, place, axis, is_residual)
        if longer is None or op.outputs[0].dtype is not DataType.F32:
            return None
        fused, value = longer, op.outputs[0].id
    return fused


def _extend(
    lowering: Lowering,
    fused: FusedPostOps,
    op: Op,
    value: int,
    place: Value,
    axis: int,
    is_residual: Callable[[Value], bool] | None,
) -> FusedPostOps | None:
    """The post-ops with one more op, if it is the next thing that the kernel can do."""
    if fused.clamp is not None:
        return None
    if op.kind in ("ReLU", "Clamp"):
        low, high = (0.0, math.inf) if op.kind == "ReLU" else (op.attrs["min"], op.attrs["max"])
        return replace(fused, clamp=(low, high)) if low <= high else None
    ids = [tensor.id for tensor in op.inputs]
    if op.kind not in ("Add", "BiasAdd") or ids.count(value) != 1:
        return None
    if not lowering.has_value(ids[1 - ids.index(value)]):
        return None  # it is computed from the product, on the tile
    return _extend_by(fused, op, lowering.value(ids[1 - ids.index(value)]), place, axis, is_residual)


def _extend_by(
    fused: FusedPostOps, op: Op, other: Value, place: Value, axis: int, is_residual: Callable[[Value], bool] | None
) -> FusedPostOps | None:
    """The post-ops with another addend."""
    is_first = fused.bias is None and fused.residual is None
    if op.kind == "BiasAdd":
        is_along = channel_axis(len(place.shape), op.attrs["data_format"]) == axis
        return replace(fused, bias=other) if is_first and is_along and is_vector(other, 0, other.shape) else None
    if is_first and is_vector(other, axis, place.shape):
        return replace(fused, bias=other)
    if fused.residual is not None or other.dtype is not DataType.F32 or other.shape != place.shape:
        return None
    fits = other.lies_in(place.order) if is_residual is None else is_residual(other)
    return replace(fused, residual=other) if fits else None


def is_vector(value: Value, axis: int, shape: Sequence[int]) -> bool:
    """Whether the value, broadcast to the shape, is one f32 number for each index of the axis, lying side by side."""
    skipped = len(shape) - len(value.shape)
    wanted = [shape[k] if k == axis else 1 for k in range(skipped, len(shape))]
    if skipped > axis or value.dtype is not DataType.F32 or list(value.shape) != wanted:
        return False
    return shape[axis] == 1 or value.strides[axis - skipped] == 1
