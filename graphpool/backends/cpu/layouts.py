"""Opaque layouts: arrangements that the compiler chooses, named by a number that users only pass on.

A layout id is ``(number of the layout << 4) | BACKEND_ID``, as oneDNN Graph forms it. There are two kinds.
"Padded rows" starts every row of the last axis on a cache line: kernels that split rows over threads then never share a
line, and aligned vector loads stay aligned in every row. "Panels" is how matrix products want constant weights; its
number says how wide the panels are, which belongs to the instruction set, and which axis of the weights is summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ..._kernels.packed import PackedFormat
from ...errors import InvalidArgumentError, explain
from ...typing import DataType, LayoutType

if TYPE_CHECKING:
    from ...graph.logical_tensor import LogicalTensor

__all__ = ["PADDED_ROWS", "Panels", "choose_layout", "choose_panels", "panels_of", "strides_of"]

BACKEND_ID = 1
PADDED_ROWS = (1 << 4) | BACKEND_ID
LINE_NBYTES = 64

_PANELS, _TRANSPOSED = 1 << 24, 1 << 23
"""Bits of the number of a layout in panels, above the columns of a panel."""


@dataclass(frozen=True)
class Panels:
    """Weights in panels.

    Attributes
    ----------
    is_transposed : bool
        Whether the last axis is the one that is summed.
    """

    is_transposed: bool


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


def choose_panels(tensor: LogicalTensor, panels: Panels) -> LogicalTensor:
    """A constant ``any`` weight of a matrix product with its layout settled to panels."""
    layout_id, nbytes = _panel_id(tensor, panels)
    return tensor.replace(layout=LayoutType.OPAQUE, layout_id=layout_id, nbytes=nbytes)


def _panel_id(tensor: LogicalTensor, panels: Panels) -> tuple[int, int]:
    """The layout id, and the size in bytes, of f32 weights in panels of the best instruction set."""
    rows, cols = tensor.shape or ()
    k, n = (cols, rows) if panels.is_transposed else (rows, cols)
    weights = PackedFormat(k, n)
    number = _PANELS | (_TRANSPOSED if panels.is_transposed else 0) | weights.panel
    return number << 4 | BACKEND_ID, weights.nbytes


def panels_of(tensor: LogicalTensor) -> Panels | None:
    """What the panels of a tensor hold; None for other layouts.

    Raises
    ------
    InvalidArgumentError
        The panels are those of another instruction set, or cannot hold such a tensor.
    """
    number = (tensor.layout_id or 0) >> 4
    if tensor.layout is not LayoutType.OPAQUE or not number & _PANELS:
        return None
    panels = Panels(bool(number & _TRANSPOSED))
    is_matrix = tensor.shape is not None and len(tensor.shape) == 2 and tensor.dtype is DataType.F32
    if not is_matrix or _panel_id(tensor, panels) != (tensor.layout_id, tensor.nbytes):
        raise _unknown(tensor)
    return panels


def strides_of(tensor: LogicalTensor) -> tuple[int, ...]:
    """Strides of a tensor in an opaque layout of this backend. Unit: elements.

    Raises
    ------
    InvalidArgumentError
        The layout id is not one that this backend gave out.
    """
    if tensor.layout_id != PADDED_ROWS or tensor.shape is None:
        raise _unknown(tensor)
    return _padded_strides(tensor.shape, tensor.dtype.bits // 8)


def _padded_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Row-major strides with the last axis padded to whole cache lines."""
    per_line = LINE_NBYTES // itemsize
    strides, step = [1], -(-shape[-1] // per_line) * per_line
    for dim in reversed(shape[:-1]):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def _unknown(tensor: LogicalTensor) -> InvalidArgumentError:
    return InvalidArgumentError(
        explain(
            f"tensor {tensor.id}: layout id",
            accepted="one that query_logical_tensor of a compiled partition gave, for this tensor and processor",
            got=tensor.layout_id,
        ),
        tensor_id=tensor.id,
    )
