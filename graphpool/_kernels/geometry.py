"""Index spaces as row kernels see them: axes merged where strides allow, and the C struct ``gp_space``."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool.errors import InvalidShapeError, explain
from graphpool.typing import MAX_NDIM, dense_strides

from .records import Record
from .strides import collapse

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SPACE", "SPACE_OPERANDS", "check_strides", "normalise_axis", "space", "split_axes", "take_contiguous"]

SPACE_OPERANDS = 4
"""``GP_SPACE_OPERANDS``."""

SPACE = Record([("ndim", "i8"), ("dim", "i8", (MAX_NDIM,)), ("stride", "i8", (SPACE_OPERANDS, MAX_NDIM))])
"""``gp_space``."""


def split_axes(dims: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Axes merged by `collapse`, as columns.

    Returns
    -------
    dims : list of int
        Outermost first; without axes of size 1, so perhaps empty.
    strides : list of list of int
        One list an operand. Unit: elements.
    """
    axes = [axis for axis in reversed(collapse(dims, *strides)) if axis[0] != 1]
    columns = [list(column) for column in zip(*axes, strict=True)] or [[] for _ in range(len(strides) + 1)]
    return columns[0], columns[1:]


def space(dims: Sequence[int], *strides: Sequence[int]) -> tuple[bytes, int]:
    """The ``gp_space`` of axes and up to `SPACE_OPERANDS` operands, collapsed, and its number of indices."""
    merged, columns = split_axes(dims, *strides)
    return SPACE.pack({"ndim": len(merged), "dim": merged, "stride": columns}), prod(dims)


def take_contiguous(dims: list[int], strides: list[list[int]]) -> tuple[int, list[int]]:
    """Remove from collapsed axes the longest one that the first operand walks with stride 1.

    Returns
    -------
    dim : int
        Its size; 1 where there is none.
    strides : list of int
        Its stride for each operand.
    """
    found = [k for k, stride in enumerate(strides[0]) if stride == 1]
    if not found:
        return 1, [0] * len(strides)
    axis = max(found, key=lambda k: dims[k])
    return dims.pop(axis), [column.pop(axis) for column in strides]


def check_strides(name: str, shape: Sequence[int], strides: Sequence[int] | None) -> tuple[int, ...]:
    """`strides` as a tuple, dense by default.

    Raises
    ------
    InvalidShapeError
        One stride per axis is needed, ranks end at `MAX_NDIM`, and sizes are not negative.
    """
    if len(shape) > MAX_NDIM or any(dim < 0 for dim in shape):
        accepted = f"at most {MAX_NDIM} axes of known size"
        raise InvalidShapeError(explain(f"shape of {name}", accepted=accepted, got=tuple(shape)), name=name)
    if strides is None:
        return dense_strides(shape)
    if len(strides) != len(shape):
        raise InvalidShapeError(
            explain(f"strides of {name}", accepted=f"{len(shape)} of them", got=tuple(strides)), name=name
        )
    return tuple(strides)


def normalise_axis(axis: int, ndim: int) -> int:
    """`axis` counted from the front.

    Raises
    ------
    InvalidShapeError
        There is no such axis.
    """
    if not -ndim <= axis < ndim:
        raise InvalidShapeError(explain("no such axis", accepted=f"{-ndim} .. {ndim - 1}", got=axis), axis=axis)
    return axis % ndim
