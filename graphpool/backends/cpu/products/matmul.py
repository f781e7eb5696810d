"""MatMul."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._kernels.gemm.matmul import matmul
from ..choices import forced
from ..lower.epilogue import make_epilogue
from ..lower.integers import operands
from ..match.integers import exact_depth
from ..support import rule
from .compressed import lower_compressed
from .int8_matmul import emit_int8_matmul, find_int8_weights
from .weights import Product, as_matrix, emit_packed, find_packed, given_panels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..lower.epilogue import Epilogue
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import Group


@rule("MatMul", is_anchor=True)
def lower_matmul(lowering: Lowering, group: Group) -> None:
    """One product with the bias and the post-ops behind it."""
    op = group.anchor
    assert op is not None
    bias = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    if group.dequantized and _lower_int8(lowering, group, bias):
        return
    is_whole = min(len(lowering.shapes[tensor.id]) for tensor in op.inputs[:2]) > 1
    epilogue = make_epilogue(lowering, group, bias, gaps=is_whole and group.compressed is None)
    if group.compressed is not None:
        lower_compressed(lowering, group, bias, epilogue)
        lowering.finish(group.result, epilogue.place)
        return
    if group.dequantized:
        emit_plain(lowering, group, epilogue)
        lowering.finish(group.result, epilogue.place)
        return
    a, b = lowering.value(op.inputs[0].id), lowering.any_value(op.inputs[1].id)
    if b.panels is not None:
        emit_packed(lowering, group, find_product(op, lowering.dense(a), b), given_panels(b, op), bias, epilogue)
        lowering.finish(group.result, epilogue.place)
        return
    packed = find_packed(lowering, find_product(op, a, b))
    if packed is None:
        emit_plain(lowering, group, epilogue)
    else:
        with lowering.when_kept(packed.panels, True):
            a = a if packed.takes(a.dtype) else lowering.dense(a)
            emit_packed(lowering, group, find_product(op, a, b), packed, bias, epilogue)
        with lowering.when_kept(packed.panels, False):
            emit_plain(lowering, group, epilogue)
    lowering.finish(group.result, epilogue.place)


def _lower_int8(lowering: Lowering, group: Group, bias: Value | None) -> bool:
    """A product of quantised operands as one of bytes; whether its weights can be in panels."""
    assert group.anchor is not None
    a, b = (lowering.value(group.dequantized[port].inputs[0].id) for port in (0, 1))
    product = find_product(group.anchor, a, b)
    panels = find_int8_weights(lowering, group, product)
    if panels is None:
        return False
    place = lowering.target(group.result, any_strides=True)
    lowering.read_packed(panels.packed, lambda: emit_int8_matmul(lowering, group, product, panels, bias, place))
    lowering.finish(group.result, place)
    return True


def find_product(op: Op, a: Value, b: Value) -> Product:
    """The operands as matrices where they lie."""
    a_shape, a_strides = as_matrix(a, transpose=op.attrs["transpose_a"], is_left=True)
    b_shape, b_strides = as_matrix(b, transpose=op.attrs["transpose_b"], is_left=False)
    ndim = max(len(a_shape), len(b_shape))
    return Product(
        _broadcast(a_shape[:-2], b_shape[:-2]),
        a_shape[-2],
        b_shape[-1],
        a_shape[-1],
        a,
        b,
        (*batch_strides(a_shape, a_strides, ndim), *a_strides[-2:]),
        (*batch_strides(b_shape, b_strides, ndim), *b_strides[-2:]),
    )


def emit_plain(lowering: Lowering, group: Group, epilogue: Epilogue) -> None:
    """The product of operands as they lie, in f32, exact where they are integers."""
    assert group.anchor is not None
    a, b = operands(lowering, group)
    product = find_product(group.anchor, a, b)
    call = matmul(
        product.problem(epilogue.strides_in(product.shape)),
        product.b_strides,
        epilogue.post_ops(product.shape),
        impl=forced("MatMul"),
        exact_depth=exact_depth(group.dequantized),
    )
    lowering.emit(call, [a, b, epilogue.place, *epilogue.operands], epilogue.name)


def batch_strides(shape: Sequence[int], strides: Sequence[int], ndim: int) -> list[int]:
    """Strides of the batch axes, 0 where the operand is broadcast."""
    own = [0 if dim == 1 else stride for dim, stride in zip(shape[:-2], strides[:-2], strict=True)]
    return [0] * (ndim - len(shape)) + own


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    ndim = max(len(a), len(b))
    padded = ([1] * (ndim - len(dims)) + list(dims) for dims in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))
