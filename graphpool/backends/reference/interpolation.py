"""Resampling of the spatial axes, one axis after another.

Output o of an axis that grows from n to m reads the input at

    half_pixel      (o + 1/2) n / m - 1/2
    align_corners   o (n - 1) / (m - 1), or 0 where m = 1

with n / m the ratio of the sizes, also where ``scales`` were given. Mode nearest takes the nearest element, halves
upward; the linear modes weigh the two neighbours, the coordinate held inside the axis. Coordinates are exact ratios of
integers, so that a kernel can reproduce the nearest index. A neighbour of weight 0 does not count, even if infinite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphpool._dataclasses import dataclass

from .axes import from_ncx, to_ncx
from .registry import Array, Attrs, reference


@dataclass(frozen=True, slots=True)
class _Taps:
    """For each output of an axis: two input indices and their weights."""

    indices: tuple[Array, Array]
    weights: tuple[Array, Array]


def _coordinates(in_size: int, out_size: int, transformation: str) -> tuple[Array, int]:
    """Numerators and the common denominator of the input coordinate of each output."""
    out = np.arange(out_size)
    if transformation == "align_corners":
        return out * (in_size - 1), max(out_size - 1, 1)
    return (2 * out + 1) * in_size - out_size, 2 * out_size


def _taps(in_size: int, out_size: int, mode: str, transformation: str) -> _Taps:
    """Neighbours of each output."""
    numerator, denominator = _coordinates(in_size, out_size, transformation)
    if mode == "nearest":
        index = np.clip((2 * numerator + denominator) // (2 * denominator), 0, in_size - 1)
        return _Taps((index, index), (np.ones(out_size), np.zeros(out_size)))
    numerator = np.clip(numerator, 0, (in_size - 1) * denominator)
    low = numerator // denominator
    fraction = (numerator % denominator) / denominator
    return _Taps((low, np.minimum(low + 1, in_size - 1)), (1.0 - fraction, fraction))


def _axis_taps(attrs: Attrs, in_sizes: Sequence[int], out_sizes: Sequence[int]) -> list[_Taps]:
    mode, transformation = attrs["mode"], attrs["coordinate_transformation_mode"]
    return [_taps(n, m, mode, transformation) for n, m in zip(in_sizes, out_sizes, strict=True)]


def _target_sizes(attrs: Attrs, in_sizes: Sequence[int], sizes: Array | None) -> list[int]:
    """Spatial sizes from the input, the attribute sizes, or trunc(size * scale) in float32."""
    if sizes is not None:
        return [int(size) for size in sizes.reshape(-1)]
    if attrs.get("sizes"):
        return list(attrs["sizes"])
    return [int(np.float32(n) * np.float32(scale)) for n, scale in zip(in_sizes, attrs["scales"], strict=True)]


def _weigh(values: Array, weights: Array) -> Array:
    """Product of values and weights along the last axis; a zero weight gives 0."""
    return np.where(weights == 0, 0.0, values * weights)


def _gather(x: Array, taps: _Taps, axis: int) -> Array:
    """Resample `axis`."""
    last = np.moveaxis(x, axis, -1)
    parts = [_weigh(last[..., index], weight) for index, weight in zip(taps.indices, taps.weights, strict=True)]
    return np.moveaxis(parts[0] + parts[1], -1, axis)


def _scatter(diff: Array, taps: _Taps, axis: int, in_size: int) -> Array:
    """Adjoint of `_gather`."""
    last = np.moveaxis(diff, axis, -1)
    gradient = np.zeros((*last.shape[:-1], in_size))
    for index, weight in zip(taps.indices, taps.weights, strict=True):
        part = _weigh(last, weight)
        for out, target in enumerate(index):
            gradient[..., target] += part[..., out]
    return np.moveaxis(gradient, -1, axis)


@reference("Interpolate")
def _interpolate(attrs: Attrs, src: Array, sizes: Array | None = None) -> Array:
    x = to_ncx(src, attrs["data_format"])
    out_sizes = _target_sizes(attrs, x.shape[2:], sizes)
    for axis, taps in enumerate(_axis_taps(attrs, x.shape[2:], out_sizes), start=2):
        x = _gather(x, taps, axis)
    return from_ncx(x, attrs["data_format"])


@reference("InterpolateBackward")
def _interpolate_backward(attrs: Attrs, src: Array, diff_dst: Array, sizes: Array | None = None) -> Array:
    """The sizes are those of diff_dst, whatever the attributes repeat."""
    in_sizes, diff = to_ncx(src, attrs["data_format"]).shape[2:], to_ncx(diff_dst, attrs["data_format"])
    for axis, taps in enumerate(_axis_taps(attrs, in_sizes, diff.shape[2:]), start=2):
        diff = _scatter(diff, taps, axis, in_sizes[axis - 2])
    return from_ncx(diff, attrs["data_format"])
