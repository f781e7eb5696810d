"""int8 convolutions with constant weights: 8-bit images in and out.

As in `int8_matmul.py`: taken where s32 holds every sum, and with panels that each run fills where the constant tensor
cache keeps none. Images lie channels last. Zero points of weights that are not 0 as signed numbers cost the sums of
windows, but for those of depthwise convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...._kernels.conv.depthwise import MOST_TAPS, Int8DepthwiseFormat
from ...._kernels.conv.int8 import Int8ConvFormat
from ...._kernels.conv.problem import ConvShape
from ...._kernels.gemm.post_ops import PostOps
from ....graph.shapes import channel_axis, conv_weight_axes, per_axis
from ....typing import DataType
from ..choices import forced
from ..layout.images import axes_of, pick, spans_too_much
from ..lower.epilogue import make_epilogue
from ..lower.region import Region
from ..lower.requantize import find_requantized
from ..lower.values import Value, strides_in
from .conv_weights import conv_problem, pixel_strides
from .int8_matmul import DEPTH, find_dynamic, scale_vector, zero_points_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._kernels.conv.problem import ConvFormat
    from ..lower.lowering import Lowering
    from ..lower.requantize import Requantized
    from ..match.groups import Group

__all__ = ["Int8ConvWeights", "emit_int8_convolution", "find_int8_weights"]


@dataclass(frozen=True)
class Int8ConvWeights:
    """The weights of a convolution in panels of bytes.

    Attributes
    ----------
    packed : Value
        What the cache keeps.
    format : ConvFormat
    zero_point : int
        Of the image; 0 where the run gives it.
    columns : tuple of int
        Zero points of the channels as the panels hold them; none where all are 0.
    """

    packed: Value
    format: ConvFormat
    zero_point: int
    columns: tuple[int, ...] = ()


def find_int8_weights(lowering: Lowering, group: Group) -> Int8ConvWeights | None:
    """The weights of a convolution of quantised operands in panels; None where the kernel does not take them."""
    op = group.anchor
    if op is None or op.kind != "Convolution" or forced(op.kind) == "blas" or not group.dequantized:
        return None
    weights, result = lowering.value(group.dequantized[1].inputs[0].id), lowering.shapes[group.result]
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    kernel, groups, ic = tuple(pick(weights.shape, kernel_axes)), op.attrs["groups"], weights.shape[inner]
    is_last = lowering.order_of(group.result)[-1] == channel_axis(len(result), op.attrs["data_format"])
    zero_points = zero_points_of(group, weights.shape[outer])
    if not is_last or not lowering.is_constant(weights) or 0 in (*weights.shape, *result) or zero_points is None:
        return None
    shape = ConvShape(ic * groups, weights.shape[outer], kernel, groups, per_axis(op.attrs, "dilations", len(kernel)))
    if groups > 1 and groups == weights.shape[outer] and ic == 1:
        return _find_depthwise(lowering, group, weights, shape, (outer, *kernel_axes), zero_points[0])
    source = lowering.shapes[op.inputs[0].id]
    if prod(kernel) * ic > DEPTH or (groups > 1 and ic == 1) or spans_too_much(op, source, result, kernel):
        return None
    weights_format = Int8ConvFormat(shape, weights.dtype.value)
    group_stride = weights.shape[outer] // groups * weights.strides[outer]
    strides = [group_stride, *pick(weights.strides, (outer, inner, *kernel_axes))]

    def fill(packed: Value) -> None:
        lowering.emit(weights_format.pack(strides), [weights, packed])

    packed = lowering.packed_constant([weights], weights_format.nbytes, fill)
    return Int8ConvWeights(packed, weights_format, *zero_points)


def _find_depthwise(
    lowering: Lowering, group: Group, weights: Value, shape: ConvShape, axes: Sequence[int], zero_point: int
) -> Int8ConvWeights | None:
    """The weights of a depthwise convolution, less their zero point, in f32; `axes`: of (channel, spatial...)."""
    if prod(shape.kernel) > MOST_TAPS:
        return None
    zps = group.dequantized[1].attrs.get("zps") or [0]
    place = strides_in(weights.shape, [*axes[1:], *(k for k in range(len(weights.shape)) if k not in axes), axes[0]])

    def fill(packed: Value) -> None:
        region = Region(lowering, weights.shape)
        integers = region.binary("sub", region.load(weights), region.literal(zps, axes[0]))
        region.write(Value(DataType.F32, weights.shape, place, packed.buffer), integers)
        lowering.emit(region.builder.build(), [packed, *region.operands], "eltwise(w - zp)")

    weights_format = Int8DepthwiseFormat(shape)
    packed = lowering.packed_constant([weights], weights_format.nbytes, fill)
    return Int8ConvWeights(packed, weights_format, zero_point)


def emit_int8_convolution(lowering: Lowering, group: Group, operand: Int8ConvWeights, place: Value) -> None:
    """The convolution with weights in panels, with its bias and the post-ops of the group, to `place`."""
    op = group.anchor
    assert op is not None
    axes = axes_of(op, len(place.shape))
    source, channels = lowering.value(group.dequantized[0].inputs[0].id), place.shape[axes[1]]
    bias = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    order = lowering.order_of(group.result)
    dst_strides = pick(pixel_strides(place, order) or strides_in(place.shape, order), axes)
    found = _find_requantized(lowering, group, bias, place, axes[1])
    dynamic, given = find_dynamic(lowering, group, operand.columns, scale=found is not None)
    if found is None:
        epilogue = make_epilogue(lowering, group, bias, axes[1], place=place)
        post_ops = PostOps(dynamic=dynamic, epilogue=epilogue.block)
        ones = lowering.literal(np.ones(channels, np.float32))
        own, operands, name = [ones, *given], epilogue.operands, epilogue.name
    else:
        residual_strides = None if found.residual is None else pick(found.residual.strides, axes)
        post_ops = found.post_ops(dynamic, residual_strides)
        own, operands = [scale_vector(lowering, group, channels), *given, *found.operands], []
        name = "+".join(["requantize", *(one.kind for one in group.ops[-1:])])
    if isinstance(operand.format, Int8DepthwiseFormat):
        source = lowering.dense(source, source.dtype, (0, *axes[2:], axes[1]))
    problem = conv_problem(op, operand.format.shape, source, axes, dst_strides, zero_point=operand.zero_point)
    call = operand.format.convolution(problem, post_ops)
    lowering.emit(call, [source, operand.packed, *own, place, *operands], name)


def _find_requantized(
    lowering: Lowering, group: Group, bias: Value | None, place: Value, axis: int
) -> Requantized | None:
    """The post-ops on registers, if the result lies as the kernel writes it."""
    assert group.anchor is not None
    if pixel_strides(place, lowering.order_of(group.result)) is None:
        return None
    return find_requantized(lowering, group.ops, group.anchor.outputs[0].id, place, bias, axis)
