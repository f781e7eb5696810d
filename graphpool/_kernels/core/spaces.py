"""Index spaces as kernels see them: axes merged where strides allow, and the C struct ``gp_space``."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidShapeError, explain
from graphpool.typing import MAX_NDIM, dense_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "check_strides",
    "collapse",
    "normalise_axis",
    "space",
    "split_axes",
    "take_contiguous",
]


def collapse(shape: Sequence[int], *layouts: Sequence[int]) -> list[tuple[int, ...]]:
    """Merge the axes that all layouts step through as if they were one.

    Parameters
    ----------
    shape : sequence of int
    *layouts : sequence of int
        Strides of the same axes in one array each. Unit: elements.

    Returns
    -------
    axes : list of (dim, stride in layout 0, stride in layout 1, ...)
        Innermost first and at least one; axes of dimension 1 are left out.

    Raises
    ------
    InvalidShapeError
        More than `MAX_NDIM` axes, a negative dimension, or a layout of another length.
    """
    _check(shape, layouts)
    axes: list[tuple[int, ...]] = []
    for axis in zip(*map(reversed, (shape, *layouts)), strict=True):
        dim = axis[0]
        if dim == 1:
            continue
        if axes and axis[1:] == tuple([axes[-1][0] * inner for inner in axes[-1][1:]]):
            axes[-1] = (axes[-1][0] * dim, *axes[-1][1:])
        else:
            axes.append(axis)
    return axes or [(1,) * (1 + len(layouts))]


def _check(shape: Sequence[int], layouts: Sequence[Sequence[int]]) -> None:
    if len(shape) > MAX_NDIM or any(dim < 0 for dim in shape):
        accepted = f"up to {MAX_NDIM} dimensions, each at least 0"
        raise InvalidShapeError(explain("shape of a kernel", accepted=accepted, got=tuple(shape)), shape=tuple(shape))
    for strides in layouts:
        if len(strides) != len(shape):
            what = f"strides {tuple(strides)} of a tensor of shape {tuple(shape)}"
            raise InvalidShapeError(explain(what, accepted=f"{len(shape)} numbers", got=len(strides)), dim=len(strides))


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


def space(dims: Sequence[int], *strides: Sequence[int]) -> tuple[dict[str, Any], int]:
    """The struct gp_space of axes and their strides in each operand, collapsed, and its number of indices."""
    merged, columns = split_axes(dims, *strides)
    return {"ndim": len(merged), "dim": merged, "stride": columns}, prod(dims)


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
