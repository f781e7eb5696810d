"""Integers that stand for reals: x = (q - zero point) * scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .numbers import FLOATS, LARGEST, clip

if TYPE_CHECKING:
    from .numbers import Array

Attrs = dict[str, Any]


def spread(attrs: Attrs, numbers: Any, x: Array) -> Array:
    """Scales or zero points as they meet x: one for all, one a channel, or one for each group."""
    numbers = np.asarray(numbers, dtype=np.float64)
    if attrs["qtype"] == "per_group":
        for axis, size in enumerate(attrs["group_shape"]):
            numbers = np.repeat(numbers, size, axis)
        return numbers
    if attrs["qtype"] == "per_tensor":
        return numbers.reshape(-1)[:1].reshape((1,) * x.ndim)
    axis = attrs["axis"] % x.ndim
    if numbers.size != x.shape[axis]:
        return for_groups(numbers.reshape(-1), axis, x)
    shape = [1] * x.ndim
    shape[axis] = numbers.size
    return numbers.reshape(shape)


def for_groups(numbers: Array, axis: int, x: Array) -> Array:
    """One for each (group, channel) of a grouped ConvTranspose's weights: groups are blocks of the other channels."""
    other = 0 if axis == 1 else x.ndim - 1
    groups, channels = numbers.size // x.shape[axis], x.shape[axis]
    table = np.repeat(numbers.reshape(groups, channels), x.shape[other] // groups, 0)
    shape = [1] * x.ndim
    shape[other], shape[axis] = table.shape
    return (table if other < axis else table.T).reshape(shape)


def quantize_by(attrs: Attrs, x: Array, scales: Array, zps: Array) -> Array:
    dtype = attrs["out_dtypes"][0]
    if dtype in FLOATS:
        return np.clip(x / scales, -LARGEST[dtype], LARGEST[dtype])
    rounded = np.rint(x / scales) + zps if attrs.get("rounds_first", False) else np.rint(x / scales + zps)
    return clip(np.where(np.isnan(rounded), -np.inf, rounded), dtype)


def quantize(attrs: Attrs, x: Array) -> Array:
    zps = attrs.get("zps") or [0] * len(attrs["scales"])
    return quantize_by(attrs, x, spread(attrs, attrs["scales"], x), spread(attrs, zps, x))


def dequantize(attrs: Attrs, x: Array) -> Array:
    zps = attrs.get("zps") or [0] * len(attrs["scales"])
    return (x.astype(np.float64) - spread(attrs, zps, x)) * spread(attrs, attrs["scales"], x)


def dynamic_quantize(attrs: Attrs, x: Array, scales: Array, *zps: Array) -> Array:
    zeros = zps[0] if zps else np.zeros(scales.shape)
    return quantize_by(attrs, x, spread(attrs, scales, x), spread(attrs, zeros, x))


def dynamic_dequantize(attrs: Attrs, x: Array, scales: Array, *zps: Array) -> Array:
    zeros = zps[0] if zps else np.zeros(scales.shape)
    return (x.astype(np.float64) - spread(attrs, zeros, x)) * spread(attrs, scales, x)


def by_range(attrs: Attrs, x: Array) -> tuple[Array, Array, Array]:
    """Bytes over the range of x with 0 in it, or over [0, 1] if x is all 0; computed in f32 as ONNX has it."""
    known = x[~np.isnan(x)]
    low, high = np.float32(known.min(initial=0.0)), np.float32(known.max(initial=0.0))
    scale = np.float32((high - low or np.float32(1)) / np.float32(255))
    zero = float(np.clip(np.nan_to_num(np.rint(-low / scale)), 0, 255))
    y = np.rint(x.astype(np.float32) / scale).astype(np.float64) + zero
    return clip(y, "u8"), np.asarray(float(scale)), np.asarray(math.trunc(zero), dtype=object)


KINDS = {
    "Quantize": quantize,
    "Dequantize": dequantize,
    "DynamicQuantize": dynamic_quantize,
    "DynamicDequantize": dynamic_dequantize,
    "DynamicQuantizeLinear": by_range,
}

DISCONTINUOUS = frozenset({"DynamicQuantizeLinear"})
