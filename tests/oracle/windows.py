"""Pooling and interpolation with their gradients, written as loops over what each output element reads."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from .products import as_given, channels_first, listed, pads_of, shape_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .numbers import Array

Attrs = dict[str, Any]
Place = tuple[int, ...]


def pooled_sizes(attrs: Attrs, sizes: Sequence[int]) -> list[int]:
    count = len(sizes)
    kernel, strides = listed(attrs, "kernel", count, 1), listed(attrs, "strides", count, 1)
    dilations = listed(attrs, "dilations", count, 1)
    out = []
    for n, k, s, d, a, b in zip(sizes, kernel, strides, dilations, *pads_of(attrs, sizes, kernel, False), strict=True):
        steps = (n + a + b - (d * (k - 1) + 1)) / s
        out.append((math.ceil(steps) if attrs.get("rounding_type") == "ceil" else math.floor(steps)) + 1)
    return out


def places_read(attrs: Attrs, sizes: Sequence[int], position: Place) -> list[Place]:
    """Places of the input, padding left out, that the window at a position of the output covers, in order."""
    count = len(sizes)
    kernel, strides = listed(attrs, "kernel", count, 1), listed(attrs, "strides", count, 1)
    dilations = listed(attrs, "dilations", count, 1)
    begin, _ = pads_of(attrs, sizes, kernel, False)
    axes = []
    for n, k, s, d, a, p in zip(sizes, kernel, strides, dilations, begin, position, strict=True):
        axes.append([q for q in (p * s - a + t * d for t in range(k)) if 0 <= q < n])
    return list(product(*axes))


def divisor(attrs: Attrs, sizes: Sequence[int], position: Place, read: Sequence[Place]) -> int:
    """What a sum over a window is divided by: its elements that are no padding, or all within the padded input."""
    if attrs["exclude_pad"]:
        return len(read)
    count = len(sizes)
    kernel, strides = listed(attrs, "kernel", count, 1), listed(attrs, "strides", count, 1)
    begin, end = pads_of(attrs, sizes, kernel, False)
    lengths = [min(p * s + k, n + a + b) - p * s
               for n, k, s, a, b, p in zip(sizes, kernel, strides, begin, end, position, strict=True)]  # fmt: skip
    return math.prod(lengths)


def average(attrs: Attrs, x: Array) -> Array:
    x = channels_first(attrs, x)
    out = pooled_sizes(attrs, x.shape[2:])
    y = np.zeros((*x.shape[:2], *out))
    for position in np.ndindex(*out):
        read = places_read(attrs, x.shape[2:], position)
        total = sum((x[(..., *place)] for place in read), np.zeros(x.shape[:2]))
        y[(..., *position)] = total / divisor(attrs, x.shape[2:], position, read) if read else 0.0
    return as_given(attrs, y)


def average_backward(attrs: Attrs, diff: Array, *shape: Array) -> Array:
    dims = shape_from(attrs, "src_shape", shape)
    diff = channels_first(attrs, diff)
    sizes = dims[2:] if attrs["data_format"] == "NCX" else dims[1:-1]
    result = np.zeros((*diff.shape[:2], *sizes))
    for position in np.ndindex(*diff.shape[2:]):
        read = places_read(attrs, sizes, position)
        for place in read:
            result[(..., *place)] += diff[(..., *position)] / divisor(attrs, sizes, position, read)
    return as_given(attrs, result)


def maximum(attrs: Attrs, x: Array) -> Array:
    x = channels_first(attrs, x)
    out = pooled_sizes(attrs, x.shape[2:])
    y = np.full((*x.shape[:2], *out), -np.inf)
    for position in np.ndindex(*out):
        for place in places_read(attrs, x.shape[2:], position):
            y[(..., *position)] = np.maximum(y[(..., *position)], x[(..., *place)])
    return as_given(attrs, y)


def maximum_backward(attrs: Attrs, x: Array, diff: Array) -> Array:
    """The gradient goes to the first of the largest elements of each window, which is NaN where there is one."""
    x, diff = channels_first(attrs, x), channels_first(attrs, diff)
    result = np.zeros(x.shape)
    for n, c in np.ndindex(*x.shape[:2]):
        for position in np.ndindex(*diff.shape[2:]):
            read = places_read(attrs, x.shape[2:], position)
            if read:
                met = np.array([x[(n, c, *place)] for place in read])
                best = read[int(np.argmax(met))]
                result[(n, c, *best)] += diff[(n, c, *position)]
    return as_given(attrs, result)


def coordinate(attrs: Attrs, position: int, size: int, out: int) -> float:
    """Where a position of the output lies on an axis of the input."""
    if attrs["coordinate_transformation_mode"] == "align_corners":
        return position * (size - 1) / (out - 1) if out > 1 else 0.0
    return (2 * position + 1) * size / (2 * out) - 0.5


def taps(attrs: Attrs, position: int, size: int, out: int) -> list[tuple[int, float]]:
    """Elements of an axis that an output position is made of, each with its share."""
    at = coordinate(attrs, position, size, out)
    if attrs["mode"] == "nearest":
        return [(min(max(math.floor(at + 0.5), 0), size - 1), 1.0)]
    low = math.floor(at)
    shares = [(low, 1 - (at - low)), (low + 1, at - low)]
    return [(min(max(place, 0), size - 1), share) for place, share in shares if share]


def interpolated_sizes(attrs: Attrs, sizes: Sequence[int], given: Sequence[Array]) -> list[int]:
    if attrs.get("scales"):
        return [int(np.float32(n * scale)) for n, scale in zip(sizes, attrs["scales"], strict=True)]
    return shape_from(attrs, "sizes", given)


def interpolate(attrs: Attrs, x: Array, *sizes: Array) -> Array:
    x = channels_first(attrs, x)
    for axis, n in enumerate(interpolated_sizes(attrs, x.shape[2:], sizes), 2):
        read = [taps(attrs, position, x.shape[axis], n) for position in range(n)]
        x = np.stack([sum(x.take(place, axis) * share for place, share in pairs) for pairs in read], axis)
    return as_given(attrs, x)


def interpolate_backward(attrs: Attrs, x: Array, diff: Array, *sizes: Array) -> Array:
    shape, diff = channels_first(attrs, x).shape, channels_first(attrs, diff)
    for axis in range(2, diff.ndim):
        result = np.zeros((*diff.shape[:axis], shape[axis], *diff.shape[axis + 1 :]))
        for position in range(diff.shape[axis]):
            for place, share in taps(attrs, position, shape[axis], diff.shape[axis]):
                np.moveaxis(result, axis, 0)[place] += diff.take(position, axis) * share
        diff = result
    return as_given(attrs, diff)


KINDS = {
    "AvgPool": average,
    "AvgPoolBackward": average_backward,
    "MaxPool": maximum,
    "MaxPoolBackward": maximum_backward,
    "Interpolate": interpolate,
    "InterpolateBackward": interpolate_backward,
}

EXACT = frozenset({"MaxPool"})
DISCONTINUOUS = frozenset({"MaxPoolBackward"})
