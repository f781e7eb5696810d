"""Extension kinds that walk along an axis: extremes, running sums and products, the k best."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .registry import Array, Attrs, reference


def _arg_extreme(kind: str, find: Callable[..., Array]) -> None:
    """Register the index of what `find` finds first."""

    @reference(kind)
    def evaluate_extreme(attrs: Attrs, src: Array) -> Array:
        axis = attrs["axis"]
        if not attrs["select_last_index"]:
            return np.asarray(find(src, axis=axis, keepdims=attrs["keep_dims"]))
        from_end = find(np.flip(src, axis), axis=axis, keepdims=attrs["keep_dims"])
        return np.asarray(src.shape[axis] - 1 - from_end)


_arg_extreme("ArgMax", np.argmax)
_arg_extreme("ArgMin", np.argmin)


def _running(kind: str, accumulate: Callable[..., Array], identity: int) -> None:
    """Register what `accumulate` gives along an axis."""

    @reference(kind)
    def evaluate_running(attrs: Attrs, src: Array) -> Array:
        axis = attrs["axis"] % src.ndim
        x = np.flip(src, axis) if attrs["reverse"] else src
        result = accumulate(x, axis=axis)
        if attrs["exclusive"]:
            first = np.full_like(np.take(result, [0], axis) if x.shape[axis] else result, identity)
            result = np.concatenate([first, result], axis).take(range(x.shape[axis]), axis)
        return np.flip(result, axis) if attrs["reverse"] else result


_running("CumProd", np.multiply.accumulate, 1)
_running("CumSum", np.add.accumulate, 0)


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
