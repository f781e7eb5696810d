"""Reductions over axes given by attribute or by a second input.

No axes means that nothing is reduced: the operation acts on single elements. Over no elements a sum is 0, a product 1,
a maximum minus infinity, a minimum infinity (of integers: the limits of their type) and a mean NaN. NaN propagates
through maximum and minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from .axes import mean
from .registry import Array, Attrs, reference


def _reduce(kind: str, formula: Callable[[Array, tuple[int, ...], bool], Array]) -> None:
    """Register `formula(src, axes, keepdims)` as the meaning of `kind`."""

    @reference(kind)
    def evaluate_axes(attrs: Attrs, src: Array, axes: Array | None = None) -> Array:
        chosen = attrs["axes"] if axes is None else axes.reshape(-1)
        axes_of_src = normalize_axis_tuple([int(axis) for axis in chosen], src.ndim)
        return formula(src, axes_of_src, attrs["keep_dims"])


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.sum(x, axis=axes, keepdims=keepdims))


_reduce("ReduceL1", lambda x, axes, keepdims: _sum(np.abs(x), axes, keepdims))
_reduce("ReduceL2", lambda x, axes, keepdims: np.sqrt(_sum(np.square(x), axes, keepdims)))
_reduce("ReduceMean", lambda x, axes, keepdims: mean(x, axes, keepdims=keepdims))
_reduce("ReduceProd", lambda x, axes, keepdims: np.prod(x, axis=axes, keepdims=keepdims))
_reduce("ReduceSum", _sum)


def _reduce_best(kind: str, choose: Callable[..., Array], sign: int) -> None:
    """Register a maximum (sign 1) or minimum (sign -1), which over no elements is the worst number of the type."""

    @reference(kind, typed=True)
    def evaluate_best(attrs: Attrs, src: Array, axes: Array | None = None) -> Array:
        chosen = attrs["axes"] if axes is None else axes.reshape(-1)
        axes_of_src = normalize_axis_tuple([int(axis) for axis in chosen], src.ndim)
        dtype = attrs["dtype"].numpy
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        worst = -sign * np.inf if limits is None else int(limits.min if sign > 0 else limits.max)
        return choose(src, axis=axes_of_src, keepdims=attrs["keep_dims"], initial=worst)


_reduce_best("ReduceMax", np.max, 1)
_reduce_best("ReduceMin", np.min, -1)
