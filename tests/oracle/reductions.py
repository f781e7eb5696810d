"""Reductions over axes; running sums and products, extremes and their places along one axis."""

from __future__ import annotations

import math
from functools import reduce
from operator import add, mul
from typing import TYPE_CHECKING, Any

import numpy as np

from .numbers import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from .numbers import Array

Attrs = dict[str, Any]


def over_axes(function: Callable[[Attrs, list[Any]], Any]) -> Callable[..., Array]:
    """A reduction from the list of elements that each result is made of."""

    def reduction(attrs: Attrs, x: Array, *axes: Array) -> Array:
        chosen = [int(axis) % x.ndim for axis in (axes[0].reshape(-1) if axes else attrs["axes"])]
        rest = [axis for axis in range(x.ndim) if axis not in chosen]
        lists = x.transpose(rest + chosen).reshape(
            math.prod(x.shape[axis] for axis in rest), math.prod(x.shape[axis] for axis in chosen)
        )
        flat = [function(attrs, row.tolist()) for row in lists]
        kept = [1 if axis in chosen else x.shape[axis] for axis in range(x.ndim)]
        shape = kept if attrs["keep_dims"] else [x.shape[axis] for axis in rest]
        return np.array(flat, dtype=x.dtype).reshape(shape)

    return reduction


def least(attrs: Attrs) -> Any:
    """The smallest element of the type."""
    dtype = attrs["in_dtypes"][0]
    return limits(dtype)[0] if dtype[0] in "su" else -math.inf


def most(attrs: Attrs) -> Any:
    dtype = attrs["in_dtypes"][0]
    return limits(dtype)[1] if dtype[0] in "su" else math.inf


def total(items: list[Any]) -> Any:
    """Exact for integers, rounded once for reals, unless they overflow on the way."""
    if not items or not isinstance(items[0], float) or not all(map(math.isfinite, items)):
        return sum(items)
    try:
        return math.fsum(items)
    except OverflowError:
        return sum(items)


def extreme(items: list[Any], pick: Callable[..., Any], empty: Any) -> Any:
    """The largest or the smallest; NaN if there is one."""
    return next((item for item in items if item != item), None) or pick(items, default=empty)


def cumulative(step: Callable[[Any, Any], Any], start: int) -> Callable[..., Array]:
    """A running sum or product."""

    def scan(attrs: Attrs, x: Array) -> Array:
        rows = np.moveaxis(x, attrs["axis"], -1)
        rows = rows[..., ::-1] if attrs["reverse"] else rows
        y = np.empty_like(rows)
        for place in np.ndindex(*rows.shape[:-1]):
            so_far: Any = start if rows.dtype == object else float(start)
            for n, item in enumerate(rows[place]):
                after = step(so_far, item)
                y[(*place, n)] = so_far if attrs["exclusive"] else after
                so_far = after
        y = y[..., ::-1] if attrs["reverse"] else y
        return np.moveaxis(y, -1, attrs["axis"])

    return scan


def place_of(is_better: Callable[[Any, Any], bool]) -> Callable[..., Array]:
    """Index of an extreme: the first of equals, or with select_last_index the last; the first NaN before all."""

    def search(attrs: Attrs, x: Array) -> Array:
        rows = np.moveaxis(x, attrs["axis"], -1)
        found = np.zeros(rows.shape[:-1], dtype=object)
        for place in np.ndindex(*rows.shape[:-1]):
            row, best = rows[place], 0
            for n in range(1, len(row)):
                is_nan, best_is_nan = row[n] != row[n], row[best] != row[best]
                equal = row[n] == row[best] or (is_nan and best_is_nan)
                better = is_nan if is_nan != best_is_nan else is_better(row[n], row[best])
                if better or (equal and attrs["select_last_index"]):
                    best = n
            found[place] = best
        return np.expand_dims(found, attrs["axis"]) if attrs["keep_dims"] else found

    return search


def top_k(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    """In order of their values, equal ones by their index; NaN is larger than all numbers."""

    def rank(item: Any) -> tuple[Any, Any]:
        sign, is_nan = -1 if attrs["largest"] else 1, item != item
        return sign * int(is_nan), 0 if is_nan else sign * item

    rows = np.moveaxis(x, attrs["axis"], -1)
    values = np.empty((*rows.shape[:-1], attrs["k"]), dtype=x.dtype)
    indices = np.empty(values.shape, dtype=object)
    for place in np.ndindex(*rows.shape[:-1]):
        row = rows[place]
        order = sorted(range(len(row)), key=lambda n: (*rank(row[n]), n))[: attrs["k"]]
        values[place], indices[place] = row[order], order
    return np.moveaxis(values, -1, attrs["axis"]), np.moveaxis(indices, -1, attrs["axis"])


KINDS = {
    "ReduceL1": over_axes(lambda attrs, items: total([abs(item) for item in items])),
    "ReduceL2": over_axes(lambda attrs, items: math.sqrt(total([item * item for item in items]))),
    "ReduceMax": over_axes(lambda attrs, items: extreme(items, max, least(attrs))),
    "ReduceMean": over_axes(lambda attrs, items: total(items) / len(items) if items else math.nan),
    "ReduceMin": over_axes(lambda attrs, items: extreme(items, min, most(attrs))),
    "ReduceProd": over_axes(lambda attrs, items: reduce(mul, items, 1)),
    "ReduceSum": over_axes(lambda attrs, items: total(items)),
    "CumProd": cumulative(mul, 1),
    "CumSum": cumulative(add, 0),
    "ArgMax": place_of(lambda a, b: a > b),
    "ArgMin": place_of(lambda a, b: a < b),
    "TopK": top_k,
}

DISCONTINUOUS = frozenset({"ArgMax", "ArgMin", "TopK"})
EXACT = DISCONTINUOUS | {"ReduceMax", "ReduceMin"}
