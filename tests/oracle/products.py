"""Matrix products; convolutions and their gradients, all as loops over the taps of the window.

A convolution is brought to one form: data (batch, groups, channels, spatial...), weights (groups, out, in, taps...).
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .numbers import Array

Attrs = dict[str, Any]


def matmul(attrs: Attrs, a: Array, b: Array, *bias: Array) -> Array:
    if attrs["transpose_a"] and a.ndim > 1:
        a = a.swapaxes(-1, -2)
    if attrs["transpose_b"] and b.ndim > 1:
        b = b.swapaxes(-1, -2)
    return sum(bias, np.matmul(a, b))


def listed(attrs: Attrs, name: str, count: int, default: int) -> list[int]:
    """An attribute with a number for each of `count` axes; a default is longer."""
    return list(attrs.get(name, (default,) * count))[:count]


def pads_of(attrs: Attrs, sizes: Sequence[int], kernel: Sequence[int], transposed: bool) -> tuple[list[int], list[int]]:
    """Padding on both sides of each spatial axis of the input of the convolution, or the output of a transposed one."""
    count, mode = len(sizes), attrs.get("auto_pad", "None")
    if mode == "None":
        return listed(attrs, "pads_begin", count, 0), listed(attrs, "pads_end", count, 0)
    if mode == "VALID":
        return [0] * count, [0] * count
    strides, dilations = steps_of(attrs, count)
    extra = listed(attrs, "output_padding", count, 0)
    less, more = [], []
    for size, taps, stride, dilation, padding in zip(sizes, kernel, strides, dilations, extra, strict=True):
        extent = dilation * (taps - 1) + 1
        if transposed:
            total = (size - 1) * stride + extent + padding - size * stride
        else:
            total = ((size + stride - 1) // stride - 1) * stride + extent - size
        less.append(max(total, 0) // 2)
        more.append(max(total, 0) - max(total, 0) // 2)
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def channels_first(attrs: Attrs, x: Array) -> Array:
    return x if attrs["data_format"] == "NCX" else np.moveaxis(x, -1, 1)


def as_given(attrs: Attrs, x: Array) -> Array:
    """The way back from `channels_first`."""
    return x if attrs["data_format"] == "NCX" else np.moveaxis(x, 1, -1)


def weight_order(attrs: Attrs, ndim: int) -> list[int]:
    """Axes (out, in, taps...) of weights as given; in and out are those of the forward operation."""
    letters = attrs["weights_format"]
    taps = list(range(ndim - 2))
    axes = {"XIO": [ndim - 1, ndim - 2, *taps], "XOI": [ndim - 2, ndim - 1, *taps],
            "OIX": [0, 1, *range(2, ndim)], "IOX": [1, 0, *range(2, ndim)]}  # fmt: skip
    return axes[letters]


def outer_first(attrs: Attrs, weights: Array) -> Array:
    """Weights as (groups, out, in, taps...), from a Convolution's, whose out channels are those of all groups."""
    w = weights.transpose(weight_order(attrs, weights.ndim))
    groups = attrs["groups"]
    return w.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def inner_first(attrs: Attrs, weights: Array) -> Array:
    """Weights as (groups, out, in, taps...), from a ConvTranspose's, whose in channels are those of all groups."""
    w = weights.transpose(weight_order(attrs, weights.ndim))
    groups = attrs["groups"]
    w = w.reshape(w.shape[0], groups, w.shape[1] // groups, *w.shape[2:])
    return w.swapaxes(0, 1)


def grouped(attrs: Attrs, x: Array) -> Array:
    """(batch, groups, channels, spatial...)."""
    x = channels_first(attrs, x)
    return x.reshape(x.shape[0], attrs["groups"], x.shape[1] // attrs["groups"], *x.shape[2:])


def ungrouped(attrs: Attrs, x: Array) -> Array:
    return as_given(attrs, x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:]))


def taps_of(
    attrs: Attrs, padded: Array, kernel: Sequence[int], out: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Each tap with the view of the padded data, spatial axes last, that it meets."""
    count = len(kernel)
    strides, dilations = steps_of(attrs, count)
    for tap in product(*map(range, kernel)):
        cut = [slice(t * d, t * d + (n - 1) * s + 1 if n else t * d, s)
               for t, d, s, n in zip(tap, dilations, strides, out, strict=True)]  # fmt: skip
        yield tap, padded[(..., *cut)]


def steps_of(attrs: Attrs, count: int) -> tuple[list[int], list[int]]:
    """Strides and dilations."""
    return listed(attrs, "strides", count, 1), listed(attrs, "dilations", count, 1)


def out_sizes(attrs: Attrs, padded: Sequence[int], kernel: Sequence[int]) -> list[int]:
    count = len(kernel)
    strides, dilations = steps_of(attrs, count)
    return [(size - (d * (k - 1) + 1)) // s + 1
            for size, k, s, d in zip(padded, kernel, strides, dilations, strict=True)]  # fmt: skip


def pad_spatial(x: Array, begin: Sequence[int], end: Sequence[int]) -> Array:
    widths = [(0, 0)] * (x.ndim - len(begin)) + list(zip(begin, end, strict=True))
    return np.pad(x, widths)


def counted(attrs: Attrs, sizes: Sequence[int], pads: tuple[list[int], list[int]]) -> Array:
    """Which places of the padded data count in sums: not the padding, unless `attrs` say so."""
    widths = list(zip(*pads, strict=True))
    return np.pad(np.ones(sizes, bool), widths, constant_values=attrs.get("padding_counts", False))


def correlate(attrs: Attrs, x: Array, w: Array, pads: tuple[list[int], list[int]]) -> Array:
    """The convolution of grouped data with weights (groups, out, in, taps...); padding is passed over."""
    padded, inside = pad_spatial(x, *pads), counted(attrs, x.shape[3:], pads)
    kernel = w.shape[3:]
    out = out_sizes(attrs, padded.shape[3:], kernel)
    result = np.zeros((*x.shape[:2], w.shape[1], *out))
    for (tap, met), (_, is_inside) in zip(
        taps_of(attrs, padded, kernel, out), taps_of(attrs, inside, kernel, out), strict=True
    ):
        terms = np.einsum("ngi...,goi->ngo...", met, w[(slice(None), slice(None), slice(None), *tap)])
        result += np.where(is_inside, terms, 0.0)
    return result


def scatter(
    attrs: Attrs, diff: Array, w: Array, sizes: Sequence[int], pads: tuple[list[int], list[int]]
) -> Array:  # fmt: skip
    """The gradient of `correlate` for data of the given spatial sizes; `diff` ends at its border, or zeros follow."""
    if attrs.get("padding_counts"):
        reach = [(d * (k - 1)) // s + 1 for k, s, d in zip(w.shape[3:], *steps_of(attrs, w.ndim - 3), strict=True)]
        diff = pad_spatial(diff, reach, reach)
        added = [n * s for n, s in zip(reach, steps_of(attrs, w.ndim - 3)[0], strict=True)]
        pads = tuple([a + more for a, more in zip(side, added, strict=True)] for side in pads)
    total = [size + a + b for size, a, b in zip(sizes, *pads, strict=True)]
    padded = np.zeros((*diff.shape[:2], w.shape[2], *total))
    for tap, met in taps_of(attrs, padded, w.shape[3:], diff.shape[3:]):
        met += np.einsum("ngo...,goi->ngi...", diff, w[(slice(None), slice(None), slice(None), *tap)])
    cut = [slice(a, a + size) for a, size in zip(pads[0], sizes, strict=True)]
    return padded[(..., *cut)]


def weight_gradient(attrs: Attrs, x: Array, diff: Array, kernel: Sequence[int], pads: Any) -> Array:
    """The gradient of `correlate` for the weights."""
    padded, inside = pad_spatial(x, *pads), counted(attrs, x.shape[3:], pads)
    result, out = np.zeros((x.shape[1], diff.shape[2], x.shape[2], *kernel)), diff.shape[3:]
    for (tap, met), (_, is_inside) in zip(
        taps_of(attrs, padded, kernel, out), taps_of(attrs, inside, kernel, out), strict=True
    ):
        by_tap, rows = result[(slice(None), slice(None), slice(None), *tap)], np.where(is_inside, diff, 0.0)
        by_tap += np.einsum("ngis,ngos->goi", met.reshape(*met.shape[:3], -1), rows.reshape(*rows.shape[:3], -1))
    return result


def add_bias(attrs: Attrs, y: Array, bias: Sequence[Array]) -> Array:
    """A result (batch, groups, channels, spatial...) with a bias for each channel."""
    y = ungrouped(attrs, y)
    for vector in bias:
        shape = [1] * y.ndim
        shape[1 if attrs["data_format"] == "NCX" else -1] = len(vector)
        y = y + vector.reshape(shape)
    return y


def convolution(attrs: Attrs, x: Array, weights: Array, *bias: Array) -> Array:
    data, w = grouped(attrs, x), outer_first(attrs, weights)
    return add_bias(attrs, correlate(attrs, data, w, pads_of(attrs, data.shape[3:], w.shape[3:], False)), bias)


def shape_from(attrs: Attrs, name: str, tensors: Sequence[Array]) -> list[int]:
    """A shape that is the content of a tensor, or else an attribute."""
    return [int(dim) for dim in (tensors[0] if tensors else attrs[name])]


def convolution_data(attrs: Attrs, diff: Array, weights: Array, *shape: Array) -> Array:
    w, d = outer_first(attrs, weights), grouped(attrs, diff)
    dims = shape_from(attrs, "dst_shape", shape)
    sizes = dims[2:] if attrs["data_format"] == "NCX" else dims[1:-1]
    plain = {name: value for name, value in attrs.items() if name != "output_padding"}
    return ungrouped(attrs, scatter(attrs, d, w, sizes, pads_of(plain, sizes, w.shape[3:], False)))


def convolution_weights(attrs: Attrs, x: Array, diff: Array, *shape: Array) -> Array:
    dims = shape_from(attrs, "weights_shape", shape)
    order = weight_order(attrs, len(dims))
    kernel = [dims[axis] for axis in order[2:]]
    data, d = grouped(attrs, x), grouped(attrs, diff)
    result = weight_gradient(attrs, data, d, kernel, pads_of(attrs, data.shape[3:], kernel, False))
    flat = result.reshape(-1, *result.shape[2:])
    return flat.transpose(np.argsort(order))


def conv_transpose(attrs: Attrs, x: Array, weights: Array, *bias: Array) -> Array:
    """The gradient of a convolution that has these weights with in and out swapped, for its data."""
    data, w = grouped(attrs, x), inner_first(attrs, weights)
    kernel, count = w.shape[3:], x.ndim - 2
    pads = pads_of(attrs, data.shape[3:], kernel, True)
    strides, dilations = steps_of(attrs, count)
    extra = listed(attrs, "output_padding", count, 0)
    sizes = [s * (n - 1) + d * (k - 1) + 1 - a - b + e for s, n, d, k, a, b, e in
             zip(strides, data.shape[3:], dilations, kernel, *pads, extra, strict=True)]  # fmt: skip
    return add_bias(attrs, scatter(attrs, data, w.swapaxes(1, 2), sizes, pads), bias)


def conv_transpose_data(attrs: Attrs, diff: Array, weights: Array) -> Array:
    d, w = grouped(attrs, diff), inner_first(attrs, weights)
    pads = pads_of(attrs, d.shape[3:], w.shape[3:], False)
    return ungrouped(attrs, correlate(attrs, d, w.swapaxes(1, 2), pads))


def conv_transpose_weights(attrs: Attrs, x: Array, diff: Array, *shape: Array) -> Array:
    """The gradient for the weights of the convolution that leads from diff_dst to src."""
    dims = shape_from(attrs, "weights_shape", shape)
    order = weight_order(attrs, len(dims))
    kernel = [dims[axis] for axis in order[2:]]
    d, data = grouped(attrs, diff), grouped(attrs, x)
    pads = pads_of(attrs, d.shape[3:], kernel, False)
    result = weight_gradient(attrs, d, data, kernel, pads)  # (groups, in, out, taps)
    by_out = np.moveaxis(result, 2, 0)
    return by_out.reshape(by_out.shape[0], -1, *by_out.shape[3:]).transpose(np.argsort(order))


KINDS = {
    "MatMul": matmul,
    "Convolution": convolution,
    "ConvolutionBackwardData": convolution_data,
    "ConvolutionBackwardWeights": convolution_weights,
    "ConvTranspose": conv_transpose,
    "ConvTransposeBackwardData": conv_transpose_data,
    "ConvTransposeBackwardWeights": conv_transpose_weights,
}
