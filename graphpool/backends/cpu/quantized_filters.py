"""Convolutions of 8-bit images with constant 8-bit weights: products of bytes, images of bytes in and out.

As in `quantized.py`: taken where s32 holds every sum, and with panels that each run fills where the constant tensor
cache keeps none. Images lie channels last. Zero points of weights that are not 0 as signed numbers cost the sums of
windows, but for those of depthwise convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._kernels.conv_depthwise_s8 import MOST_TAPS, s8_depthwise_convolution
from ..._kernels.conv_s8 import conv_s8_layout, pack_conv_s8, s8_convolution
from ...graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ...typing import DataType
from .choices import forced
from .epilogue import make_epilogue
from .filters import pixel_strides
from .images import axes_of, pick, spans_too_much
from .lowering import Value, strides_in
from .quantized import DEPTH, find_dynamic, scale_vector, zero_points_of
from .region import Region
from .requantize import find_requantized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.op import Op
    from .groups import Group
    from .lowering import Lowering
    from .requantize import Requantized

__all__ = ["ByteFilters", "emit_byte_convolution", "find_byte_filters"]


@dataclass(frozen=True)
class ByteFilters:
    """The weights of a convolution in panels of bytes.

    Attributes
    ----------
    form : Value
        What the cache keeps.
    kernel : tuple of int
    zero_point : int
        Of the image; 0 where the run gives it.
    columns : tuple of int
        Zero points of the channels as the panels hold them; none where all are 0.
    is_depthwise : bool
        Whether every group has one channel on both sides: then the form is f32 that holds integers, by (tap, channel).
    """

    form: Value
    kernel: tuple[int, ...]
    zero_point: int
    columns: tuple[int, ...] = ()
    is_depthwise: bool = False


def find_byte_filters(lowering: Lowering, group: Group) -> ByteFilters | None:
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
    if groups > 1 and groups == weights.shape[outer] and ic == 1:
        return _find_depthwise(lowering, group, weights, kernel, (outer, *kernel_axes), zero_points[0])
    source = lowering.shapes[op.inputs[0].id]
    if prod(kernel) * ic > DEPTH or (groups > 1 and ic == 1) or spans_too_much(op, source, result, kernel):
        return None
    sizes = ic * groups, weights.shape[outer], kernel
    more: dict[str, Any] = {"groups": groups, "dilations": per_axis(op.attrs, "dilations", len(kernel))}
    group_stride = weights.shape[outer] // groups * weights.strides[outer]
    strides = [group_stride, *pick(weights.strides, (outer, inner, *kernel_axes))]

    def fill(form: Value) -> None:
        lowering.emit(pack_conv_s8(*sizes, strides, dtype=weights.dtype.value, **more), [weights, form])

    form = lowering.constant_form([weights], conv_s8_layout(*sizes, **more).nbytes, fill)
    return ByteFilters(form, kernel, *zero_points)


def _find_depthwise(
    lowering: Lowering, group: Group, weights: Value, kernel: tuple[int, ...], axes: Sequence[int], zero_point: int
) -> ByteFilters | None:
    """The weights of a depthwise convolution, less their zero point, in f32; `axes`: of (channel, spatial...)."""
    if prod(kernel) > MOST_TAPS:
        return None
    zps = group.dequantized[1].attrs.get("zps") or [0]
    place = strides_in(weights.shape, [*axes[1:], *(k for k in range(len(weights.shape)) if k not in axes), axes[0]])

    def fill(form: Value) -> None:
        region = Region(lowering, weights.shape)
        integers = region.binary("sub", region.load(weights), region.literal(zps, axes[0]))
        region.write(Value(DataType.F32, weights.shape, place, form.buffer), integers)
        lowering.emit(region.builder.build(), [form, *region.operands], "eltwise(w - zp)")

    form = lowering.constant_form([weights], 4 * prod(weights.shape), fill)
    return ByteFilters(form, kernel, zero_point, is_depthwise=True)


def emit_byte_convolution(lowering: Lowering, group: Group, filters: ByteFilters, place: Value) -> None:
    """The convolution with weights in panels, with its bias and the post-ops of the group, to `place`."""
    op = group.anchor
    assert op is not None
    axes = axes_of(op, len(place.shape))
    source, channels = lowering.value(group.dequantized[0].inputs[0].id), place.shape[axes[1]]
    bias = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    order = lowering.order_of(group.result)
    dst_strides = pick(pixel_strides(place, order) or strides_in(place.shape, order), axes)
    found = _find_requantized(lowering, group, bias, place, axes[1])
    dynamic, given = find_dynamic(lowering, group, filters.columns, scale=found is not None)
    if found is None:
        epilogue = make_epilogue(lowering, group, bias, axes[1], place=place)
        options: dict[str, Any] = {"epilogue": epilogue.block}
        ones = lowering.literal(np.ones(channels, np.float32))
        own, operands, name = [ones, *given], epilogue.operands, epilogue.name
    else:
        options = {"bias": found.bias is not None, "requant": found.requant}
        options["residual_strides"] = None if found.residual is None else pick(found.residual.strides, axes)
        own, operands = [scale_vector(lowering, group, channels), *given, *found.operands], []
        name = "+".join(["requantize", *(one.kind for one in group.ops[-1:])])
    if filters.is_depthwise:
        source = lowering.dense(source, source.dtype, (0, *axes[2:], axes[1]))
    spatial = pick(source.shape, axes[2:])
    options |= {"src_strides": pick(source.strides, axes), "dst_strides": dst_strides}
    options |= {"src_dtype": source.dtype.value, "zero_point": filters.zero_point, "dynamic": dynamic}
    options |= _geometry(op, spatial, filters.kernel)
    if filters.is_depthwise:
        call = s8_depthwise_convolution(source.shape[0], channels, spatial, filters.kernel, **options)
    else:
        ic, groups = source.shape[axes[1]], op.attrs["groups"]
        call = s8_convolution(source.shape[0], ic, channels, spatial, filters.kernel, groups=groups, **options)
    lowering.emit(call, [source, filters.form, *own, place, *operands], name)


def _geometry(op: Op, spatial: list[int], kernel: tuple[int, ...]) -> dict[str, Any]:
    begin, end = resolve_pads(op.attrs, spatial, kernel)
    return {
        "strides": op.attrs["strides"], "pads_begin": begin, "pads_end": end,
        "dilations": per_axis(op.attrs, "dilations", len(kernel)),
    }  # fmt: skip


def _find_requantized(
    lowering: Lowering, group: Group, bias: Value | None, place: Value, axis: int
) -> Requantized | None:
    """The post-ops on registers, if the result lies as the kernel writes it."""
    assert group.anchor is not None
    if pixel_strides(place, lowering.order_of(group.result)) is None:
        return None
    return find_requantized(lowering, group.ops, group.anchor.outputs[0].id, place, bias, axis)
