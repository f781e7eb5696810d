"""Batch, layer, group and root-mean-square normalisation, softmax, and gradients.

The normalisations are gamma (x - mean) / sqrt(variance + epsilon) + beta, with the biased variance, over different
axes. For y = xhat gamma + beta whose statistics come from the same axes, and g = dy gamma,

    dx = (g - mean(g) - xhat mean(g xhat)) / sqrt(variance + epsilon)

Statistics over no elements are NaN.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from .axes import along_axis, channel_axis, from_ncx, mean, other_axes, sum_to_shape, to_ncx
from .registry import Array, Attrs, formulas, reference

_DEFAULT_MOMENTUM = 0.5


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and biased variance over `axes`, which stay as 1."""
    center = mean(x, axes, keepdims=True)
    return center, mean(np.square(x - center), axes, keepdims=True)


def _affine(x: Array, gamma: Array | None, beta: Array | None) -> Array:
    """`gamma x + beta`; either may be absent."""
    scaled = x if gamma is None else x * gamma
    return scaled if beta is None else scaled + beta


def _normalization_backward(diff: Array, normal: Array, deviation: Array, axes: tuple[int, ...]) -> Array:
    """`dx` of the module's formula; `diff` is dy gamma, `normal` is xhat, `deviation` is sqrt(variance + epsilon)."""
    along = mean(diff * normal, axes, keepdims=True)
    return np.asarray((diff - mean(diff, axes, keepdims=True) - normal * along) / deviation)


def _by_channel(vector: Array | None, src: Array, channel: int) -> Array | None:
    """An optional vector of length C shaped to broadcast along the channels of src."""
    return None if vector is None else along_axis(vector, src.ndim, channel)


@reference("BatchNormInference", "channelwise")
def _batch_norm_inference(attrs: Attrs, src: Array, gamma: Array, beta: Array, center: Array, variance: Array) -> Array:
    channel = channel_axis(src.ndim, attrs["data_format"])
    scale, shift, middle, spread = (along_axis(v, src.ndim, channel) for v in (gamma, beta, center, variance))
    return np.asarray(scale * (src - middle) / np.sqrt(spread + attrs["epsilon"]) + shift)


@reference("BatchNormForwardTraining", "channelwise")
def _batch_norm_forward_training(
    attrs: Attrs, src: Array, center: Array, variance: Array, gamma: Array | None = None, beta: Array | None = None
) -> tuple[Array, ...]:
    """(dst, running mean, running variance, batch mean, batch variance); momentum is the weight of the old value."""
    channel = channel_axis(src.ndim, attrs["data_format"])
    batch_center, batch_variance = _moments(src, other_axes(src.ndim, channel))
    normal = (src - batch_center) / np.sqrt(batch_variance + attrs["epsilon"])
    momentum = attrs.get("momentum", _DEFAULT_MOMENTUM)
    batch = batch_center.reshape(-1), batch_variance.reshape(-1)
    running = [momentum * old + (1.0 - momentum) * new for old, new in zip((center, variance), batch, strict=True)]
    dst = _affine(normal, _by_channel(gamma, src, channel), _by_channel(beta, src, channel))
    return dst, *running, *batch


@reference("BatchNormTrainingBackward", "channelwise")
def _batch_norm_training_backward(
    attrs: Attrs, src: Array, diff_dst: Array, center: Array, variance: Array, gamma: Array | None = None
) -> tuple[Array, Array, Array]:
    """(dx, sum of dy xhat, sum of dy); the statistics are those of the batch."""
    channel = channel_axis(src.ndim, attrs["data_format"])
    axes = other_axes(src.ndim, channel)
    deviation = np.sqrt(along_axis(variance, src.ndim, channel) + attrs["epsilon"])
    normal = (src - along_axis(center, src.ndim, channel)) / deviation
    diff = _affine(diff_dst, _by_channel(gamma, src, channel), None)
    diff_src = _normalization_backward(diff, normal, deviation, axes)
    return diff_src, np.asarray(np.sum(diff_dst * normal, axis=axes)), np.asarray(np.sum(diff_dst, axis=axes))


def _norm_axes(attrs: Attrs, src: Array) -> tuple[int, ...]:
    """The axes [begin_norm_axis, rank)."""
    return tuple(range(normalize_axis_index(attrs["begin_norm_axis"], src.ndim), src.ndim))


def _trailing(parameter: Array | None, src: Array, axes: tuple[int, ...]) -> Array | None:
    """`gamma` or beta with the shape of the normalised axes, also where it came flattened."""
    shape = tuple(src.shape[axis] for axis in axes)
    if parameter is None or parameter.size != math.prod(shape):
        return parameter
    return parameter.reshape(shape)


@reference("LayerNorm")
def _layer_norm(attrs: Attrs, src: Array, gamma: Array | None = None, beta: Array | None = None) -> tuple[Array, ...]:
    """(dst, mean, variance), the statistics with the shape of the leading axes."""
    axes = _norm_axes(attrs, src)
    center, variance = _moments(src, axes)
    dst = (src - center) / np.sqrt(variance + attrs["epsilon"])
    if attrs["use_affine"]:
        dst = _affine(dst, _trailing(gamma, src, axes), _trailing(beta, src, axes))
    return dst, np.squeeze(center, axes), np.squeeze(variance, axes)


@reference("LayerNormBackward")
def _layer_norm_backward(
    attrs: Attrs,
    src: Array,
    diff_dst: Array,
    center: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, ...]:
    """(dx, sum of dy xhat, sum of dy), the sums over what shares an element of gamma; beta has no influence."""
    axes = _norm_axes(attrs, src)
    lead = tuple(range(axes[0]))
    shape = tuple(1 if axis in axes else dim for axis, dim in enumerate(src.shape))
    deviation = np.sqrt(variance.reshape(shape) + attrs["epsilon"])
    normal = (src - center.reshape(shape)) / deviation
    diff = _affine(diff_dst, _trailing(gamma, src, axes) if attrs["use_affine"] else None, None)
    diff_src = _normalization_backward(diff, normal, deviation, axes)
    sums = [np.asarray(np.sum(term, axis=lead)) for term in (diff_dst * normal, diff_dst)]
    if gamma is None:
        return diff_src, *sums
    given = gamma.shape
    is_whole = gamma.size == sums[0].size
    return diff_src, *(total.reshape(given) if is_whole else sum_to_shape(total, given) for total in sums)


@reference("GroupNorm")
def _group_norm(attrs: Attrs, src: Array, gamma: Array | None = None, beta: Array | None = None) -> tuple[Array, ...]:
    """(dst, mean, variance), the statistics of shape (N, groups)."""
    x = to_ncx(src, attrs["data_format"])
    batch, channels, groups = x.shape[0], x.shape[1], attrs["groups"]
    grouped = x.reshape(batch, groups, channels // groups, *x.shape[2:])
    center, variance = _moments(grouped, tuple(range(2, grouped.ndim)))
    normal = ((grouped - center) / np.sqrt(variance + attrs["epsilon"])).reshape(x.shape)
    if attrs["use_affine"]:
        normal = _affine(normal, _by_channel(gamma, x, 1), _by_channel(beta, x, 1))
    stats = (statistic.reshape(batch, groups) for statistic in (center, variance))
    return (from_ncx(normal, attrs["data_format"]), *stats)


@reference("RMSNorm")
def _rms_norm(attrs: Attrs, src: Array, gamma: Array | None = None) -> Array:
    """`gamma x / sqrt(mean(x^2) + epsilon)`."""
    axes = _norm_axes(attrs, src)
    normal = src / np.sqrt(mean(np.square(src), axes, keepdims=True) + attrs["epsilon"])
    return _affine(normal, _trailing(gamma, src, axes), None)


# ---- softmax


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


@reference("LogSoftmax")
def _log_softmax(attrs: Attrs, src: Array) -> Array:
    """`x - m - log(sum e^(x - m))` along axis, with m the maximum; a row of minus infinities is NaN."""
    shifted = src - np.max(src, axis=attrs["axis"], keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=attrs["axis"], keepdims=True)))


formulas({  # y is the forward result: y (dy - sum(dy y)), and dy - e^y sum(dy)
    "SoftMaxBackward": lambda attrs, diff_dst, dst: (
        dst * (diff_dst - np.sum(diff_dst * dst, axis=attrs["axis"], keepdims=True))
    ),
    "LogSoftmaxBackward": lambda attrs, diff_dst, dst: (
        diff_dst - np.exp(dst) * np.sum(diff_dst, axis=attrs["axis"], keepdims=True)
    ),
})  # fmt: skip


# ---- classes from their pairs


@reference("CouplePairs")
def _couple_pairs(attrs: Attrs, src: Array) -> Array:
    """The second method of Wu, Lin and Weng (2004), from equal shares, for so many steps or until a row is near."""
    nclasses = (1 + math.isqrt(1 + 8 * src.shape[1])) // 2
    first, second = np.triu_indices(nclasses, 1)
    wins = np.zeros((len(src), nclasses, nclasses))
    wins[:, first, second], wins[:, second, first] = src, 1 - src
    forms = -wins * wins.transpose(0, 2, 1)
    forms[:, range(nclasses), range(nclasses)] = np.square(wins).sum(1)
    return np.array([_coupled(form) for form in forms]).reshape(len(src), nclasses)


def _coupled(form: Array) -> Array:
    """The shares p of sum 1 that make p' form p small."""
    count = len(form)
    shares = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        slopes = form @ shares
        least = shares @ slopes
        if np.abs(slopes - least).max() < 0.005 / count:
            break
        for k in range(count):
            step = (least - slopes[k]) / form[k, k]
            shares[k] += step
            least = (least + step * (step * form[k, k] + 2 * slopes[k])) / (1 + step) ** 2
            slopes = (slopes + step * form[k]) / (1 + step)
            shares /= 1 + step
    return shares
