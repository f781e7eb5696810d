"""Constant weights of 8 or 4 bits in front of products and convolutions, and how their scales lie over them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

from ...._kernels.gemm.compressed import BITS
from ....typing import DataType, dense_strides
from ..choices import forced
from ..support import FLOATS, is_elementwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....graph.op import Op
    from ....graph.view import GraphView

__all__ = ["Scheme", "find_compressed"]


_LARGEST_ZERO = 255
"""Zero points up to this in magnitude are 9-bit integers, which kernels take."""


def find_compressed(
    view: GraphView,
    number: int,
    shapes: Mapping[int, tuple[int, ...]],
    outputs: set[int],
    constants: frozenset[int],
) -> int | None:
    """Number of the Dequantize in front of the weights of a product, where kernels read them as they are.

    Likewise of a convolution, transposed or not, whose weights are dequantised where they are packed.
    """
    op = view.ops[number]
    is_convolution = op.kind in ("Convolution", "ConvTranspose")
    if not (is_convolution or op.kind == "MatMul") or op.inputs[0].dtype not in FLOATS or forced(op.kind) == "blas":
        return None
    tensor = op.inputs[1]
    source = view.producer.get(tensor.id)
    if source is None or tensor.id in outputs or view.consumers[tensor.id] != [(number, 1)]:
        return None
    front = view.ops[source]
    is_known = all(port.id in constants for port in front.inputs)
    if not is_known or front.kind not in ("Dequantize", "DynamicDequantize") or front.inputs[0].dtype.value not in BITS:
        return None
    if is_convolution:
        return source if is_elementwise(front) and tensor.dtype is DataType.F32 else None
    shape = shapes[tensor.id]
    if len(shape) != 2 or 0 in (*shape, *shapes[op.outputs[0].id]):
        return None
    return source if Scheme.find(front, shapes, is_transposed=op.attrs["transpose_b"]) else None


@dataclass(frozen=True)
class Scheme:
    """How scales lie over weights k x n.

    `group`: rows of a scale, None for all; `strides` of scales and zero points over groups and columns; `zero`: the
    zero point of all weights, None where each scale has its own.
    """

    group: int | None
    strides: tuple[int, int]
    zero: int | None

    @classmethod
    def find(cls, op: Op, shapes: Mapping[int, tuple[int, ...]], *, is_transposed: bool) -> Scheme | None:
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
        if len(op.inputs) < 3:
            return True, 0
        zero = op.inputs[2].value
        return op.inputs[2].dtype.value in BITS, None if zero is None else int(zero)
    zeros = [int(zero) for zero in op.attrs.get("zps") or [0]]
    return max(map(abs, zeros)) <= _LARGEST_ZERO, zeros[0] if len(set(zeros)) == 1 else None
