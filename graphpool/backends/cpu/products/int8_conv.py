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
from ..layout.packed import ConvAxes, ConvWeights
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
    tensor_id = group.dequantized[1].inputs[0].id
    weights = lowering.any_value(tensor_id)
    zero_points = zero_points_of(
        group, weights.shape[conv_weight_axes(len(weights.shape), op.attrs["weights_format"])[1]]
    )
    is_known = lowering.is_constant(weights) or weights.layout is not None
    if zero_points is None or not site.is_channels_last or not is_known or 0 in (*weights.shape, *site.result):
        return None
    layout = _find_layout(site, weights)
    if layout is None:
        return None
    is_given, place = lowering.find_given(tensor_id, [layout]) is not None, site.target()
    panels = _given_panels(site, weights, layout) if is_given else _pack(site, weights, layout)
    columns = () if layout.is_depthwise else zero_points[1]
    packed = PackedWeights(panels, layout.format, site.bias, zero_point=zero_points[0], columns=columns)
    return Choice(lambda _: _emit(site, packed, place), place, None if is_given else panels, is_filled=True)


def _find_layout(site: ConvSite, weights: Value) -> ConvWeights | None:
    """How the kernel reads the weights."""
    lowering, op = site.lowering, site.op
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    axes, kernel, groups = (
        ConvAxes(inner, outer, kernel_axes),
        tuple(pick(weights.shape, kernel_axes)),
        op.attrs["groups"],
    )
    ic, oc = weights.shape[inner], weights.shape[outer]
    shape = ConvShape(ic * groups, oc, kernel, groups, per_axis(op.attrs, "dilations", len(kernel)))
    if groups > 1 and groups == oc and ic == 1:
        is_given = lowering.is_given(site.group.dequantized[1].inputs[0].id)
        dtype = weights.dtype if is_given else DataType.F32
        return ConvWeights(Int8DepthwiseFormat(shape, dtype.value), axes) if prod(kernel) <= MOST_TAPS else None
    source = lowering.shapes[op.inputs[0].id]
    if prod(kernel) * ic > DEPTH or (groups > 1 and ic == 1) or spans_too_much(op, source, site.result, kernel):
        return None
    return ConvWeights(Int8ConvFormat(shape, weights.dtype.value), axes)


def _given_panels(site: ConvSite, weights: Value, layout: ConvWeights) -> Value:
    """Weights that the user has packed, as the kernel reads them."""
    if not layout.is_depthwise:
        return weights.as_bytes
    shape = tuple(pick(weights.shape, _panel_order(layout.axes)))
    kept = Value(weights.dtype, shape, strides_in(shape, range(len(shape))), weights.buffer)
    if not any(_zero_points(site)):
        return site.lowering.typed(kept).as_bytes
    panels = site.lowering.temporary((4 * prod(shape),), DataType.U8)
    _widen(site, kept, panels)
    return panels


def _zero_points(site: ConvSite) -> Sequence[float]:
    """Of the weights."""
    return site.group.dequantized[1].attrs.get("zps") or [0]


def _pack(site: ConvSite, weights: Value, layout: ConvWeights) -> Value:
    """Plain weights packed."""

    def fill(panels: Value) -> None:
        if layout.is_depthwise:
            order = _panel_order(layout.axes)
            shape, strides = (tuple(pick(numbers, order)) for numbers in (weights.shape, weights.strides))
            _widen(site, weights._replace(shape=shape, strides=strides), panels)
        else:
            site.lowering.pack(layout, weights, panels)

    return site.lowering.packed_constant([weights], layout.nbytes, fill)


def _panel_order(axes: ConvAxes) -> list[int]:
    """Axes of depthwise weights as they lie in panels."""
    return [*axes.kernel, axes.inner, axes.outer]


def _widen(site: ConvSite, weights: Value, panels: Value) -> None:
    """Write depthwise weights, in the order of panels, to panels of f32, less the zero points of their channels."""
    region, ndim = Region(site.lowering, weights.shape), len(weights.shape)
    zero_points = region.literal(_zero_points(site), ndim - 1)
    place = Value(DataType.F32, weights.shape, strides_in(weights.shape, range(ndim)), panels.buffer)
    region.write(place, region.binary("sub", region.load(weights), zero_points))
    region.emit("eltwise(w - zp)")


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
