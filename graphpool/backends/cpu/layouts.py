"""Opaque layouts: arrangements that the compiler chooses, named by a number that users only pass on.

A layout id is ``(number of the layout << 4) | BACKEND_ID``, as oneDNN Graph forms it. The one layout so far, "padded
rows", starts every row of the last axis on a cache line: kernels that split rows over threads then never share a line,
and aligned vector loads stay aligned in every row.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...errors import InvalidArgumentError, explain
from ...typing import LayoutType

if TYPE_CHECKING:
    from ...graph.logical_tensor import LogicalTensor

__all__ = ["PADDED_ROWS", "choose_layout", "strides_of"]

BACKEND_ID = 1
PADDED_ROWS = (1 << 4) | BACKEND_ID
LINE_NBYTES = 64


def choose_layout(tensor: LogicalTensor) -> LogicalTensor:
    """An ``any`` tensor with its layout settled: padded rows where rows would straddle lines, else dense."""
    shape = tensor.shape or ()
    if tensor.dtype.bits < 8 or len(shape) < 2 or prod(shape) == 0:
        return tensor.replace(layout="strided")
    row_nbytes = tensor.dtype.nbytes(shape[-1])
    if prod(shape[:-1]) == 1 or row_nbytes % LINE_NBYTES == 0:
        return tensor.replace(layout="strided")
    strides = _padded_strides(shape, tensor.dtype.bits // 8)
    nbytes = strides[0] * shape[0] * tensor.dtype.bits // 8
    return tensor.replace(layout=LayoutType.OPAQUE, layout_id=PADDED_ROWS, nbytes=nbytes)


def strides_of(tensor: LogicalTensor) -> tuple[int, ...]:
    """Strides of a tensor in an opaque layout of this backend. Unit: elements.

    Raises
    ------
    InvalidArgumentError
        The layout id is not one that this backend gave out.
    """
    if tensor.layout_id != PADDED_ROWS or tensor.shape is None:
        raise InvalidArgumentError(
            explain(
                f"tensor {tensor.id}: layout id",
                accepted="one that query_logical_tensor of a compiled partition gave",
                got=tensor.layout_id,
            ),
            tensor_id=tensor.id,
        )
    return _padded_strides(tensor.shape, tensor.dtype.bits // 8)


def _padded_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Row-major strides with the last axis padded to whole cache lines."""
    per_line = LINE_NBYTES // itemsize
    strides, step = [1], -(-shape[-1] // per_line) * per_line
    for dim in reversed(shape[:-1]):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))
