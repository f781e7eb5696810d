"""Reductions over axes given by attribute or by a second input, and kinds that walk along one axis.

No axes means that nothing is reduced: the operation acts on single elements. Over no elements a sum is 0, a product 1,
a maximum minus infinity, a minimum infinity (of integers: the limits of their type) and a mean NaN. NaN propagates
through maximum and minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from .axes import mean
from .registry import Array, Attrs, Function, formulas, reference


def _axes(attrs: Attrs, src: Array, axes: Array | None) -> tuple[int, ...]:
    chosen = attrs["axes"] if axes is None else axes.reshape(-1)
    return normalize_axis_tuple([int(axis) for axis in chosen], src.ndim)


def _reduced(formula: Callable[[Array, tuple[int, ...], bool], Array]) -> Function:
    """``formula(src, axes, keepdims)`` as the meaning of a kind."""
    return lambda attrs, src, axes=None: formula(src, _axes(attrs, src, axes), attrs["keep_dims"])


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.sum(x, axis=axes, keepdims=keepdims))


formulas({
    "ReduceL1": _reduced(lambda x, axes, keepdims: _sum(np.abs(x), axes, keepdims)),
    "ReduceL2": _reduced(lambda x, axes, keepdims: np.sqrt(_sum(np.square(x), axes, keepdims))),
    "ReduceMean": _reduced(lambda x, axes, keepdims: mean(x, axes, keepdims=keepdims)),
    "ReduceProd": _reduced(lambda x, axes, keepdims: np.prod(x, axis=axes, keepdims=keepdims)),
    "ReduceSum": _reduced(_sum),
})  # fmt: skip


def _best(choose: Callable[..., Array], sign: int) -> Function:
    """A maximum (sign 1) or minimum (sign -1), which over no elements is the worst number of the type."""

    def evaluate(attrs: Attrs, src: Array, axes: Array | None = None) -> Array:
        dtype = attrs["dtype"].numpy
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        worst = -sign * np.inf if limits is None else int(limits.min if sign > 0 else limits.max)
        return choose(src, axis=_axes(attrs, src, axes), keepdims=attrs["keep_dims"], initial=worst)

    return evaluate


reference("ReduceMax", "typed")(_best(np.max, 1))
reference("ReduceMin", "typed")(_best(np.min, -1))


def _place(find: Callable[..., Array]) -> Function:
    """The index of what `find` finds first."""

    def evaluate(attrs: Attrs, src: Array) -> Array:
        axis = attrs["axis"]
        if not attrs["select_last_index"]:
            return np.asarray(find(src, axis=axis, keepdims=attrs["keep_dims"]))
        from_end = find(np.flip(src, axis), axis=axis, keepdims=attrs["keep_dims"])
        return np.asarray(src.shape[axis] - 1 - from_end)

    return evaluate


def _running(accumulate: Callable[..., Array], identity: int) -> Function:
    """What `accumulate` gives along an axis."""

    def evaluate(attrs: Attrs, src: Array) -> Array:
        axis = attrs["axis"] % src.ndim
        x = np.flip(src, axis) if attrs["reverse"] else src
        result = accumulate(x, axis=axis)
        if attrs["exclusive"]:
            first = np.full_like(np.take(result, [0], axis) if x.shape[axis] else result, identity)
            result = np.concatenate([first, result], axis).take(range(x.shape[axis]), axis)
        return np.flip(result, axis) if attrs["reverse"] else result

    return evaluate


formulas({
    "ArgMax": _place(np.argmax), "ArgMin": _place(np.argmin),
    "CumProd": _running(np.multiply.accumulate, 1), "CumSum": _running(np.add.accumulate, 0),
})  # fmt: skip


@reference("TopK")
def _top_k(attrs: Attrs, src: Array) -> tuple[Array, Array]:
    """By value, equal ones by index; a NaN is larger than all numbers. Unsorted asks for no order: it is the same."""
    axis, k, dim = attrs["axis"], attrs["k"], src.shape[attrs["axis"]]
    if attrs["largest"]:  # from the end, so that turning the ascending order leaves equal ones by index
        order = dim - 1 - np.flip(np.argsort(np.flip(src, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(src, axis=axis, kind="stable")
    chosen = np.take(order, range(k), axis)
    return np.take_along_axis(src, chosen, axis), chosen
