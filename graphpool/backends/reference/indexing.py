"""Extension kinds that read or write elements by index.

A negative index counts from the end; one outside its axis picks the nearest element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .registry import Array, Attrs, reference
from .rounding import widen

__all__ = ["within"]


def within(indices: Array, dim: int) -> Array:
    """Indices of an axis of `dim`, counted from the front."""
    return np.clip(np.where(indices < 0, indices + dim, indices), 0, max(dim - 1, 0))


def _tuples(indices: Array, dims: Sequence[int]) -> tuple[Array, ...]:
    """The columns of index tuples."""
    return tuple(within(indices[..., k], dims[k]) for k in range(indices.shape[-1]))


def _along(indices: Array, axis: int, dim: int) -> tuple[Array, ...]:
    """Coordinates of the elements that indices along an axis mean."""
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[axis] = within(indices, dim)
    return tuple(places)


@reference("Gather", raw=True)
def _gather(attrs: Attrs, src: Array, indices: Array) -> Array:
    return np.take(src, within(indices, src.shape[attrs["axis"]]), axis=attrs["axis"])


@reference("GatherElements", raw=True)
def _gather_elements(attrs: Attrs, src: Array, indices: Array) -> Array:
    return np.asarray(src[_along(indices, attrs["axis"], src.shape[attrs["axis"]])])


@reference("GatherND", raw=True)
def _gather_nd(attrs: Attrs, src: Array, indices: Array) -> Array:
    batch = attrs["batch_dims"]
    lead = [k.reshape(k.shape + (1,) * (indices.ndim - 1 - batch)) for k in np.indices(src.shape[:batch], sparse=True)]
    return np.asarray(src[(*lead, *_tuples(indices, src.shape[batch:]))])


_REDUCTIONS: dict[str, Callable[..., None]] = {
    "add": np.add.at, "mul": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at,
}  # fmt: skip


def _scatter(attrs: Attrs, src: Array, places: tuple[Array, ...], updates: Array) -> Array:
    """A copy of src with updates put in or reduced into it, in order: of equal places the last one stays."""
    reduce = _REDUCTIONS.get(attrs["reduction"])
    result = (src if reduce is None else widen(src)).copy()
    if reduce is None:
        result[places] = updates
    else:
        reduce(result, places, widen(updates))
    return result


@reference("ScatterElements", raw=True)
def _scatter_elements(attrs: Attrs, src: Array, indices: Array, updates: Array) -> Array:
    return _scatter(attrs, src, _along(indices, attrs["axis"], src.shape[attrs["axis"]]), updates)


@reference("ScatterND", raw=True)
def _scatter_nd(attrs: Attrs, src: Array, indices: Array, updates: Array) -> Array:
    return _scatter(attrs, src, _tuples(indices, src.shape), updates)


@reference("ReverseSequence", raw=True)
def _reverse_sequence(attrs: Attrs, src: Array, lengths: Array) -> Array:
    batch, time = attrs["batch_axis"] % src.ndim, attrs["time_axis"] % src.ndim
    rows = np.moveaxis(src, (batch, time), (0, 1))
    steps, lengths = np.arange(rows.shape[1]), lengths.reshape(-1, 1)
    sources = within(np.where(steps < lengths, lengths - 1 - steps, steps), rows.shape[1])
    return np.moveaxis(rows[np.arange(len(rows)).reshape(-1, 1), sources], (0, 1), (batch, time))


@reference("OneHot", raw=True)
def _one_hot(attrs: Attrs, indices: Array, values: Array) -> Array:
    """Indices lose their fraction; one outside -depth .. depth - 1 is hot nowhere."""
    depth = attrs["depth"]
    wide = widen(indices)
    position = np.trunc(wide) if wide.dtype.kind == "f" else wide.astype(np.int64)
    position = np.expand_dims(np.where(position < 0, position + depth, position), attrs["axis"])
    shape = [1] * position.ndim
    shape[attrs["axis"]] = depth
    return np.asarray(np.where(position == np.arange(depth).reshape(shape), values[1], values[0]))
