"""Kernels that only move elements, whatever their type: strided copy, concatenation, triangles, positions."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

from graphpool._sizes import is_variable, largest, least
from graphpool.errors import InvalidShapeError, UnsupportedError, explain

from ..core.call import KernelCall, pack
from ..core.records import number
from ..core.spaces import collapse, normalise_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["concat", "copy", "gen_index", "triangle"]

_MAX_CONCAT = number("GP_MAX_CONCAT")

_TASK_NBYTES = 1 << 16
_TURN = number("GP_TURN")
"""Side of a square tile in which axes change places; half of it where elements have 8 bytes."""
_FEW_PLANES = number("GP_FEW_PLANES")
_ITEM_NBYTES = (1, 2, 4, 8)


def copy(
    shape: Sequence[int],
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    itemsize: int,
    *,
    isa: str | None = None,
) -> KernelCall:
    """Copy an array of any type between two layouts; arguments: src, dst.

    A stride of src may be 0 (broadcast), either may be negative: the caller passes pointers to the first element. No
    two points may share an element of dst. Elements have 1, 2, 4 or 8 bytes (UnsupportedError). Axes are walked in the
    order of dst; where another one is the innermost of src, squares of the two are turned in registers or L1, so that
    both sides see whole cache lines.
    """
    _check_itemsize(itemsize)
    axes = _paired_axes(collapse(shape, src_strides, dst_strides))
    tile = _tile(axes, itemsize)
    counts = [-(-axis[0] // step) for axis, step in zip(axes, tile + [1] * len(axes), strict=False)]
    tiles_per_task = largest(1, _TASK_NBYTES // (tile[0] * tile[1] * itemsize))
    values = {
        "item_nbytes": itemsize, "ndim": len(axes), "tile": tile, "tiles_per_task": tiles_per_task,
        "ntiles": math.prod(counts), "dims": [axis[0] for axis in axes],
        "src_strides": [axis[1] * itemsize for axis in axes], "dst_strides": [axis[2] * itemsize for axis in axes],
    }  # fmt: skip
    return pack("any_copy", values, ntasks=-(-math.prod(counts) // tiles_per_task), isa=isa)


def _paired_axes(axes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Axes (dim, src stride, dst stride) by dst stride, then the one of least src stride moved to the second place.

    Where that is the first one itself, the next one is the second, or if that is sure to be short the one behind it: a
    row that is repeated is copied with others like it.
    """
    axes = sorted(axes, key=lambda axis: abs(axis[2]))
    if len(axes) == 1:
        return [*axes, (1, 0, 0)]
    steps = [abs(axis[1]) or math.inf for axis in axes]
    partner = max(1, steps.index(min(steps)))
    if steps[0] == abs(axes[0][2]) == 1 and len(axes) > 2 and not is_variable(axes[1][0]):
        partner = 2 if axes[1][0] <= _FEW_PLANES else 1
    return [axes[0], axes[partner], *axes[1:partner], *axes[partner + 1 :]]


def _tile(axes: list[tuple[int, ...]], itemsize: int) -> list[int]:
    """Extent of a tile along the first two axes: a square to turn, or as many whole rows as make up a task.

    Words of 32 bits, which need no buffer, are turned in longer rows of dst. Few planes are in one tile, if they are
    sure to be few.
    """
    (first, *_), (second, *_) = axes[:2]
    if 0 < abs(axes[1][1]) < abs(axes[0][1]):
        if not is_variable(second) and second <= _FEW_PLANES:
            planes = max(second, 1)
            return [_TASK_NBYTES // itemsize // planes, planes]
        if is_variable(first) or first > _FEW_PLANES:
            return [2 * _TURN, _TURN] if itemsize == 4 else [_TURN // 2 if itemsize == 8 else _TURN] * 2
    row = least(largest(first, 1), _TASK_NBYTES // itemsize)
    return [row, least(largest(second, 1), largest(1, _TASK_NBYTES // itemsize // row))]


def concat(shapes: Sequence[Sequence[int]], axis: int, itemsize: int, *, isa: str | None = None) -> KernelCall:
    """Join dense arrays of any type, equal but for `axis`; arguments: in_0, ..., in_(n-1), dst.

    UnsupportedError: no input, too many, or an item size that `copy` has not.
    """
    _check_itemsize(itemsize)
    axis = _check_concat(shapes, axis)
    nrows = math.prod(shapes[0][:axis])
    widths = [math.prod(shape[axis:]) * itemsize for shape in shapes]
    row_nbytes = sum(widths)
    values = {
        "ninputs": len(shapes), "nrows": nrows, "row_nbytes": row_nbytes, "task_nbytes": _TASK_NBYTES,
        "dst_pitch": row_nbytes, "ends": list(accumulate(widths)), "pitches": widths,
    }  # fmt: skip
    return pack("any_concat", values, ntasks=-(-nrows * row_nbytes // _TASK_NBYTES), isa=isa)


def _check_concat(shapes: Sequence[Sequence[int]], axis: int) -> int:
    """The axis counted from the front."""
    if not 0 < len(shapes) <= _MAX_CONCAT:
        raise UnsupportedError(explain("inputs of a concatenation", accepted=f"1 .. {_MAX_CONCAT}", got=len(shapes)))
    axis = normalise_axis(axis, len(shapes[0]))
    rests = [(*shape[:axis], *shape[axis + 1 :]) for shape in shapes]
    if any(rest != rests[0] for rest in rests):
        got = [tuple(shape) for shape in shapes]
        raise InvalidShapeError(explain("shapes to join", accepted=f"equal but for axis {axis}", got=got), axis=axis)
    return axis


def gen_index(shape: Sequence[int], axis: int, *, isa: str | None = None) -> KernelCall:
    """Positions along `axis` as a dense s32 array of `shape`; argument: dst."""
    axis = normalise_axis(axis, len(shape))
    size, task_size = math.prod(shape), _TASK_NBYTES // 4
    values = {"size": size, "dim": shape[axis], "inner": math.prod(shape[axis + 1 :]), "task_size": task_size}
    return pack("s32_gen_index", values, ntasks=-(-size // task_size), isa=isa)


def triangle(
    shape: Sequence[int], diagonal: int, itemsize: int, *, is_upper: bool, isa: str | None = None
) -> KernelCall:
    """Copy the triangle on and above, or below, a diagonal of dense matrices, zeros elsewhere; arguments: src, dst.

    The matrices are the last two axes of `shape`; of row r the column r + `diagonal` is on the diagonal. Elements have
    1, 2, 4 or 8 bytes (UnsupportedError).
    """
    _check_itemsize(itemsize)
    *batch, height, width = shape
    nrows, task_rows = math.prod(batch) * height, largest(1, _TASK_NBYTES // (largest(1, width) * itemsize))
    values = {
        "nrows": nrows, "height": height, "width": width, "item_nbytes": itemsize, "task_rows": task_rows,
        "diagonal": diagonal, "is_upper": int(is_upper),
    }  # fmt: skip
    return pack("any_triangle", values, ntasks=-(-nrows // task_rows), isa=isa)


def _check_itemsize(itemsize: int) -> None:
    if itemsize not in _ITEM_NBYTES:
        raise UnsupportedError(explain("item size", accepted="1, 2, 4, 8 bytes", got=itemsize), itemsize=itemsize)
