"""Operations of two or three tensors that broadcast against each other, bias and PReLU included.

Integers are exact, and wrap around at the width of their type; divided by zero they are 0, where floats follow IEEE
arithmetic. Maximum and Minimum return NaN when either side is NaN; any comparison with NaN is false.
"""

from __future__ import annotations

import numpy as np

from .axes import along_axis, channel_axis, other_axes, sum_to_shape
from .registry import Array, Attrs, binary, formulas, reference

binary({
    "Add": np.add, "And": np.logical_and, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor, "Equal": np.equal, "Greater": np.greater, "GreaterEqual": np.greater_equal,
    "Less": np.less, "LessEqual": np.less_equal, "Maximum": np.maximum, "Minimum": np.minimum,
    "Multiply": np.multiply, "Or": np.logical_or, "SquaredDifference": lambda x, y: np.square(x - y),
    "Subtract": np.subtract, "Xor": np.logical_xor,
})  # fmt: skip

formulas({
    "Mod": lambda attrs, src_0, src_1: np.fmod(src_0, src_1) if attrs["fmod"] else np.remainder(src_0, src_1),
    # to the right copies of the sign come in; by 64 places or more, or a negative number, nothing else is left
    "BitShift": lambda attrs, src_0, src_1: (
        np.left_shift(src_0, src_1) if attrs["direction"] == "LEFT" else np.right_shift(src_0, src_1)
    ),
})  # fmt: skip


@reference("Power")
def _power(attrs: Attrs, src_0: Array, src_1: Array) -> Array:
    """In float64, but exactly of integers with exponents of at least 0; of an integer without its fraction."""
    result = np.power(src_0.astype(np.float64), src_1.astype(np.float64))
    if src_0.dtype.kind == "f":
        return result
    if src_1.dtype.kind == "f":
        return np.trunc(result)
    exact = np.power(src_0, np.maximum(src_1, 0).astype(src_0.dtype))
    return np.asarray(np.where(src_1 < 0, np.trunc(np.nan_to_num(result, posinf=0)).astype(src_0.dtype), exact))


@reference("Divide")
def _divide(attrs: Attrs, src_0: Array, src_1: Array) -> Array:
    """The quotient; of integers without its fraction."""
    if "f" in (src_0.dtype.kind, src_1.dtype.kind):
        return np.divide(src_0, src_1)
    is_rounded_down = (np.remainder(src_0, src_1) != 0) & ((src_0 < 0) != (src_1 < 0))
    return np.asarray(np.floor_divide(src_0, src_1) + is_rounded_down.astype(src_0.dtype))


@reference("Select", "raw")
def _select(attrs: Attrs, cond: Array, src_0: Array, src_1: Array) -> Array:
    """src_0 where cond, else src_1; cond broadcasts to the shape of the sources, never the other way."""
    shape = np.broadcast_shapes(src_0.shape, src_1.shape)
    return np.where(np.broadcast_to(cond, shape), src_0, src_1)


@reference("BiasAdd")
def _bias_add(attrs: Attrs, src: Array, bias: Array) -> Array:
    return src + along_axis(bias, src.ndim, channel_axis(src.ndim, attrs["data_format"]))


@reference("BiasAddBackward")
def _bias_add_backward(attrs: Attrs, diff_dst: Array) -> Array:
    """Sum over every axis but the channels."""
    channels = channel_axis(diff_dst.ndim, attrs["data_format"])
    return np.asarray(np.sum(diff_dst, axis=other_axes(diff_dst.ndim, channels)))


def _spread_slope(attrs: Attrs, src: Array, slope: Array) -> Array:
    """The slope with the rank of src: a 1-D one runs along the channels, or along the last axis."""
    if slope.ndim != 1:
        return slope.reshape((1,) * (src.ndim - slope.ndim) + slope.shape)
    axis = channel_axis(src.ndim, attrs["data_format"]) if attrs.get("per_channel_broadcast", True) else src.ndim - 1
    return along_axis(slope, src.ndim, axis)


@reference("PReLU")
def _prelu(attrs: Attrs, src: Array, slope: Array) -> Array:
    """`x` for x > 0, else `slope x`."""
    return np.where(src > 0, src, _spread_slope(attrs, src, slope) * src)


@reference("PReLUBackward")
def _prelu_backward(attrs: Attrs, src: Array, slope: Array, diff_dst: Array) -> tuple[Array, Array]:
    """(dy or dy slope, sum of dy x over x <= 0), the sum over the axes along which slope was broadcast."""
    spread = _spread_slope(attrs, src, slope)
    diff_src = np.where(src > 0, diff_dst, diff_dst * spread)
    diff_slope = sum_to_shape(np.where(src > 0, 0.0, diff_dst * src), spread.shape)
    return diff_src, diff_slope.reshape(slope.shape)
