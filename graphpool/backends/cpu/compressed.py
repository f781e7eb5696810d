"""Products with constant weights of 8 or 4 bits, which a Dequantize in front of them turns into floats.

The Dequantize is not computed: the kernel reads numbers, scales and zero points packed once, which the constant
tensor cache keeps. Where it keeps none they are packed into a temporary at every execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._kernels.gemm.compressed import BITS, CompressedFormat
from ..._kernels.gemm.post_ops import PostOps
from ..._kernels.gemm.problem import MatmulProblem
from ..._kernels.image.window import merged_stride
from ...typing import DataType, dense_strides
from .choices import forced
from .weights import as_matrix, matmul_post_ops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...graph.op import Op
    from ...graph.view import GraphView
    from .epilogue import Epilogue
    from .groups import Group
    from .lowering import Lowering, Value

__all__ = ["find_compressed", "lower_compressed"]

_LARGEST_ZERO = 255
"""Zero points up to this in magnitude are 9-bit integers, which kernels take."""

_ACTIVATIONS = frozenset({DataType.F32, DataType.BF16, DataType.F16})


def find_compressed(
    view: GraphView,
    number: int,
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    constants: frozenset[int],
) -> int | None:
    """Number of the Dequantize in front of the weights of a product, where kernels read them as they are."""
    op = view.ops[number]
    if op.kind != "MatMul" or op.inputs[0].dtype not in _ACTIVATIONS or forced("MatMul") == "blas":
        return None
    tensor = op.inputs[1]
    source = view.producer.get(tensor.id)
    if source is None or tensor.id in outputs or view.consumers[tensor.id] != [(number, 1)]:
        return None
    front = view.ops[source]
    is_known = all(port.id in constants for port in front.inputs)
    if not is_known or front.kind not in ("Dequantize", "DynamicDequantize") or front.inputs[0].dtype.value not in BITS:
        return None
    shape = shapes[tensor.id]
    if len(shape) != 2 or 0 in (*shape, *shapes[op.outputs[0].id]):
        return None
    return source if _Scheme.find(front, shapes, is_transposed=op.attrs["transpose_b"]) else None


@dataclass(frozen=True)
class _Scheme:
    """How scales lie over weights k x n.

    Attributes
    ----------
    group : int or None
        Rows of a scale; None for all.
    strides : (int, int)
        Of scales and zero points, over groups and columns.
    zero : int or None
        The zero point of all weights; None where each scale has its own.
    """

    group: int | None
    strides: tuple[int, int]
    zero: int | None

    @classmethod
    def find(cls, op: Op, shapes: Mapping[int, tuple[int, ...]], *, is_transposed: bool) -> _Scheme | None:
        """The scheme of a Dequantize of weights whose rows are the second axis if they are transposed."""
        rows, cols = (1, 0) if is_transposed else (0, 1)
        shape = shapes[op.inputs[0].id]
        if op.attrs["qtype"] == "per_group":
            found = _groups(op.attrs["group_shape"], shape, rows, cols)
        else:
            count = len(op.attrs["scales"]) if op.kind == "Dequantize" else prod(shapes[op.inputs[1].id])
            is_along = op.attrs["qtype"] == "per_channel" and op.attrs["axis"] % 2 == cols and count == shape[cols]
            found = (None, (0, 0)) if count == 1 else (None, (0, 1)) if is_along else None
        is_known, zero = _zero_of(op)
        return cls(*found, zero) if found is not None and is_known else None


def _groups(
    group_shape: Sequence[int], shape: Sequence[int], rows: int, cols: int
) -> tuple[int | None, tuple[int, int]] | None:
    """Rows of a group and strides over the dense array of groups, where a group is of one column or of all."""
    counts = [dim // size for dim, size in zip(shape, group_shape, strict=True)]
    strides = dense_strides(counts)
    if counts[cols] not in (1, shape[cols]) or (group_shape[rows] % 8 and counts[rows] > 1):
        return None
    own = tuple(0 if counts[axis] == 1 else strides[axis] for axis in (rows, cols))
    return group_shape[rows], (own[0], own[1])


def _zero_of(op: Op) -> tuple[bool, int | None]:
    """Whether kernels take the zero points of a Dequantize, and the one of all weights."""
    if op.kind == "DynamicDequantize":
        return (True, 0) if len(op.inputs) < 3 else (op.inputs[2].dtype.value in BITS, None)
    zeros = [int(zero) for zero in op.attrs.get("zps") or [0]]
    return max(map(abs, zeros)) <= _LARGEST_ZERO, zeros[0] if len(set(zeros)) == 1 else None


def lower_compressed(lowering: Lowering, group: Group, bias: Value | None, epilogue: Epilogue) -> None:
    """The product of the group with the weights as they are, with its bias and post-ops."""
    op, front = group.anchor, group.compressed
    assert op is not None
    assert front is not None
    scheme = _Scheme.find(front, lowering.shapes, is_transposed=op.attrs["transpose_b"])
    assert scheme is not None
    weights = lowering.value(front.inputs[0].id)
    (k, n), strides = as_matrix(weights, transpose=op.attrs["transpose_b"], is_left=False)
    compressed = CompressedFormat(k, n, weights.dtype.value, group=scheme.group, zero=scheme.zero)

    def fill(packed: Value) -> None:
        kinds, values = _numbers(lowering, front, scheme)
        lowering.emit(compressed.pack(strides, **kinds), [weights, *values, packed])

    packed = lowering.packed_constant([lowering.value(port.id) for port in front.inputs], compressed.nbytes, fill)
    lowering.read_packed(packed, lambda: _emit(lowering, group, compressed, packed, bias, epilogue))


def _numbers(lowering: Lowering, op: Op, scheme: _Scheme) -> tuple[dict[str, Any], list[Value]]:
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
    lowering: Lowering, group: Group, weights: CompressedFormat, packed: Value, bias: Value | None, epilogue: Epilogue
) -> None:
    """The product with packed weights."""
    a, m, strides = _rows(lowering, group)
    rows, place = (weights.n,), epilogue.place
    fused = matmul_post_ops(lowering, group, weights.n, bias, place) if place.is_dense else None
    if fused is None:
        post_ops = PostOps(epilogue=epilogue.block, dst_needs_scratch=not epilogue.is_dense_f32)
        values = [place, *epilogue.operands]
    else:
        post_ops = fused.post_ops(rows if fused.residual is not None else None)
        values = [*fused.operands, place]
    call = weights.matmul(MatmulProblem((), m, weights.n, weights.k, strides, rows), post_ops)
    lowering.emit(call, [a, packed, *values], epilogue.name)


def _rows(lowering: Lowering, group: Group) -> tuple[Value, int, tuple[int, int]]:
    """The activations in f32 as rows of one matrix: where they lie, how many there are, and their strides."""
    op = group.anchor
    assert op is not None
    a = lowering.typed(lowering.value(op.inputs[0].id))
    shape, strides = as_matrix(a, transpose=op.attrs["transpose_a"], is_left=True)
    rows = merged_stride(list(zip(shape[:-1], strides[:-1], strict=True)))
    if rows is None:
        a = lowering.dense(a._replace(shape=shape, strides=strides))
        rows, strides = shape[-1], a.strides
    return a, prod(shape[:-1]), (rows, strides[-1])
