"""int8 convolutions with constant weights: 8-bit images in and out.

As in `int8_matmul.py`: taken where s32 holds every sum, and with panels that each run fills where the constant tensor
cache keeps none. Images lie channels last. Zero points of weights that are not 0 as signed numbers cost the sums of
windows, but for those of depthwise convolutions.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...._kernels.conv.depthwise import MOST_TAPS, Int8DepthwiseFormat
from ...._kernels.conv.int8 import Int8ConvFormat
from ...._kernels.conv.problem import ConvFormat, ConvShape
from ....graph.shapes import conv_weight_axes, per_axis
from ....typing import DataType
from ..choices import forced
from ..layout.images import pick, spans_too_much
from ..lower.region import Region
from ..lower.values import Value, strides_in
from .choice import Choice
from .int8_matmul import DEPTH, int8_tail, zero_points_of
from .weights import PackedWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .conv_problem import ConvSite

__all__ = ["find_int8"]


def find_int8(site: ConvSite) -> Choice | None:
    """The convolution of quantised operands as one of bytes; None where the kernel does not take its weights."""
    lowering, group, op = site.lowering, site.group, site.op
    if forced(op.kind) == "blas" or not group.dequantized:
        return None
    weights = lowering.value(group.dequantized[1].inputs[0].id)
    zero_points = zero_points_of(
        group, weights.shape[conv_weight_axes(len(weights.shape), op.attrs["weights_format"])[1]]
    )
    if zero_points is None or not site.is_channels_last or not lowering.is_constant(weights):
        return None
    packed = None if 0 in (*weights.shape, *site.result) else _pack(site, weights, *zero_points)
    if packed is None:
        return None
    place = site.target()
    return Choice(lambda _: _emit(site, packed, place), place, packed.panels, is_filled=True)


def _pack(
    site: ConvSite, weights: Value, zero_point: int, columns: tuple[int, ...]
) -> PackedWeights[ConvFormat] | None:
    """The weights in panels."""
    lowering, op = site.lowering, site.op
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    kernel, groups, ic = tuple(pick(weights.shape, kernel_axes)), op.attrs["groups"], weights.shape[inner]
    shape = ConvShape(ic * groups, weights.shape[outer], kernel, groups, per_axis(op.attrs, "dilations", len(kernel)))
    if groups > 1 and groups == weights.shape[outer] and ic == 1:
        return _pack_depthwise(site, weights, shape, (outer, *kernel_axes), zero_point)
    source = lowering.shapes[op.inputs[0].id]
    if prod(kernel) * ic > DEPTH or (groups > 1 and ic == 1) or spans_too_much(op, source, site.result, kernel):
        return None
    weights_format = Int8ConvFormat(shape, weights.dtype.value)
    group_stride = weights.shape[outer] // groups * weights.strides[outer]
    strides = [group_stride, *pick(weights.strides, (outer, inner, *kernel_axes))]

    def fill(panels: Value) -> None:
        lowering.emit(weights_format.pack(strides), [weights, panels])

    panels = lowering.packed_constant([weights], weights_format.nbytes, fill)
    return PackedWeights(panels, weights_format, site.bias, zero_point=zero_point, columns=columns)


def _pack_depthwise(
    site: ConvSite, weights: Value, shape: ConvShape, axes: Sequence[int], zero_point: int
) -> PackedWeights[ConvFormat] | None:
    """The weights of a depthwise convolution, less their zero point, in f32; `axes`: of (channel, spatial...)."""
    if prod(shape.kernel) > MOST_TAPS:
        return None
    lowering, weights_format = site.lowering, Int8DepthwiseFormat(shape)
    zps = site.group.dequantized[1].attrs.get("zps") or [0]
    order = [*axes[1:], *(k for k in range(len(weights.shape)) if k not in axes), axes[0]]

    def fill(panels: Value) -> None:
        region = Region(lowering, weights.shape)
        integers = region.binary("sub", region.load(weights), region.literal(zps, axes[0]))
        place = Value(DataType.F32, weights.shape, strides_in(weights.shape, order), panels.buffer)
        region.write(place, integers)
        lowering.emit(region.builder.build(), [panels, *region.operands], "eltwise(w - zp)")

    panels = lowering.packed_constant([weights], weights_format.nbytes, fill)
    return PackedWeights(panels, weights_format, site.bias, zero_point=zero_point)


def _emit(site: ConvSite, weights: PackedWeights[ConvFormat], place: Value) -> Value:
    """The convolution with weights in panels, with its bias and the post-ops of the group, to `place`."""
    lowering, axes = site.lowering, site.axes
    source = lowering.value(site.group.dequantized[0].inputs[0].id)
    strides = site.pixel_strides(place)
    fused = site.find_post_ops(place, weights, lambda _: strides is not None)
    residual_strides = None if fused is None or fused.residual is None else pick(fused.residual.strides, axes)
    tail = int8_tail(
        site, weights, place.shape[axes[1]], place, fused, bias_axis=axes[1], residual_strides=residual_strides
    )
    if isinstance(weights.format, Int8DepthwiseFormat):
        source = lowering.dense(source, source.dtype, (0, *axes[2:], axes[1]))
    dst_strides = strides or strides_in(place.shape, site.order)
    problem = site.problem(weights.format.shape, source, dst_strides, zero_point=weights.zero_point)
    call = weights.format.convolution(problem, tail.post_ops)
    lowering.emit(call, [source, weights.panels, *tail.args], tail.name)
    return place
