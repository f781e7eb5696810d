"""Kinds that put elements elsewhere: joins, parts, repetitions, borders, permutations; conversion of types."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .numbers import FLOATS, LARGEST, clip, nearest_float

if TYPE_CHECKING:
    from .numbers import Array

Attrs = dict[str, Any]


def reshape(attrs: Attrs, x: Array) -> Array:
    target = [x.shape[axis] if dim == 0 and attrs["special_zero"] else dim for axis, dim in enumerate(attrs["shape"])]
    if -1 in target:
        rest = math.prod(dim for dim in target if dim != -1)
        target = [x.size // rest if dim == -1 else dim for dim in target]
    return x.reshape(target)


def type_cast(attrs: Attrs, x: Array) -> Array:
    source, target = attrs["in_dtypes"][0], attrs["out_dtypes"][0]
    if target == "boolean":
        return np.asarray(x != 0, dtype=bool)
    if x.dtype == bool:
        x = x.astype(int).astype(object)
    if target in FLOATS:
        return to_float(attrs, x, target)
    return clip(x, target) if source in FLOATS else x


def to_float(attrs: Attrs, x: Array, target: str) -> Array:
    """Beyond the largest f8: the largest, or without saturate infinity and, where there is none, NaN."""
    if not target.startswith("f8"):
        return x
    real = np.array([float(item) for item in x.reshape(-1)]).reshape(x.shape)
    rounded = nearest_float(real, target)
    if attrs.get("saturate", True):
        return np.clip(rounded, -LARGEST[target], LARGEST[target])
    return np.where(np.isinf(rounded), np.nan, rounded) if target == "f8_e4m3" else rounded


def positions(attrs: Attrs, x: Array) -> Array:
    return np.indices(x.shape)[attrs["axis"]].astype(object)


def pad(attrs: Attrs, x: Array) -> Array:
    """Element by element along each axis: inside, or what the mode says lies outside."""
    for axis, (before, after) in enumerate(zip(attrs["pads_begin"], attrs["pads_end"], strict=True)):
        size = x.shape[axis]
        places = [outside(place, size, attrs["mode"]) for place in range(-before, size + after)]
        rows = [np.full_like(x.take(0, axis), fill(attrs, x)) if place is None else x.take(place, axis)
                for place in places] if size else []  # fmt: skip
        shape = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
        x = np.stack(rows, axis) if rows else np.full(shape, fill(attrs, x), x.dtype)
    return x


def fill(attrs: Attrs, x: Array) -> Any:
    return int(attrs["value"]) if x.dtype == object else x.dtype.type(attrs["value"])


def outside(place: int, size: int, mode: str) -> int | None:
    """The element of an axis that stands at a place; None for the constant."""
    if 0 <= place < size:
        return place
    if mode == "constant":
        return None
    if mode == "edge":
        return min(max(place, 0), size - 1)
    if mode == "wrap":
        return place % size
    period = max(2 * (size - 1), 1)
    place %= period
    return place if place < size else period - place


def cut(attrs: Attrs, x: Array) -> Array:
    starts, ends = attrs["starts"], attrs["ends"]
    axes = attrs["axes"] or range(len(starts))
    steps = attrs["steps"] or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places = list(range(x.shape[axis]))[slice(start, end, step)]
        x = x.take(np.array(places, dtype=int), axis)
    return x


def split(attrs: Attrs, x: Array) -> tuple[Array, ...]:
    count, size = len(attrs["out_dtypes"]), x.shape[attrs["axis"]]
    part = -(-size // count)
    sizes = attrs["split"] or [min(part, max(size - part * n, 0)) for n in range(count)]
    ends = np.cumsum(sizes)
    return tuple(x.take(range(end - n, end), attrs["axis"]) for n, end in zip(sizes, ends, strict=True))


def triangle(attrs: Attrs, x: Array) -> Array:
    row, column = np.indices(x.shape)[-2:]
    keep = column - row >= attrs["k"] if attrs["upper"] else column - row <= attrs["k"]
    return np.where(keep, x, np.zeros(1, dtype=bool) if x.dtype == bool else 0).astype(x.dtype)


KINDS = {
    "Concat": lambda attrs, *parts: np.concatenate(parts, axis=attrs["axis"]),
    "Reorder": lambda attrs, x: x,
    "StaticReshape": reshape,
    "StaticTranspose": lambda attrs, x: x.transpose(attrs["order"] or None),
    "TypeCast": type_cast,
    "GenIndex": positions,
    "Expand": lambda attrs, x: np.broadcast_to(x, np.broadcast_shapes(x.shape, attrs["shape"])),
    "Pad": pad,
    "Slice": cut,
    "Split": split,
    "Tile": lambda attrs, x: np.tile(x, attrs["repeats"]).reshape(np.multiply(x.shape, attrs["repeats"]).astype(int)),
    "Trilu": triangle,
    "End": lambda attrs, x: (),
}

EXACT = frozenset(KINDS)
DISCONTINUOUS = frozenset({"TypeCast"})
