"""Opaque layouts: arrangements that the compiler chooses, named by a number that users only pass on.

A layout id is ``(number of the layout << 4) | BACKEND_ID``, as oneDNN Graph forms it. There are two kinds.
"Padded rows" starts every row of the last axis on a cache line: kernels that split rows over threads then never share a
line, and aligned vector loads stay aligned in every row. "Panels" is how matrix products want constant weights; its
number says how wide the panels are, which belongs to the instruction set, and which axis of the weights is summed.

How many bytes such a tensor takes follows from its layout id, type and shape, and is never taken from anyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...._kernels.core._dispatch import isas
from ...._kernels.gemm.packed import LANES, PackedFormat, lanes_of
from ....errors import InvalidArgumentError, explain
from ....typing import DataType, LayoutType

if TYPE_CHECKING:
    from ....graph.logical_tensor import LogicalTensor

__all__ = ["PADDED_ROWS", "Panels", "choose_layout", "choose_panels", "opaque_nbytes", "panels_of", "strides_of"]

BACKEND_ID = 1
PADDED_ROWS = (1 << 4) | BACKEND_ID
LINE_NBYTES = 64
_MOST_NBYTES = 2**62

_PANELS, _TRANSPOSED = 1 << 24, 1 << 23
"""Bits of the number of a layout in panels, above the columns of a panel."""


@dataclass(frozen=True)
class Panels:
    """Weights in panels; `is_transposed` where the last axis is the one that is summed."""

    is_transposed: bool


def choose_layout(tensor: LogicalTensor) -> LogicalTensor:
    """An ``any`` tensor with its layout settled: padded rows where rows would straddle lines, else dense."""
    shape = tensor.shape or ()
    if tensor.dtype.bits < 8 or len(shape) < 2 or prod(shape) == 0:
        return tensor.replace(layout="strided")
    row_nbytes = tensor.dtype.nbytes(shape[-1])
    if prod(shape[:-1]) == 1 or row_nbytes % LINE_NBYTES == 0 or not _fits_padded(tensor):
        return tensor.replace(layout="strided")
    return tensor.replace(layout=LayoutType.OPAQUE, layout_id=PADDED_ROWS)


def choose_panels(tensor: LogicalTensor, panels: Panels) -> LogicalTensor:
    """A constant ``any`` weight of a matrix product with its layout settled to panels."""
    return tensor.replace(layout=LayoutType.OPAQUE, layout_id=_panel_id(panels))


def opaque_nbytes(tensor: LogicalTensor) -> int | None:
    """Size of an opaque tensor of known shape; None where its layout id is another backend's.

    Raises InvalidArgumentError where it is not one that this backend gave out, for such a tensor and this processor.
    """
    if (tensor.layout_id or 0) & 15 != BACKEND_ID:
        return None
    panels = panels_of(tensor)
    if panels is not None:
        return _packed(tensor, panels).nbytes
    strides = strides_of(tensor)
    return strides[0] * (tensor.shape or ())[0] * tensor.dtype.bits // 8


def _panel_id(panels: Panels) -> int:
    """The layout id of f32 weights in panels of the best instruction set: it says how wide they are."""
    number = _PANELS | (_TRANSPOSED if panels.is_transposed else 0) | 2 * lanes_of(None)
    return number << 4 | BACKEND_ID


def _packed(tensor: LogicalTensor, panels: Panels) -> PackedFormat:
    """The kernels' layout of weights in panels."""
    rows, cols = tensor.shape or ()
    return PackedFormat(cols, rows) if panels.is_transposed else PackedFormat(rows, cols)


def panels_of(tensor: LogicalTensor) -> Panels | None:
    """What the panels of a tensor hold; None for other layouts.

    Raises InvalidArgumentError for panels of another instruction set, or that cannot hold such a tensor.
    """
    number = (tensor.layout_id or 0) >> 4
    if tensor.layout is not LayoutType.OPAQUE or not number & _PANELS:
        return None
    panels = Panels(bool(number & _TRANSPOSED))
    is_matrix = tensor.is_shape_known and tensor.ndim == 2 and tensor.dtype is DataType.F32
    if not is_matrix or tensor.layout_id != _panel_id(panels) or _packed(tensor, panels).nbytes > _MOST_NBYTES:
        raise _unknown(tensor)
    return panels


def strides_of(tensor: LogicalTensor) -> tuple[int, ...]:
    """Strides of a tensor in an opaque layout of this backend. Unit: elements.

    Raises InvalidArgumentError where the layout id is not one that this backend gave out for such a tensor.
    """
    if tensor.layout_id != PADDED_ROWS or not _fits_padded(tensor):
        raise _unknown(tensor)
    return _padded_strides(tensor.shape or (), tensor.dtype.bits // 8)


def _fits_padded(tensor: LogicalTensor) -> bool:
    """Whether rows of a tensor can be padded: it has rows, of whole bytes, and all of them are below 2**62 bytes."""
    shape = tensor.shape or ()
    return (
        tensor.is_shape_known
        and len(shape) > 1
        and tensor.dtype.bits >= 8
        and prod(filter(None, shape[:-1])) * (tensor.dtype.nbytes(shape[-1]) + LINE_NBYTES) <= _MOST_NBYTES
    )


def _padded_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Row-major strides with the last axis padded to whole cache lines."""
    per_line = LINE_NBYTES // itemsize
    strides, step = [1], -(-shape[-1] // per_line) * per_line
    for dim in reversed(shape[:-1]):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def _unknown(tensor: LogicalTensor) -> InvalidArgumentError:
    got = f"{tensor.layout_id} for {tensor.dtype} {tensor.shape}"
    columns = (tensor.layout_id or 0) >> 4 & (_TRANSPOSED - 1)
    if (tensor.layout_id or 0) >> 4 & _PANELS and columns != 2 * lanes_of(None):
        sets = [isa for isa, lanes in LANES.items() if columns == 2 * lanes]
        got += f", panels of {columns} columns ({', '.join(sets) or 'no instruction set'})"
    return InvalidArgumentError(
        explain(
            f"tensor {tensor.id}: layout id",
            accepted="one that query_logical_tensor of a compiled partition gave, for this tensor and instruction set "
            f"{isas()[-1]}",
            got=got,
        ),
        tensor_id=tensor.id,
    )
