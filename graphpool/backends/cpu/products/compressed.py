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
from .choice import Choice
from .matmul_problem import MatmulSite, as_matrix

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value

__all__ = ["find_compressed"]


def find_compressed(site: MatmulSite) -> Choice | None:
    """The product with the weights as they are, where `match.compressed` found that kernels take them."""
    lowering, op, front = site.lowering, site.op, site.group.compressed
    if front is None:
        return None
    scheme, place = Scheme.find(front, lowering.shapes, is_transposed=op.attrs["transpose_b"]), site.epilogue.place
    assert scheme is not None
    weights = lowering.value(front.inputs[0].id)
    (k, n), strides = as_matrix(weights, transpose=op.attrs["transpose_b"], is_left=False)
    compressed = CompressedFormat(k, n, weights.dtype.value, group=scheme.group, zero=scheme.zero)

    def fill(packed: Value) -> None:
        kinds, values = _numbers(lowering, front, scheme)
        lowering.emit(compressed.pack(strides, **kinds), [weights, *values, packed])

    packed = lowering.packed_constant([lowering.value(port.id) for port in front.inputs], compressed.nbytes, fill)
    return Choice(lambda _: _emit(site, compressed, packed), place, packed, is_filled=True)


def _numbers(lowering: Lowering, op: Op, scheme: Scheme) -> tuple[dict[str, Any], list[Value]]:
    """Scales and zero points: their types and strides as packing takes them, and where they lie."""
    if op.kind == "Dequantize":
        found = [lowering.literal(np.asarray(op.attrs["scales"], np.float32))]
        if scheme.zero is None:
            found.append(lowering.literal(np.asarray(op.attrs["zps"], np.float32)))
    else:
        ports = op.inputs[1 : 3 if scheme.zero is None else 2]
        found = [lowering.dense(lowering.value(port.id), port.dtype) for port in ports]
    strides = [scheme.strides if prod(value.shape) > 1 else (0, 0) for value in found]
    kinds = {n: (v.dtype.value, own) for n, v, own in zip(("scales", "zeros"), found, strides, strict=False)}
    return kinds, found


def _emit(site: MatmulSite, weights: CompressedFormat, packed: Value) -> Value:
    """The product with packed weights."""
    a, m, strides = _rows(site)
    rows, epilogue = (weights.n,), site.epilogue
    fused = site.find_post_ops(weights.n, epilogue.place) if epilogue.place.is_dense else None
    if fused is None:
        tail = epilogue.tail(needs_scratch=not epilogue.is_dense_f32)
    else:
        tail = fused.tail(epilogue.place, site.group.ops, rows)
    problem = MatmulProblem((), m, weights.n, weights.k, strides, rows)
    call = weights.matmul(problem, tail.post_ops, int8=site.fpmath == "int8")
    site.lowering.emit(call, [a, packed, *tail.args], tail.name)
    return epilogue.place


def _rows(site: MatmulSite) -> tuple[Value, int, tuple[int, int]]:
    """The activations in f32 as rows of one matrix: where they lie, how many there are, and their strides."""
    lowering, op = site.lowering, site.op
    a = lowering.typed(lowering.value(op.inputs[0].id))
    shape, strides = as_matrix(a, transpose=op.attrs["transpose_a"], is_left=True)
    rows = merged_stride(list(zip(shape[:-1], strides[:-1], strict=True)))
    if rows is None:
        a = lowering.dense(a._replace(shape=shape, strides=strides))
        rows, strides = shape[-1], a.strides
    return a, prod(shape[:-1]), (rows, strides[-1])
