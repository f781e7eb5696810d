"""Normalisation and softmax."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.graph.shapes import are_equal
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView, Value


def _batch_norm(n: NodeView) -> list[Value]:
    if n.attr("training_mode", 0):
        return _batch_norm_of_batch(n)
    n.require(n.used_outputs < 2 and (n.opset >= 7 or bool(n.attr("is_test", 0))), "training of old opsets")
    n.require(n.opset >= 9 or n.attr("spatial", 1) == 1, "statistics of old opsets")
    parameters = [n.cast(n[k], DataType.F32) for k in range(1, 5)]
    return [n.emit("BatchNormInference", n[0], *parameters, epsilon=n.attr("epsilon", 1e-5), data_format="NCX")]


def _batch_norm_of_batch(n: NodeView) -> list[Value]:
    """Normalised by the statistics of the batch, and the running ones."""
    gamma, beta, mean, variance = (n.cast(n[k], DataType.F32) for k in range(1, 5))
    found = n.emit_several(
        "BatchNormForwardTraining", [n[0].dtype] + [DataType.F32] * 4, n[0], mean, variance, gamma, beta,
        epsilon=n.attr("epsilon", 1e-5), momentum=n.attr("momentum", 0.9), data_format="NCX",
    )  # fmt: skip
    return [found[0], *(n.cast(running, n[3].dtype) for running in found[1:3])]


def _layer_norm(n: NodeView) -> list[Value]:
    axis = n.axis(-1, len(n[0].shape))
    beta = n[2] if n.has(2) else None
    return layer_norm(n, n[0], n[1], beta, axis=axis, epsilon=n.attr("epsilon", 1e-5), with_stats=n.used_outputs > 1)


def within(n: NodeView, numbers: Value, ndim: int) -> Value:
    """Scales or shifts of so many last axes, without dimensions of 1 in front of these."""
    more = len(numbers.shape) - ndim
    is_alone = more > 0 and all(are_equal([dim], [1]) for dim in numbers.shape[:more])
    return n.reshape(numbers, numbers.shape[more:]) if is_alone else numbers


def layer_norm(
    n: NodeView, x: Value, gamma: Value, beta: Value | None, *, axis: int, epsilon: float, with_stats: bool
) -> list[Value]:
    """LayerNorm from an axis on, and the mean and inverse standard deviation where they are wanted."""
    shape, ndim = x.shape, len(x.shape) - axis
    gamma = n.cast(within(n, gamma, ndim), DataType.F32)
    if beta is None:
        beta = n.literal(np.zeros(gamma.shape, np.float32), gamma)
    else:
        beta = n.cast(within(n, beta, ndim), DataType.F32)
    options = {"begin_norm_axis": axis, "epsilon": epsilon, "use_affine": True}
    if not with_stats:
        return [n.emit("LayerNorm", x, gamma, beta, keep_stats=False, **options)]
    types = [x.dtype, DataType.F32, DataType.F32]
    result, mean, variance = n.emit_several("LayerNorm", types, x, gamma, beta, keep_stats=True, **options)
    inverse = n.emit("Pow", n.emit("Add", variance, n.literal(epsilon, variance)), beta=-0.5)
    kept = (*shape[:axis], *[1] * (len(shape) - axis))
    return [result, n.reshape(mean, kept), n.reshape(inverse, kept)]


def _group_norm(n: NodeView) -> Value:
    groups, channels = n.attr("num_groups"), n[0].shape[1]
    n.check(channels % groups == 0, "channels", f"a multiple of {groups} groups", channels)
    return _normalise_groups(n, n[1], n[2], groups)


def _normalise_groups(n: NodeView, gamma: Value, beta: Value, groups: int) -> Value:
    return n.emit(
        "GroupNorm", n[0], n.cast(gamma, DataType.F32), n.cast(beta, DataType.F32), groups=groups, keep_stats=False,
        use_affine=True, epsilon=n.attr("epsilon", 1e-5), data_format="NCX",
    )  # fmt: skip


def _rms_norm(n: NodeView) -> Value:
    axis = n.axis(-1, len(n[0].shape))
    gamma = within(n, n[1], len(n[0].shape) - axis)
    return n.emit("RMSNorm", n[0], gamma, begin_norm_axis=axis, epsilon=n.attr("epsilon", 1e-5))


def _lp_norm(n: NodeView) -> Value:
    """X divided by its norm along an axis; where that is 0, x is 0, and so is x over the least positive number."""
    n.require(n[0].dtype is DataType.F32, "no number stands for the least positive one")
    norm = n.emit(f"ReduceL{n.attr('p', 2)}", n[0], axes=[n.attr("axis", -1)], keep_dims=True)
    return n.emit("Divide", n[0], n.emit("Maximum", norm, n.literal(np.finfo(np.float32).tiny, norm)))


def _mean_variance_norm(n: NodeView) -> Value:
    """(x - mean) / (standard deviation + 1e-9); the addend is that of ONNX's definition."""
    axes, x = n.attr("axes") or [0, 2, 3], n[0]
    mean = n.emit("ReduceMean", x, axes=axes, keep_dims=True)
    variance = n.emit("ReduceMean", n.emit("SquaredDifference", x, mean), axes=axes, keep_dims=True)
    deviation = n.emit("Add", n.emit("Sqrt", variance), n.literal(1e-9, x))
    return n.emit("Divide", n.emit("Subtract", x, mean), deviation)


def _softmax(kind: str) -> Callable[[NodeView], Value]:
    def convert(n: NodeView) -> Value:
        shape = n[0].shape
        axis = n.axis(1 if n.opset < 13 else -1, len(shape))
        if n.opset >= 13 or axis == len(shape) - 1:
            return n.emit(kind, n[0], axis=axis)
        # before opset 13 all dimensions from the axis on were normalised together
        rows = n.reshape(n[0], (prod(shape[:axis]), prod(shape[axis:])))
        return n.reshape(n.emit(kind, rows, axis=1), shape)

    return convert


_MOST_PLACES = 2**24
"""Numbers up to which f32 holds each."""


def _hardmax(n: NodeView) -> Value:
    """One at the first of the largest elements, else zero; before opset 13 among all dimensions from the axis on."""
    shape = n[0].shape
    if 0 in shape:
        return n[0]
    axis = n.axis(1 if n.opset < 13 else -1, len(shape))
    x = n[0] if n.opset >= 13 else n.reshape(n[0], (prod(shape[:axis]), prod(shape[axis:])))
    axis = axis if n.opset >= 13 else 1
    extent = x.shape[axis]
    dtype = DataType.F32 if extent <= _MOST_PLACES else DataType.S64
    place = n.cast(n.emit_several("ArgMax", [DataType.S64], x, axis=axis, keep_dims=True)[0], dtype)
    places = n.cast(n.builder.numbers(0, extent, behind=len(x.shape) - 1 - axis), dtype)
    is_hot = n.emit_several("Equal", [DataType.BOOLEAN], place, places)[0]
    return n.reshape(n.cast(is_hot, x.dtype), shape)


CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm, "GroupNormalization": _group_norm,
    "InstanceNormalization": lambda n: _normalise_groups(n, n[1], n[2], n[0].shape[1]),
    "RMSNormalization": _rms_norm, "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm, "Softmax": _softmax("SoftMax"),
    "LogSoftmax": _softmax("LogSoftmax"), "Hardmax": _hardmax,
}  # fmt: skip
