"""Access by index. Negative indices count from the end; one outside its axis is an error."""

from __future__ import annotations

from operator import add, mul
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .numbers import Array

Attrs = dict[str, Any]


def larger(old: Any, new: Any) -> Any:
    return new if new > old or new != new else old


def smaller(old: Any, new: Any) -> Any:
    return new if new < old or new != new else old


REDUCE = {"none": lambda old, new: new, "add": add, "mul": mul, "max": larger, "min": smaller}


def inside(index: Any, size: int) -> int:
    if not -size <= index < size:
        raise IndexError(int(index))
    return int(index) % size


def gather(attrs: Attrs, x: Array, indices: Array) -> Array:
    axis = attrs["axis"] % x.ndim
    places = [inside(index, x.shape[axis]) for index in indices.reshape(-1)]
    taken = x.take(np.array(places, dtype=int), axis)
    return taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def gather_elements(attrs: Attrs, x: Array, indices: Array) -> Array:
    axis = attrs["axis"] % x.ndim
    y = np.empty(indices.shape, dtype=x.dtype)
    for place in np.ndindex(*indices.shape):
        source = list(place)
        source[axis] = inside(indices[place], x.shape[axis])
        y[place] = x[tuple(source)]
    return y


def gather_nd(attrs: Attrs, x: Array, indices: Array) -> Array:
    batch, length = attrs["batch_dims"], indices.shape[-1]
    y = np.empty((*indices.shape[:-1], *x.shape[batch + length :]), dtype=x.dtype)
    for place in np.ndindex(*indices.shape[:-1]):
        source = [inside(indices[(*place, n)], x.shape[batch + n]) for n in range(length)]
        y[place] = x[(*place[:batch], *source)]
    return y


def one_hot(attrs: Attrs, indices: Array, values: Array) -> Array:
    """An index outside -depth .. depth - 1 has no place."""
    depth, ndim = attrs["depth"], indices.ndim + 1
    axis = attrs["axis"] % ndim
    y = np.full((*indices.shape[:axis], depth, *indices.shape[axis:]), values[0], dtype=values.dtype)
    for place in np.ndindex(*indices.shape):
        index = int(indices[place])
        if -depth <= index < depth:
            y[(*place[:axis], index % depth, *place[axis:])] = values[1]
    return y


def rotary(attrs: Attrs, x: Array, cos: Array, sin: Array, *ids: Array) -> Array:
    """Each pair (a, b) of a head becomes (a cos - b sin, a sin + b cos)."""
    heads = x if x.ndim == 4 else x.reshape(*x.shape[:2], attrs["num_heads"], -1).swapaxes(1, 2)
    if ids:
        places = np.array([inside(p, len(cos)) for p in ids[0].reshape(-1)], dtype=int).reshape(ids[0].shape)
        cos, sin = cos[places], sin[places]
    y = heads.copy()
    width = attrs["rotary_embedding_dim"] or heads.shape[-1]
    for n in range(width // 2):
        p, q = (2 * n, 2 * n + 1) if attrs["interleaved"] else (n, n + width // 2)
        a, b, c, s = heads[..., p], heads[..., q], cos[:, None, :, n], sin[:, None, :, n]
        y[..., p], y[..., q] = a * c - b * s, a * s + b * c
    return y if x.ndim == 4 else y.swapaxes(1, 2).reshape(x.shape)


def reverse_sequence(attrs: Attrs, x: Array, lengths: Array) -> Array:
    batch, time, y = attrs["batch_axis"] % x.ndim, attrs["time_axis"] % x.ndim, x.copy()
    for place in np.ndindex(*x.shape):
        length, source = int(lengths[place[batch]]), list(place)
        assert 0 <= length <= x.shape[time]
        if place[time] < length:
            source[time] = length - 1 - place[time]
        y[place] = x[tuple(source)]
    return y


def scatter_elements(attrs: Attrs, x: Array, indices: Array, updates: Array) -> Array:
    axis, y = attrs["axis"] % x.ndim, x.copy()
    for place in np.ndindex(*indices.shape):
        target = list(place)
        target[axis] = inside(indices[place], x.shape[axis])
        y[tuple(target)] = REDUCE[attrs["reduction"]](y[tuple(target)], updates[place])
    return y


def scatter_nd(attrs: Attrs, x: Array, indices: Array, updates: Array) -> Array:
    y = x.copy()
    for place in np.ndindex(*indices.shape[:-1]):
        target = tuple(inside(n, size) for n, size in zip(indices[place], x.shape, strict=False))
        for rest in np.ndindex(*x.shape[len(target) :]):
            old = y[(*target, *rest)]
            y[(*target, *rest)] = REDUCE[attrs["reduction"]](old, updates[(*place, *rest)])
    return y


KINDS = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "RotaryEmbedding": rotary,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
}

EXACT = frozenset({"Gather", "GatherElements", "GatherND", "OneHot", "ReverseSequence"})
