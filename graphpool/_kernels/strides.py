"""Index spaces: how strides merge axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidShapeError, explain
from graphpool.typing import MAX_NDIM

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["collapse"]


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
    if len(shape) > MAX_NDIM or min(shape, default=0) < 0:
        accepted = f"up to {MAX_NDIM} dimensions, each at least 0"
        raise InvalidShapeError(explain("shape of a kernel", accepted=accepted, got=tuple(shape)), shape=tuple(shape))
    for strides in layouts:
        if len(strides) != len(shape):
            what = f"strides {tuple(strides)} of a tensor of shape {tuple(shape)}"
            raise InvalidShapeError(explain(what, accepted=f"{len(shape)} numbers", got=len(strides)), dim=len(strides))
