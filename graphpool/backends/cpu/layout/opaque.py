"""Opaque layouts: arrangements that the compiler chooses, named by a number that users only pass on.

A layout id is ``(number of the layout << 4) | BACKEND_ID``, as oneDNN Graph forms it. There are two sorts. "Padded
rows" starts every row of the last axis of a result on a cache line: kernels that split rows over threads then never
share a line, and aligned vector loads stay aligned in every row. The others are how kernels read constant weights
(`packed.py`); their number holds the kind of layout, the instruction set, a version, and what the kind needs beside
type and shape.

How many bytes such a tensor takes follows from its layout id, type and shape, and is never taken from anyone.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...._kernels.core._dispatch import isas
from ....errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain
from ....typing import LayoutType
from .packed import LAYOUTS, WeightLayout

if TYPE_CHECKING:
    from ....graph.logical_tensor import LogicalTensor

__all__ = ["PADDED_ROWS", "choose_layout", "layout_id_of", "opaque_nbytes", "strides_of", "weight_layout_of"]

BACKEND_ID = 1
PADDED_ROWS = (1 << 4) | BACKEND_ID
LINE_NBYTES = 64
_MOST_NBYTES = 2**62

ISAS = ("generic", "neon", "avx2", "avx2_vnni", "avx512", "avx512_bf16", "neon_dotprod", "avx512_amx")
"""By their number in ids: new ones come last."""

VERSION = 4
"""Of all layouts of weights: another one where kernels of a set of instructions read other bytes than before."""

_KIND_BITS, _ISA_BITS, _VERSION_BITS = 4, 4, 6


def choose_layout(tensor: LogicalTensor) -> LogicalTensor:
    """An ``any`` result with its layout settled: padded rows where rows would straddle lines, else dense."""
    shape = tensor.shape or ()
    if tensor.dtype.bits < 8 or len(shape) < 2 or prod(shape) == 0:
        return tensor.replace(layout="strided")
    row_nbytes = tensor.dtype.nbytes(shape[-1])
    if prod(shape[:-1]) == 1 or row_nbytes % LINE_NBYTES == 0 or not _fits_padded(tensor):
        return tensor.replace(layout="strided")
    return tensor.replace(layout=LayoutType.OPAQUE, layout_id=PADDED_ROWS)


def layout_id_of(layout: WeightLayout) -> int | None:
    """The id of weights in a layout of the best instruction set; None where a field does not fit."""
    number = layout.number
    if number is None:
        return None
    for value, bits in ((VERSION, _VERSION_BITS), (ISAS.index(isas()[-1]), _ISA_BITS), (layout.kind, _KIND_BITS)):
        number = number << bits | value
    return number << 4 | BACKEND_ID


def opaque_nbytes(tensor: LogicalTensor) -> int | None:
    """Size of an opaque tensor of known shape; None where its layout id is another backend's.

    Raises InvalidArgumentError where it is not one that this backend gave out, for such a tensor and this processor.
    """
    if (tensor.layout_id or 0) & 15 != BACKEND_ID:
        return None
    layout = weight_layout_of(tensor)
    if layout is not None:
        return layout.nbytes
    strides = strides_of(tensor)
    return strides[0] * (tensor.shape or ())[0] * tensor.dtype.bits // 8


def weight_layout_of(tensor: LogicalTensor) -> WeightLayout | None:
    """How weights lie in an opaque tensor; None for other layouts.

    Raises InvalidArgumentError for another instruction set, another version, or what cannot hold such a tensor.
    """
    number = (tensor.layout_id or 0) >> 4
    found = []
    for bits in (_KIND_BITS, _ISA_BITS, _VERSION_BITS):
        found.append(number & ((1 << bits) - 1))
        number >>= bits
    kind, isa, version = found
    if tensor.layout is not LayoutType.OPAQUE or tensor.layout_id == PADDED_ROWS:
        return None
    if kind not in LAYOUTS or (tensor.layout_id or 0) & 15 != BACKEND_ID:
        raise _unknown(tensor)
    if version != VERSION:
        raise _unknown(tensor, f"{tensor.layout_id} of version {version}")
    if isa >= len(ISAS) or ISAS[isa] != isas()[-1]:
        raise _foreign(tensor, ISAS[isa] if isa < len(ISAS) else "unknown")
    layout = None
    if tensor.is_shape_known and 0 not in (tensor.shape or ()):
        try:
            layout = LAYOUTS[kind].decode(number, tensor.dtype, tensor.shape or ())
        except (InvalidArgumentError, InvalidShapeError, UnsupportedError) as error:
            raise _unknown(tensor) from error
    if layout is None or layout.nbytes > _MOST_NBYTES:
        raise _unknown(tensor)
    return layout


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


def _unknown(tensor: LogicalTensor, got: str | None = None) -> InvalidArgumentError:
    return InvalidArgumentError(
        explain(
            f"tensor {tensor.id}: layout id",
            accepted="one that query_logical_tensor of a compiled partition gave, for this tensor, by a graphpool with "
            f"version {VERSION} of packed weights",
            got=got or f"{tensor.layout_id} for {tensor.dtype} {tensor.shape}",
            hint="pack the plain weights",
        ),
        tensor_id=tensor.id,
    )


def _foreign(tensor: LogicalTensor, isa: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        explain(
            f"tensor {tensor.id}: layout id of weights packed for another instruction set",
            accepted=isas()[-1],
            got=isa,
            hint=f"Reorder it to strided where it was packed, or set GRAPHPOOL_MAX_ISA={isa} if the processor has it",
        ),
        tensor_id=tensor.id,
        isa=isa,
    )
