"""Gradients that add up: of BiasAdd, PReLU, SoftMax, LogSoftmax, LayerNorm and BatchNormForwardTraining.

Each is a few elementwise programs and reductions on temporaries of float32, a pass over memory for each.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ...._kernels.norm.reduce import reduce
from ....graph.shapes import channel_axis
from ..lower.region import Region
from ..support import rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value


@rule("BiasAddBackward")
def lower_bias_add(lowering: Lowering, op: Op) -> None:
    """The sum over all but the channels."""
    gradient = lowering.value(op.inputs[0].id)
    axes = _all_but(channel_axis(len(gradient.shape), op.attrs["data_format"]), gradient)
    _finish(lowering, op.outputs[0].id, _add_up(lowering, gradient, axes))


@rule("PReLUBackward")
def lower_prelu(lowering: Lowering, op: Op) -> None:
    """dy for x > 0, else dy slope; and the sum of dy x elsewhere, over what shares a slope."""
    source, slope, gradient = (lowering.value(tensor.id) for tensor in op.inputs)
    shape = source.shape
    spread = [1] * (len(shape) - len(slope.shape)) + list(slope.shape)
    if len(slope.shape) == 1:
        spread = [1] * len(shape)
        spread[channel_axis(len(shape), op.attrs["data_format"])] = slope.shape[0]
    factors = lowering.dense(slope).reshaped(spread)

    def choose(region: Region, *, is_slope: bool) -> Any:
        x, dy = region.load(source), region.load(gradient)
        other = x if is_slope else region.load(factors)
        below, zero = region.binary("mul", dy, other), region.builder.const(0.0)
        is_above = region.binary("gt", x, zero)
        return region.builder.ternary("select", is_above, zero if is_slope else dy, below)

    _write(lowering, op, partial(choose, is_slope=False))
    terms = _compute(lowering, shape, partial(choose, is_slope=True), op)
    _finish(lowering, op.outputs[1].id, _add_up_to(lowering, terms, spread))


@rule("SoftMaxBackward")
def lower_softmax(lowering: Lowering, op: Op) -> None:
    """y (dy - sum of dy y)."""
    gradient, result = (lowering.value(tensor.id) for tensor in op.inputs)
    terms = _compute(lowering, result.shape, _times(gradient, result), op)
    total = _add_up(lowering, terms, [op.attrs["axis"] % len(result.shape)])

    def compute(region: Region) -> Any:
        rest = region.binary("sub", region.load(gradient), region.load(total))
        return region.binary("mul", region.load(result), rest)

    _write(lowering, op, compute)


@rule("LogSoftmaxBackward")
def lower_log_softmax(lowering: Lowering, op: Op) -> None:
    """dy - e^y sum of dy."""
    gradient, result = (lowering.value(tensor.id) for tensor in op.inputs)
    total = _add_up(lowering, gradient, [op.attrs["axis"] % len(result.shape)])

    def compute(region: Region) -> Any:
        share = region.binary("mul", region.unary("exp", region.load(result)), region.load(total))
        return region.binary("sub", region.load(gradient), share)

    _write(lowering, op, compute)


@rule("LayerNormBackward")
def lower_layer_norm(lowering: Lowering, op: Op) -> None:
    """Of rows, whose statistics have the shape of the leading axes; beta has no influence."""
    shape = lowering.shapes[op.inputs[0].id]
    first = op.attrs["begin_norm_axis"] % len(shape)
    has_gamma = len(op.inputs) > 4
    gamma = _parameter(lowering, op, shape[first:]) if has_gamma and op.attrs["use_affine"] else None
    sums = _emit_norm(lowering, op, range(first, len(shape)), range(first), gamma)
    for tensor, total in zip(op.outputs[1:], sums, strict=False):
        wanted = lowering.shapes[tensor.id]
        is_whole = prod(wanted) == prod(shape[first:])
        part = total.reshaped(shape[first:])
        _finish(lowering, tensor.id, part if is_whole else _add_up_to(lowering, part, wanted))


@rule("BatchNormTrainingBackward")
def lower_batch_norm(lowering: Lowering, op: Op) -> None:
    """Of channels, whose statistics are those of the batch."""
    source = lowering.value(op.inputs[0].id)
    channel = channel_axis(len(source.shape), op.attrs["data_format"])
    shape = [1] * len(source.shape)
    shape[channel] = source.shape[channel]
    axes = _all_but(channel, source)
    sums = _emit_norm(lowering, op, axes, axes, _parameter(lowering, op, shape) if len(op.inputs) > 4 else None)
    for tensor, total in zip(op.outputs[1:], sums, strict=False):
        _finish(lowering, tensor.id, total)


def _parameter(lowering: Lowering, op: Op, shape: Sequence[int]) -> Value:
    """Gamma as it broadcasts over what is normalised, also where it came flattened."""
    gamma = lowering.value(op.inputs[4].id)
    return lowering.dense(gamma).reshaped(shape) if prod(gamma.shape) == prod(shape) else gamma


def _emit_norm(
    lowering: Lowering, op: Op, axes: Collection[int], shared: Collection[int], gamma: Value | None
) -> tuple[Value, ...]:
    """The gradient for the source, and the sums of dy n and of dy over the axes that share a parameter.

    dx = (d - mean(d) - n mean(d n)) / s over `axes`, with n = (x - center) / s, s = sqrt(variance + epsilon) and
    d = dy gamma. Source: Ioffe and Szegedy, Batch Normalization, 2015, section 3.
    """
    source, gradient = (lowering.value(tensor.id) for tensor in op.inputs[:2])
    shape = source.shape
    reduced = tuple([1 if axis in axes else dim for axis, dim in enumerate(shape)])
    center, variance = (lowering.dense(lowering.value(tensor.id)).reshaped(reduced) for tensor in op.inputs[2:4])

    def deviate(region: Region) -> Any:
        return region.unary("sqrt", region.binary("add", region.load(variance), region.builder.const(epsilon)))

    def normalise(region: Region) -> Any:
        return region.binary("div", region.binary("sub", region.load(source), region.load(center)), region.load(scale))

    epsilon = op.attrs["epsilon"]
    scale = _compute(lowering, reduced, deviate, op)
    normal = _compute(lowering, shape, normalise, op)
    terms = _compute(lowering, shape, _times(gradient, normal), op)
    diff, weighted = gradient, terms
    if gamma is not None:
        diff, weighted = (_compute(lowering, shape, _times(value, gamma), op) for value in (gradient, terms))
    middle, along = (_add_up(lowering, value, axes, "mean") for value in (diff, weighted))

    def compute(region: Region) -> Any:
        rest = region.binary("sub", region.load(diff), region.load(middle))
        rest = region.binary("sub", rest, _product(region, normal, along))
        return region.binary("div", rest, region.load(scale))

    _write(lowering, op, compute)
    wanted = (terms, gradient)[: len(op.outputs) - 1]
    return tuple([_add_up(lowering, value, shared) for value in wanted])


def _product(region: Region, a: Value, b: Value) -> Any:
    return region.binary("mul", region.load(a), region.load(b))


def _times(a: Value, b: Value) -> Callable[[Region], Any]:
    return lambda region: _product(region, a, b)


def _all_but(axis: int, value: Value) -> list[int]:
    """The other axes."""
    return [other for other in range(len(value.shape)) if other != axis]


def _compute(
    lowering: Lowering, shape: Sequence[int], function: Callable[[Region], Any], op: Op, place: Value | None = None
) -> Value:
    """What a program gives, at a place or in a temporary."""
    place = place or lowering.temporary(shape)
    region = Region(lowering, place.shape)
    region.write(place, function(region))
    region.emit(f"eltwise({op.kind})")
    return place


def _write(lowering: Lowering, op: Op, function: Callable[[Region], Any]) -> None:
    """What a program gives, as the first result of the op."""
    result = op.outputs[0].id
    place = lowering.target(result, any_strides=True)
    lowering.finish(result, _compute(lowering, place.shape, function, op, place))


def _add_up(lowering: Lowering, value: Value, axes: Collection[int], name: str = "sum") -> Value:
    """The sum or mean over some axes, which stay as 1."""
    source = lowering.typed(value)
    kept = [1 if axis in axes else dim for axis, dim in enumerate(source.shape)]
    place = lowering.temporary(kept)
    lowering.emit(reduce(name, source.shape, list(axes), src_strides=source.strides), [source, place])
    return place


def _add_up_to(lowering: Lowering, value: Value, shape: Sequence[int]) -> Value:
    """The sum over all axes along which a tensor of this shape would be broadcast."""
    wanted = [1] * (len(value.shape) - len(shape)) + list(shape)
    return _add_up(lowering, value, [axis for axis, dim in enumerate(wanted) if dim == 1 and value.shape[axis] != 1])


def _finish(lowering: Lowering, tensor_id: int, total: Value) -> None:
    """Say that a sum holds a result, whose shape may lack axes of one element."""
    lowering.finish(tensor_id, total.reshaped(lowering.shapes[tensor_id]))
