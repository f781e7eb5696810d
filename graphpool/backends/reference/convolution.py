"""Matrix multiplication; convolution and transposed convolution with their gradients.

Convolutions are six kinds and three sums. With x the wide side (N, I, X), y the narrow side (N, O, Y) and w (O, I /
groups, K):

    correlate         y = sum over k of w[k] x[k]          Convolution, ConvTransposeBackwardData
    spread            x[k] += w[k]^T y for each k          ConvolutionBackwardData, ConvTranspose
    weight_gradient   w[k] = sum over n and Y of y x[k]    ConvolutionBackwardWeights, ConvTransposeBackwardWeights

where x[k] is the part of x that tap k of the window meets: padding is passed over. A transposed convolution is the same
relation read from y to x, so its weights (I, O / groups, K) are the w above. Groups are an axis of their own while
computing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .axes import along_axis, from_ncx, to_ncx
from .registry import Array, Attrs, Function, formulas, reference
from .window import Window, window_of


def _to_oix(weights: Array, weights_format: str) -> Array:
    """View with the narrow side's channels at axis 0 and the wide side's at axis 1.

    Both XIO of a convolution and XOI of a transposed one end in (wide, narrow): the transposed one reads backwards.
    """
    if weights_format in ("OIX", "IOX"):
        return weights
    return np.moveaxis(weights, (-1, -2), (0, 1))


def _from_oix(weights: Array, weights_format: str) -> Array:
    """Inverse of `_to_oix`."""
    if weights_format in ("OIX", "IOX"):
        return weights
    return np.moveaxis(weights, (0, 1), (-1, -2))


def _split_groups(array: Array, axis: int, groups: int) -> Array:
    """The channels at `axis` split into (groups, channels / groups)."""
    shape = array.shape
    return array.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _merge_groups(array: Array, axis: int) -> Array:
    """Inverse of `_split_groups`."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _flatten(array: Array, ndim: int) -> Array:
    """The last `ndim` axes as one; their product is stated because -1 is undefined for zero sizes."""
    lead = array.ndim - ndim
    return array.reshape(*array.shape[:lead], math.prod(array.shape[lead:]))


def _correlate(window: Window, wide: Array, weights: Array, groups: int) -> Array:
    """The narrow side of x (N, I, X) and w (O, I / groups, K): shape (N, O, Y)."""
    out_sizes = window.out_sizes(wide.shape[2:])
    x, grouped = _split_groups(wide, 1, groups), _split_groups(weights, 0, groups)
    narrow = np.zeros((wide.shape[0], groups, grouped.shape[1], *out_sizes))
    for tap, outputs, inputs in window.meetings(wide.shape[2:], out_sizes):
        met = narrow[outputs]
        met += (grouped[tap] @ _flatten(x[inputs], window.ndim)).reshape(met.shape)
    return _merge_groups(narrow, 1)


def _spread(window: Window, narrow: Array, weights: Array, groups: int, in_sizes: Sequence[int]) -> Array:
    """The wide side that y (N, O, Y) and w (O, I / groups, K) reach: shape (N, I, in_sizes)."""
    y, grouped = _split_groups(narrow, 1, groups), _split_groups(weights, 0, groups)
    wide = np.zeros((narrow.shape[0], groups, weights.shape[1], *in_sizes))
    for tap, outputs, inputs in window.meetings(in_sizes, narrow.shape[2:]):
        met = wide[inputs]
        met += (np.swapaxes(grouped[tap], -1, -2) @ _flatten(y[outputs], window.ndim)).reshape(met.shape)
    return _merge_groups(wide, 1)


def _weight_gradient(window: Window, wide: Array, narrow: Array, groups: int) -> Array:
    """The gradient of w for x (N, I, X) and the gradient of y (N, O, Y): shape (O, I / groups, K)."""
    x, y = _split_groups(wide, 1, groups), _split_groups(narrow, 1, groups)
    gradient = np.zeros((groups, y.shape[2], x.shape[2], *window.kernel))
    for tap, outputs, inputs in window.meetings(wide.shape[2:], narrow.shape[2:]):
        flat, patch = _flatten(y[outputs], window.ndim), _flatten(x[inputs], window.ndim)
        gradient[tap] = np.sum(flat @ np.swapaxes(patch, -1, -2), axis=0)
    return _merge_groups(gradient, 0)


def _shape_of(attrs: Attrs, name: str, tensor: Array | None, ndim: int) -> tuple[int, ...]:
    """A shape given as an input, or else as an attribute (whose default is longer than the rank)."""
    values = attrs[name][:ndim] if tensor is None else tensor.reshape(-1)
    return tuple(int(value) for value in values)


def _spatial_of(shape: Sequence[int], data_format: str) -> tuple[int, ...]:
    """The spatial sizes of an activation's shape."""
    return tuple(shape[1:-1] if data_format == "NXC" else shape[2:])


def _kernel_of(shape: Sequence[int], weights_format: str) -> tuple[int, ...]:
    """The spatial sizes of a weight's shape."""
    return tuple(shape[2:] if weights_format in ("OIX", "IOX") else shape[:-2])


def _add_bias(dst: Array, bias: Array | None) -> Array:
    """A tensor (N, C, X) plus an optional bias by channel."""
    return dst if bias is None else dst + along_axis(bias, dst.ndim, 1)


@reference("Convolution")
def _convolution(attrs: Attrs, src: Array, weights: Array, bias: Array | None = None) -> Array:
    wide, oix = to_ncx(src, attrs["data_format"]), _to_oix(weights, attrs["weights_format"])
    window = window_of(attrs, wide.shape[2:], oix.shape[2:])
    return from_ncx(_add_bias(_correlate(window, wide, oix, attrs["groups"]), bias), attrs["data_format"])


@reference("ConvolutionBackwardData")
def _convolution_backward_data(attrs: Attrs, diff_dst: Array, weights: Array, dst_shape: Array | None = None) -> Array:
    """The shape comes from dst_shape, so output_padding has nothing left to say."""
    shape = _shape_of(attrs, "dst_shape", dst_shape, diff_dst.ndim)
    in_sizes = _spatial_of(shape, attrs["data_format"])
    narrow, oix = to_ncx(diff_dst, attrs["data_format"]), _to_oix(weights, attrs["weights_format"])
    window = window_of(attrs, in_sizes, oix.shape[2:])
    return from_ncx(_spread(window, narrow, oix, attrs["groups"], in_sizes), attrs["data_format"])


@reference("ConvTranspose")
def _conv_transpose(attrs: Attrs, src: Array, weights: Array, bias: Array | None = None) -> Array:
    narrow, oix = to_ncx(src, attrs["data_format"]), _to_oix(weights, attrs["weights_format"])
    window = window_of(attrs, narrow.shape[2:], oix.shape[2:], transposed=True)
    out_sizes = window.in_sizes(narrow.shape[2:], attrs["output_padding"][: window.ndim])
    wide = _spread(window, narrow, oix, attrs["groups"], out_sizes)
    return from_ncx(_add_bias(wide, bias), attrs["data_format"])


def _backward_weights(is_transposed: bool) -> Function:
    """The gradient of weights."""

    def evaluate(attrs: Attrs, src: Array, diff_dst: Array, weights_shape: Array | None = None) -> Array:
        shape = _shape_of(attrs, "weights_shape", weights_shape, src.ndim)
        sides = to_ncx(src, attrs["data_format"]), to_ncx(diff_dst, attrs["data_format"])
        kernel = _kernel_of(shape, attrs["weights_format"])
        window = window_of(attrs, sides[0].shape[2:], kernel, transposed=is_transposed)
        wide, narrow = reversed(sides) if is_transposed else sides
        return _from_oix(_weight_gradient(window, wide, narrow, attrs["groups"]), attrs["weights_format"])

    return evaluate


formulas({
    "ConvolutionBackwardWeights": _backward_weights(False), "ConvTransposeBackwardWeights": _backward_weights(True),
    # output padding is no attribute here: it must be less than the stride, which the rounding down absorbs
    "ConvTransposeBackwardData": lambda attrs, diff_dst, weights: _convolution(attrs, diff_dst, weights),
})  # fmt: skip


def _transpose(matrix: Array, flag: bool) -> Array:
    """The last two axes swapped where `flag` says so; a vector stays as it is."""
    return np.swapaxes(matrix, -1, -2) if flag and matrix.ndim > 1 else matrix


@reference("MatMul")
def _matmul(attrs: Attrs, src: Array, weights: Array, bias: Array | None = None) -> Array:
    """`a @ b + bias` with NumPy's rules: vectors are promoted, batches broadcast, vector times vector has rank 0.

    ``accumulation_mode`` does not matter: float64 is at least as wide as any mode.
    """
    a, b = _transpose(src, attrs["transpose_a"]), _transpose(weights, attrs["transpose_b"])
    product = np.asarray(np.matmul(a, b))
    return product if bias is None else product + bias
