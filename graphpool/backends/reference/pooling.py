"""Average and maximum pools with their gradients.

Padding never wins a maximum, and NaN always does. The gradient of a maximum goes to the first element of the window, in
row-major order, that holds it. With ``rounding_type`` ceil the last window may reach beyond the padded input: what it
meets there is no element and never counts in a divisor. A window that holds no element gives minus infinity in MaxPool
and 0 in AvgPool.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .axes import from_ncx, to_ncx
from .registry import Array, Attrs, reference
from .window import Meeting, Window, window_of


def _window(attrs: Attrs, in_sizes: Sequence[int]) -> Window:
    return window_of(attrs, in_sizes, attrs["kernel"][: len(in_sizes)])


def _out_sizes(attrs: Attrs, window: Window, in_sizes: Sequence[int]) -> tuple[int, ...]:
    return window.out_sizes(in_sizes, ceil=attrs["rounding_type"] == "ceil")


def _divisors(attrs: Attrs, window: Window, in_sizes: Sequence[int], out_sizes: Sequence[int]) -> Array:
    """Elements that each window counts: those of the input, and of its padding unless exclude_pad."""
    return np.maximum(window.counts(in_sizes, out_sizes, with_pads=not attrs["exclude_pad"]), 1.0)


@reference("AvgPool")
def _avg_pool(attrs: Attrs, src: Array) -> Array:
    x = to_ncx(src, attrs["data_format"])
    window = _window(attrs, x.shape[2:])
    out_sizes = _out_sizes(attrs, window, x.shape[2:])
    total = np.zeros((*x.shape[:2], *out_sizes))
    for _, outputs, inputs in window.meetings(x.shape[2:], out_sizes):
        total[outputs] += x[inputs]
    return from_ncx(total / _divisors(attrs, window, x.shape[2:], out_sizes), attrs["data_format"])


@reference("AvgPoolBackward")
def _avg_pool_backward(attrs: Attrs, diff_dst: Array, src_shape: Array | None = None) -> Array:
    """Each output's gradient, divided as its forward sum was, goes to every element of its window."""
    diff = to_ncx(diff_dst, attrs["data_format"])
    shape = attrs["src_shape"][: diff.ndim] if src_shape is None else src_shape.reshape(-1).tolist()
    in_sizes = tuple(shape[1:-1] if attrs["data_format"] == "NXC" else shape[2:])
    window, out_sizes = _window(attrs, in_sizes), diff.shape[2:]
    share = diff / _divisors(attrs, window, in_sizes, out_sizes)
    gradient = np.zeros((*diff.shape[:2], *in_sizes))
    for _, outputs, inputs in window.meetings(in_sizes, out_sizes):
        gradient[inputs] += share[outputs]
    return from_ncx(gradient, attrs["data_format"])


@reference("MaxPool")
def _max_pool(attrs: Attrs, src: Array) -> Array:
    x = to_ncx(src, attrs["data_format"])
    window = _window(attrs, x.shape[2:])
    out_sizes = _out_sizes(attrs, window, x.shape[2:])
    top = np.full((*x.shape[:2], *out_sizes), -np.inf)
    for _, outputs, inputs in window.meetings(x.shape[2:], out_sizes):
        top[outputs] = np.maximum(top[outputs], x[inputs])
    return from_ncx(top, attrs["data_format"])


def _first_maximum(meetings: Sequence[Meeting], x: Array, out_sizes: Sequence[int]) -> Array:
    """Number of the meeting that holds each output's maximum; -1 where the window holds no element."""
    best = np.full((*x.shape[:2], *out_sizes), -np.inf)
    chosen = np.full(best.shape, -1)
    for number, (_, outputs, inputs) in enumerate(meetings):
        value, top = x[inputs], best[outputs]
        better = (chosen[outputs] < 0) | (value > top) | (np.isnan(value) & ~np.isnan(top))
        best[outputs], chosen[outputs] = np.where(better, value, top), np.where(better, number, chosen[outputs])
    return chosen


@reference("MaxPoolBackward", "channelwise")
def _max_pool_backward(attrs: Attrs, src: Array, diff_dst: Array) -> Array:
    x, diff = to_ncx(src, attrs["data_format"]), to_ncx(diff_dst, attrs["data_format"])
    meetings = list(_window(attrs, x.shape[2:]).meetings(x.shape[2:], diff.shape[2:]))
    chosen = _first_maximum(meetings, x, diff.shape[2:])
    gradient = np.zeros(x.shape)
    for number, (_, outputs, inputs) in enumerate(meetings):
        gradient[inputs] += np.where(chosen[outputs] == number, diff[outputs], 0.0)
    return from_ncx(gradient, attrs["data_format"])
