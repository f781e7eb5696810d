"""SoftMax and LogSoftmax with their gradients, which take the forward result."""

from __future__ import annotations

import numpy as np

from .registry import Array, Attrs, reference


@reference("SoftMax")
def _softmax(attrs: Attrs, src: Array) -> tuple[Array, Array]:
    """(e^(x - m) / sum, m + log(sum)) along axis, with m the maximum and sum that of e^(x - m).

    NaN or infinity makes its row NaN, and so does a row of minus infinities; in mode inf_as_zero such a row is 0 and
    its statistic minus infinity.
    """
    axis = attrs["axis"]
    top = np.max(src, axis=axis, keepdims=True, initial=-np.inf)
    if attrs["mode"] == "inf_as_zero":
        top = np.where(np.isneginf(top), 0.0, top)
    exponential = np.exp(src - top)
    total = np.sum(exponential, axis=axis, keepdims=True)
    empty = (total == 0) & (attrs["mode"] == "inf_as_zero")
    return np.where(empty, 0.0, exponential / total), top + np.log(total)


@reference("SoftMaxBackward")
def _softmax_backward(attrs: Attrs, diff_dst: Array, dst: Array) -> Array:
    """`y (dy - sum(dy y))`."""
    return np.asarray(dst * (diff_dst - np.sum(diff_dst * dst, axis=attrs["axis"], keepdims=True)))


@reference("LogSoftmax")
def _log_softmax(attrs: Attrs, src: Array) -> Array:
    """`x - m - log(sum e^(x - m))` along axis, with m the maximum; a row of minus infinities is NaN."""
    shifted = src - np.max(src, axis=attrs["axis"], keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=attrs["axis"], keepdims=True)))


@reference("LogSoftmaxBackward")
def _log_softmax_backward(attrs: Attrs, diff_dst: Array, dst: Array) -> Array:
    """`dy - e^y sum(dy)`."""
    return np.asarray(diff_dst - np.exp(dst) * np.sum(diff_dst, axis=attrs["axis"], keepdims=True))
