"""Index spaces as kernels see them: axes merged where strides allow, and the C struct ``gp_space``."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._sizes import Preference, hint_of, is_variable, key_of
from graphpool.errors import InvalidShapeError, explain
from graphpool.typing import MAX_NDIM, dense_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "agree",
    "check_strides",
    "collapse",
    "normalise_axis",
    "space",
    "split_axes",
    "take_contiguous",
    "take_innermost",
    "without",
]


def collapse(shape: Sequence[int], *layouts: Sequence[int]) -> list[tuple[int, ...]]:
    """Merge the axes that all layouts step through as if they were one.

    A layout is the strides of the axes in one array. Returned are (dim, stride in layout 0, stride in layout 1, ...),
    innermost first and at least one; axes of dimension 1 are left out.
    """
    _check_shape("a kernel", shape)
    for strides in layouts:
        _check_length("an argument", shape, strides)
    axes: list[tuple[int, ...]] = []
    for axis in zip(*map(reversed, (shape, *layouts)), strict=True):
        dim = axis[0]
        if is_variable(dim) and axes and key_of(axis[1:]) == key_of(_next_strides(axes[-1])):
            axes[-1] = (axes[-1][0] * dim, *axes[-1][1:])  # whether it is 1 is not asked
            continue
        if dim == 1:
            continue
        if axes and agree(axis[1:], _next_strides(axes[-1])):
            axes[-1] = (axes[-1][0] * dim, *axes[-1][1:])
        else:
            axes.append(axis)
    return axes or [(1,) * (1 + len(layouts))]


def agree(x: Sequence[int], y: Sequence[int]) -> bool:
    """Whether numbers are equal, for code that does with others what is right for equal ones too.

    Where they differ now, that they do is a preference: a program then serves sizes for which they are equal.
    """
    if [*map(hint_of, x)] == [*map(hint_of, y)]:
        return tuple(x) == tuple(y)
    with Preference(*x, *y):
        return tuple(x) == tuple(y)


def _next_strides(axis: tuple[int, ...]) -> tuple[int, ...]:
    """Of the axis around one, where nothing lies between its rounds."""
    return tuple([axis[0] * stride for stride in axis[1:]])


def _check_shape(name: str, shape: Sequence[int]) -> None:
    if len(shape) > MAX_NDIM or any(dim < 0 for dim in shape):
        accepted = f"up to {MAX_NDIM} dimensions, each at least 0"
        raise InvalidShapeError(explain(f"shape of {name}", accepted=accepted, got=tuple(shape)), name=name)


def _check_length(name: str, shape: Sequence[int], strides: Sequence[int]) -> None:
    if len(strides) != len(shape):
        accepted = f"{len(shape)} of them"
        raise InvalidShapeError(explain(f"strides of {name}", accepted=accepted, got=tuple(strides)), name=name)


def split_axes(dims: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Axes merged by `collapse`, outermost first and perhaps none: their dims, and their strides in each operand."""
    axes = [axis for axis in reversed(collapse(dims, *strides)) if axis[0] != 1]
    columns = [list(column) for column in zip(*axes, strict=True)] or [[] for _ in range(len(strides) + 1)]
    return columns[0], columns[1:]


def space(dims: Sequence[int], *strides: Sequence[int]) -> tuple[dict[str, Any], int]:
    """The struct gp_space of axes and their strides in each operand, collapsed, and its number of indices."""
    merged, columns = split_axes(dims, *strides)
    return {"ndim": len(merged), "dim": merged, "stride": columns}, prod(dims)


def without(axis: int, *columns: Sequence[int]) -> list[list[int]]:
    """Shapes or strides without one axis, which is counted from the front."""
    return [[*column[:axis], *column[axis + 1 :]] for column in columns]


def take_innermost(dims: list[int], strides: list[list[int]]) -> tuple[int, list[int]]:
    """Remove the innermost of collapsed axes: its size and its stride in each operand; 1 and zeros if there is none."""
    return (dims.pop(), [column.pop() for column in strides]) if dims else (1, [0] * len(strides))


def take_contiguous(dims: list[int], strides: list[list[int]]) -> tuple[int, list[int]]:
    """The same with the longest axis that the first operand walks with stride 1."""
    found = [k for k, stride in enumerate(strides[0]) if stride == 1]
    if not found:
        return 1, [0] * len(strides)
    axis = max(found, key=lambda k: dims[k])
    return dims.pop(axis), [column.pop(axis) for column in strides]


def check_strides(name: str, shape: Sequence[int], strides: Sequence[int] | None) -> tuple[int, ...]:
    """`strides` as a tuple, dense by default: one for each of at most `MAX_NDIM` axes of known size."""
    _check_shape(name, shape)
    if strides is None:
        return dense_strides(shape)
    _check_length(name, shape, strides)
    return tuple(strides)


def normalise_axis(axis: int, ndim: int) -> int:
    """`axis` counted from the front."""
    if not -ndim <= axis < ndim:
        raise InvalidShapeError(explain("no such axis", accepted=f"{-ndim} .. {ndim - 1}", got=axis), axis=axis)
    return axis % ndim
