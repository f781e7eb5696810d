"""Products with constant weights of 8 or 4 bits, which a Dequantize in front of them turns into floats.

The Dequantize is not computed: the kernel reads numbers, scales and zero points packed once, which the constant
tensor cache keeps. Where it keeps none they are packed into a temporary at every execution.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._kernels.gemm.compressed import CompressedFormat
from ...._kernels.gemm.problem import MatmulProblem
from ...._kernels.image.window import merged_stride
from ..match.compressed import Scheme
from .weights import as_matrix, matmul_post_ops

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.epilogue import Epilogue
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup

__all__ = ["lower_compressed"]


def lower_compressed(lowering: Lowering, group: AnchorGroup, bias: Value | None, epilogue: Epilogue) -> None:
    """The product of the group with the weights as they are, with its bias and post-ops."""
    op, front = group.anchor, group.compressed
    assert front is not None
    scheme = Scheme.find(front, lowering.shapes, is_transposed=op.attrs["transpose_b"])
    assert scheme is not None
    weights = lowering.value(front.inputs[0].id)
    (k, n), strides = as_matrix(weights, transpose=op.attrs["transpose_b"], is_left=False)
    compressed = CompressedFormat(k, n, weights.dtype.value, group=scheme.group, zero=scheme.zero)

    def fill(packed: Value) -> None:
        kinds, values = _numbers(lowering, front, scheme)
        lowering.emit(compressed.pack(strides, **kinds), [weights, *values, packed])

    packed = lowering.packed_constant([lowering.value(port.id) for port in front.inputs], compressed.nbytes, fill)
    lowering.read_packed(packed, lambda: _emit(lowering, group, compressed, packed, bias, epilogue))


def _numbers(lowering: Lowering, op: Op, scheme: Scheme) -> tuple[dict[str, Any], list[Value]]:
    """Scales and zero points: their types and strides as packing takes them, and where they lie."""
    if op.kind == "Dequantize":
        found = [lowering.literal(np.asarray(op.attrs["scales"], np.float32))]
        if scheme.zero is None:
            found.append(lowering.literal(np.asarray(op.attrs["zps"], np.float32)))
    else:
        found = [lowering.dense(lowering.value(port.id), port.dtype) for port in op.inputs[1:]]
    strides = [scheme.strides if prod(value.shape) > 1 else (0, 0) for value in found]
    kinds = {n: (v.dtype.value, own) for n, v, own in zip(("scales", "zeros"), found, strides, strict=False)}
    return kinds, found


def _emit(
    lowering: Lowering,
    group: AnchorGroup,
    weights: CompressedFormat,
    packed: Value,
    bias: Value | None,
    epilogue: Epilogue,
) -> None:
    """The product with packed weights."""
    a, m, strides = _rows(lowering, group)
    rows, place = (weights.n,), epilogue.place
    fused = matmul_post_ops(lowering, group, weights.n, bias, place) if place.is_dense else None
    if fused is None:
        tail = epilogue.tail(needs_scratch=not epilogue.is_dense_f32)
    else:
        tail = fused.tail(place, group.ops, rows)
    call = weights.matmul(MatmulProblem((), m, weights.n, weights.k, strides, rows), tail.post_ops)
    lowering.emit(call, [a, packed, *tail.args], tail.name)


def _rows(lowering: Lowering, group: AnchorGroup) -> tuple[Value, int, tuple[int, int]]:
    """The activations in f32 as rows of one matrix: where they lie, how many there are, and their strides."""
    op = group.anchor
    a = lowering.typed(lowering.value(op.inputs[0].id))
    shape, strides = as_matrix(a, transpose=op.attrs["transpose_a"], is_left=True)
    rows = merged_stride(list(zip(shape[:-1], strides[:-1], strict=True)))
    if rows is None:
        a = lowering.dense(a._replace(shape=shape, strides=strides))
        rows, strides = shape[-1], a.strides
    return a, prod(shape[:-1]), (rows, strides[-1])
