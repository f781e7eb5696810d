"""Normalisation by mean and variance, with gradients from the chain rule; softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .pairs import along_channels, other_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .numbers import Array

Attrs = dict[str, Any]


def batch_inference(attrs: Attrs, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
    gamma, beta, mean, variance = (along_channels(attrs, v, x.ndim) for v in (gamma, beta, mean, variance))
    return gamma * (x - mean) / np.sqrt(variance + attrs["epsilon"]) + beta


def batch_training(attrs: Attrs, x: Array, mean: Array, variance: Array, *affine: Array) -> tuple[Array, ...]:
    """The batch's statistics normalise; running ones keep a share `momentum` of what they were."""
    axes = other_axes(attrs, x.ndim)
    batch_mean = x.mean(axis=axes)
    batch_variance = ((x - along_channels(attrs, batch_mean, x.ndim)) ** 2).mean(axis=axes)
    gamma = affine[0] if affine else np.ones_like(mean)
    beta = affine[1] if len(affine) > 1 else np.zeros_like(mean)
    y = batch_inference(attrs, x, gamma, beta, batch_mean, batch_variance)
    keep = attrs.get("momentum", 0.5)
    running = [keep * old + (1 - keep) * new for old, new in ((mean, batch_mean), (variance, batch_variance))]
    return (y, *running, batch_mean, batch_variance)


def normalised_gradient(x: Array, diff: Array, mean: Array, variance: Array, epsilon: float, axes: Any) -> Array:
    """Gradient for x of sum(diff * (x - mean) / sqrt(variance + epsilon)), mean and variance being those of x."""
    deviation = np.sqrt(variance + epsilon)
    unit = (x - mean) / deviation
    centred = diff - diff.mean(axis=axes, keepdims=True) - unit * (diff * unit).mean(axis=axes, keepdims=True)
    return centred / deviation


def batch_backward(attrs: Attrs, x: Array, diff: Array, mean: Array, variance: Array, *gamma: Array
                   ) -> tuple[Array, ...]:  # fmt: skip
    axes = other_axes(attrs, x.ndim)
    mean, variance = along_channels(attrs, mean, x.ndim), along_channels(attrs, variance, x.ndim)
    scaled = diff * along_channels(attrs, gamma[0], x.ndim) if gamma else diff
    unit = (x - mean) / np.sqrt(variance + attrs["epsilon"])
    by_x = normalised_gradient(x, scaled, mean, variance, attrs["epsilon"], axes)
    return by_x, (diff * unit).sum(axis=axes), diff.sum(axis=axes)


def inner_axes(attrs: Attrs, ndim: int) -> tuple[int, ...]:
    begin = attrs["begin_norm_axis"]
    return tuple(range(begin + ndim if begin < 0 else begin, ndim))


def layer(attrs: Attrs, x: Array, *affine: Array) -> tuple[Array, ...]:
    axes = inner_axes(attrs, x.ndim)
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    y = (x - mean) / np.sqrt(variance + attrs["epsilon"])
    if affine and attrs["use_affine"]:
        y = y * affine[0] + affine[1]
    return y, mean.squeeze(axes), variance.squeeze(axes)


def sum_to(x: Array, shape: Sequence[int]) -> Array:
    """The sum over all that an array of this shape is repeated over when it broadcasts to x."""
    lead = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, dim in enumerate(lead) if dim == 1)
    return x.sum(axis=axes, keepdims=True).reshape(shape)


def layer_backward(attrs: Attrs, x: Array, diff: Array, mean: Array, variance: Array, *affine: Array
                   ) -> tuple[Array, ...]:  # fmt: skip
    axes = inner_axes(attrs, x.ndim)
    mean, variance = (v.reshape(v.shape + (1,) * len(axes)) for v in (mean, variance))
    unit = (x - mean) / np.sqrt(variance + attrs["epsilon"])
    scaled = diff * affine[0] if affine and attrs["use_affine"] else diff
    shape = affine[0].shape if affine else x.shape[axes[0] :]
    by_x = normalised_gradient(x, scaled, mean, variance, attrs["epsilon"], axes)
    return by_x, sum_to(diff * unit, shape), sum_to(diff, shape)


def group(attrs: Attrs, x: Array, *affine: Array) -> tuple[Array, ...]:
    first = x if attrs["data_format"] == "NCX" else np.moveaxis(x, -1, 1)
    parts = first.reshape(first.shape[0], attrs["groups"], -1)
    mean = parts.mean(axis=2, keepdims=True)
    variance = ((parts - mean) ** 2).mean(axis=2, keepdims=True)
    y = ((parts - mean) / np.sqrt(variance + attrs["epsilon"])).reshape(first.shape)
    y = y if attrs["data_format"] == "NCX" else np.moveaxis(y, 1, -1)
    if affine and attrs["use_affine"]:
        y = y * along_channels(attrs, affine[0], x.ndim) + along_channels(attrs, affine[1], x.ndim)
    return y, mean[:, :, 0], variance[:, :, 0]


def root_mean_square(attrs: Attrs, x: Array, *gamma: Array) -> Array:
    mean = (x * x).mean(axis=inner_axes(attrs, x.ndim), keepdims=True)
    y = x / np.sqrt(mean + attrs["epsilon"])
    return y * gamma[0] if gamma else y


def exponentials(attrs: Attrs, x: Array) -> tuple[Array, Array, Array]:
    """exp(x - max), its sum along the axis, and the maximum."""
    top = x.max(axis=attrs["axis"], keepdims=True, initial=-math.inf)
    powers = np.exp(x - top)
    return powers, powers.sum(axis=attrs["axis"], keepdims=True), top


def softmax(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    """A row of -inf alone is NaN, or 0 with mode inf_as_zero."""
    powers, total, top = exponentials(attrs, x)
    y, stats = powers / total, top + np.log(total)
    if attrs["mode"] == "inf_as_zero":
        y, stats = np.where(np.isneginf(top), 0.0, y), np.where(np.isneginf(top), top, stats)
    return y, stats


def log_softmax(attrs: Attrs, x: Array) -> Array:
    _, total, top = exponentials(attrs, x)
    return x - top - np.log(total)


def softmax_backward(attrs: Attrs, diff: Array, y: Array) -> Array:
    return y * (diff - (diff * y).sum(axis=attrs["axis"], keepdims=True))


def log_softmax_backward(attrs: Attrs, diff: Array, y: Array) -> Array:
    return diff - np.exp(y) * diff.sum(axis=attrs["axis"], keepdims=True)


def couple_pairs(attrs: Attrs, pairs: Array) -> Array:
    """Wu, Lin and Weng's second method (2004) with libsvm's start and end, a row and a class at a time."""
    nclasses = next(k for k in range(2, pairs.shape[1] + 2) if k * (k - 1) // 2 == pairs.shape[1])
    return np.array([coupled(row, nclasses) for row in pairs]).reshape(len(pairs), nclasses)


def coupled(row: Array, nclasses: int) -> Array:
    classes = range(nclasses)
    numbers = iter(row.tolist())
    won = {(i, j): next(numbers) for i in classes for j in classes if i < j}
    won |= {(j, i): 1 - share for (i, j), share in won.items()}
    form = np.array([
        [sum(won[k, i] ** 2 for k in classes if k != i) if i == j else -won[j, i] * won[i, j] for j in classes]
        for i in classes
    ])  # fmt: skip
    p = np.full(nclasses, 1 / nclasses)
    for _ in range(max(100, nclasses)):
        slopes = form @ p
        if max(abs(slopes - p @ slopes)) < 0.005 / nclasses:
            break
        for i in classes:
            p = p.copy()
            # the class takes what makes the derivative of the form along it nothing, and all shares are scaled to 1
            p[i] += (p @ form @ p - (form @ p)[i]) / form[i, i]
            p /= p.sum()
    return p


KINDS = {
    "CouplePairs": couple_pairs,
    "BatchNormInference": batch_inference,
    "BatchNormForwardTraining": batch_training,
    "BatchNormTrainingBackward": batch_backward,
    "LayerNorm": layer,
    "LayerNormBackward": layer_backward,
    "GroupNorm": group,
    "RMSNorm": root_mean_square,
    "SoftMax": softmax,
    "SoftMaxBackward": softmax_backward,
    "LogSoftmax": log_softmax,
    "LogSoftmaxBackward": log_softmax_backward,
}

DISCONTINUOUS = frozenset({"CouplePairs"})
