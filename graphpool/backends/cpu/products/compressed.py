"""Products with constant weights of 8 or 4 bits, which a Dequantize in front of them turns into floats.

The Dequantize is not computed: the kernel reads numbers, scales and zero points packed once, by the user or for the
constant tensor cache. Where that keeps none they are packed into a temporary at every execution.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...._kernels.gemm.compressed import CompressedFormat
from ...._kernels.gemm.problem import MatmulProblem
from ...._kernels.image.window import merged_stride
from ..layout.packed import NumberWeights, ScaleWeights, ZeroWeights
from ..match.compressed import Scheme
from .choice import Choice
from .matmul_problem import MatmulSite, as_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..layout.packed import WeightLayout
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
    weights, is_transposed = lowering.any_value(front.inputs[0].id), op.attrs["transpose_b"]
    k, n = weights.shape[::-1] if is_transposed else weights.shape
    compressed = CompressedFormat(k, n, weights.dtype.value, group=scheme.group, zero=scheme.zero)
    values, packed = _place_parts(lowering, front, scheme, compressed, is_transposed)
    return Choice(lambda _: _emit(site, compressed, values), place, packed, is_filled=True)


def _place_parts(
    lowering: Lowering, front: Op, scheme: Scheme, compressed: CompressedFormat, is_transposed: bool
) -> tuple[list[Value], Value | None]:
    """Numbers, scales and perhaps zero points as the kernel reads them, and the constant that is packed of plain ones.

    Scales that the op holds are literals; others have a layout of their own unless they are broadcast.
    """
    kinds = (NumberWeights, ScaleWeights, ZeroWeights)[: 3 if scheme.zero is None else 2]
    values: list[Value] = []
    plain: list[tuple[int, WeightLayout]] = []
    for k, kind in enumerate(kinds):
        if k and front.kind == "Dequantize":
            values.append(_literal(lowering, front, compressed, is_zeros=k > 1))
            continue
        value = lowering.any_value(front.inputs[k].id)
        layout: WeightLayout = kind(compressed, is_transposed and len(value.shape) > 1)
        is_own = k == 0 or _has_own_layout(value.shape, compressed, is_transposed)
        if is_own and lowering.find_given(front.inputs[k].id, [layout]) is not None:
            values.append(value.as_bytes)
            continue
        values.append(lowering.value(front.inputs[k].id))
        plain.append((k, layout if k == 0 else kind(compressed, False)))
    if not plain:
        return values, None

    def fill(packed: Value) -> None:
        offset = 0
        for k, layout in plain:
            source = values[k]
            if k:
                strides = scheme.strides if prod(source.shape) > 1 else (0, 0)
                shape = compressed.ngroups, compressed.n
                source = lowering.dense(source)._replace(shape=shape, strides=strides)
            lowering.pack(layout, source, packed._replace(offset=offset))
            offset += layout.nbytes

    packed, offset = lowering.packed_constant([values[k] for k, _ in plain], sum(p.nbytes for _, p in plain), fill), 0
    for k, layout in plain:
        values[k] = packed._replace(offset=offset)
        offset += layout.nbytes
    return values, packed


def _has_own_layout(shape: Sequence[int], compressed: CompressedFormat, is_transposed: bool) -> bool:
    """Whether there is a scale of its own for each group and column."""
    own = (compressed.ngroups, compressed.n)
    return tuple(shape) == (own[::-1] if is_transposed else own) or (own[0] == 1 and tuple(shape) == own[1:])


def _literal(lowering: Lowering, front: Op, compressed: CompressedFormat, *, is_zeros: bool) -> Value:
    """The scales or zero points of a Dequantize, one for each column, as the kernel reads them."""
    row = np.zeros(compressed.cols, np.int16 if is_zeros else np.float32)
    row[: compressed.n] = np.asarray(front.attrs["zps" if is_zeros else "scales"]) + (
        compressed.half if is_zeros else 0
    )
    return lowering.literal(row.view(np.uint8))


def _emit(site: MatmulSite, weights: CompressedFormat, packed: Sequence[Value]) -> Value:
    """The product with packed numbers, scales and zero points."""
    a, m, strides = _rows(site)
    rows, epilogue = (weights.n,), site.epilogue
    fused = site.find_post_ops(weights.n, epilogue.place) if epilogue.place.is_dense else None
    if fused is None:
        tail = epilogue.tail(needs_scratch=not epilogue.is_dense_f32)
    else:
        tail = fused.tail(epilogue.place, site.group.ops, rows)
    problem = MatmulProblem((), m, weights.n, weights.k, strides, rows, threads=site.lowering.threads)
    call = weights.matmul(problem, tail.post_ops, int8=site.fpmath == "int8")
    site.lowering.emit(call, [a, *packed, *tail.args], tail.name)
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
