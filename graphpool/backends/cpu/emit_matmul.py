"""MatMul."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._kernels.matmul import matmul
from ...typing import dense_strides
from .epilogue import make_epilogue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .groups import Group
    from .lowering import Lowering, Value

__all__ = ["RULES"]


def lower_matmul(lowering: Lowering, group: Group) -> None:
    """One product with the bias and the post-ops behind it."""
    op = group.anchor
    assert op is not None
    a, b = (lowering.typed(lowering.value(tensor.id)) for tensor in op.inputs[:2])
    bias = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    a_shape, a_strides = as_matrix(a, transpose=op.attrs["transpose_a"], is_left=True)
    b_shape, b_strides = as_matrix(b, transpose=op.attrs["transpose_b"], is_left=False)
    ndim = max(len(a_shape), len(b_shape))
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    batch = _broadcast(a_shape[:-2], b_shape[:-2])
    epilogue = make_epilogue(lowering, group, bias)
    c_strides = dense_strides([*batch, m, n])[:-1]
    call = matmul(
        batch,
        m,
        n,
        k,
        [*batch_strides(a_shape, a_strides, ndim), *a_strides[-2:]],
        [*batch_strides(b_shape, b_strides, ndim), *b_strides[-2:]],
        c_strides,
        epilogue=epilogue.block,
        dst_needs_scratch=not epilogue.is_dense_f32,
    )
    lowering.emit(call, [a, b, epilogue.place, *epilogue.operands], epilogue.name)
    lowering.finish(group.result, epilogue.place)


def as_matrix(value: Value, *, transpose: bool, is_left: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand with at least two axes: (..., m, k) on the left, (..., k, n) on the right."""
    shape, strides = value.shape, value.strides
    if len(shape) == 1:
        return ((1, *shape), (0, *strides)) if is_left else ((*shape, 1), (*strides, 0))
    if transpose:
        return (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    return shape, strides


def batch_strides(shape: Sequence[int], strides: Sequence[int], ndim: int) -> list[int]:
    """Strides of the batch axes, 0 where the operand is broadcast."""
    own = [0 if dim == 1 else stride for dim, stride in zip(shape[:-2], strides[:-2], strict=True)]
    return [0] * (ndim - len(shape)) + own


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    ndim = max(len(a), len(b))
    padded = ([1] * (ndim - len(dims)) + list(dims) for dims in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))


RULES = {"MatMul": lower_matmul}
