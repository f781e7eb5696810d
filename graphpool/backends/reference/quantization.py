"""Quantisation with scales and zero points from attributes or, in the dynamic kinds, from inputs or from the range.

Quantising returns x / scale + zp; `evaluate` rounds that to the output type: half to even and saturating for integers,
saturating without an integer step for f8. NaN becomes the least integer. Dequantising returns (x - zp) scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphpool.graph.shapes import scale_group_axis
from graphpool.typing import DataType

from .axes import along_axis
from .registry import Array, Attrs, reference


def _spread(values: Array, src: Array, attrs: Attrs) -> Array:
    """Scales or zero points with the rank of src, one element for each of its elements up to broadcasting."""
    if attrs["qtype"] == "per_tensor" or values.size == 1:
        return values.reshape((1,) * src.ndim)
    if attrs["qtype"] == "per_channel":
        axis = attrs["axis"] % src.ndim
        if values.size == src.shape[axis]:
            return along_axis(values, src.ndim, axis)
        return _by_group(values, src, axis)
    for axis, size in enumerate(attrs["group_shape"]):
        values = np.repeat(values, size, axis=axis)
    return values


def _by_group(values: Array, src: Array, axis: int) -> Array:
    """Values in the order (group, channel), each repeated for the indices of its group along another axis."""
    other = scale_group_axis(src.shape, axis, values.size)
    rows, channels = src.shape[other], src.shape[axis]
    block = rows * channels // values.size
    table = np.stack([values.reshape(-1, channels)[index // block] for index in range(rows)])
    return np.moveaxis(table.reshape(table.shape + (1,) * (src.ndim - 2)), (0, 1), (other, axis))


def _attr_values(values: Sequence[float], src: Array, attrs: Attrs) -> Array:
    return _spread(np.asarray(values, dtype=np.float64), src, attrs)


def _zps_attr(attrs: Attrs, src: Array) -> Array:
    """Zero points of the attribute; 0 where it is missing or empty."""
    return _attr_values(attrs.get("zps") or [0] * len(attrs["scales"]), src, attrs)


@reference("Quantize", "typed")
def _quantize(attrs: Attrs, src: Array) -> Array:
    scaled = src / _attr_values(attrs["scales"], src, attrs)
    zps = _zps_attr(attrs, src)
    return _least_of_nan((np.rint(scaled) if attrs.get("rounds_first") and np.any(zps) else scaled) + zps, attrs)


def _least_of_nan(values: Array, attrs: Attrs) -> Array:
    """Values in which NaN is what saturates at the least integer, as ONNX and ONNX Runtime have it; floats keep it."""
    is_float = attrs["dtype"] in (DataType.F8_E4M3, DataType.F8_E5M2)
    return values if is_float else np.where(np.isnan(values), -np.inf, values)


@reference("Dequantize")
def _dequantize(attrs: Attrs, src: Array) -> Array:
    return (src - _zps_attr(attrs, src)) * _attr_values(attrs["scales"], src, attrs)


@reference("DynamicQuantize", "typed")
def _dynamic_quantize(attrs: Attrs, src: Array, scales: Array, zps: Array | None = None) -> Array:
    scaled = src / _spread(scales, src, attrs)
    return _least_of_nan(scaled if zps is None else scaled + _spread(zps, src, attrs), attrs)


@reference("DynamicDequantize")
def _dynamic_dequantize(attrs: Attrs, src: Array, scales: Array, zps: Array | None = None) -> Array:
    shifted = src if zps is None else src - _spread(zps, src, attrs)
    return shifted * _spread(scales, src, attrs)


@reference("DynamicQuantizeLinear")
def _dynamic_quantize_linear(attrs: Attrs, src: Array) -> tuple[Array, Array, Array]:
    """In f32, whose rounding decides which byte is nearest; a range of nothing but 0 counts as [0, 1]."""
    x = src.astype(np.float32)
    least, greatest = (extreme(x.reshape(-1), initial=np.float32(0)) for extreme in (np.fmin.reduce, np.fmax.reduce))
    scale = np.float32(1 if least == greatest else greatest - least) / np.float32(255)
    zero = np.rint(np.clip(-least / scale, 0, 255))
    return np.rint(x / scale) + zero, np.asarray(scale), zero
