"""Quantisation by the range of a tensor, and dequantisation in groups: one scale for a block of elements."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ...._kernels.gemm.quantize import nparts_of, quantize_dynamic, range_of_parts
from ..lower.region import Region
from ..support import rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value


@rule("DynamicQuantizeLinear")
def lower_dynamic_quantize(lowering: Lowering, op: Op) -> None:
    """The ranges of parts of the tensor, then the bytes of each part."""
    order = lowering.order_of(op.outputs[0].id)
    source = lowering.dense(lowering.value(op.inputs[0].id), order=order)
    places = [lowering.target(op.outputs[0].id, order=order), *(lowering.target(port.id) for port in op.outputs[1:])]
    n = prod(source.shape)
    ranges = lowering.temporary((nparts_of(n), 2))
    lowering.emit(range_of_parts(n), [source, ranges])
    lowering.emit(quantize_dynamic(n), [source, ranges, *places])
    for port, place in zip(op.outputs, places, strict=True):
        lowering.finish(port.id, place)


@rule("DynamicDequantize")
def lower_grouped_dequantize(lowering: Lowering, op: Op) -> None:
    """(x - zp) * scale over an index space in which every axis is split into groups and elements of a group."""
    source, scales, *zero_points = (lowering.value(tensor.id) for tensor in op.inputs)
    counts = [min(dim, count) for dim, count in zip(source.shape, scales.shape, strict=True)]
    x = split_axes(source, counts)
    region = Region(lowering, x.shape)
    loaded = region.load(x)
    for zero_point in zero_points:
        loaded = region.binary("sub", loaded, region.load(_spread(zero_point, x.shape)))
    result = region.binary("mul", loaded, region.load(_spread(scales, x.shape)))
    place = lowering.target(op.outputs[0].id)
    region.write(place.reshaped(x.shape), result)
    region.emit("eltwise(DynamicDequantize in groups)")
    lowering.finish(op.outputs[0].id, place)


def split_axes(value: Value, counts: Sequence[int]) -> Value:
    """The same elements with every axis split in two: `counts` groups, and the elements of a group."""
    shape: list[int] = []
    strides: list[int] = []
    for dim, stride, count in zip(value.shape, value.strides, counts, strict=True):
        size = dim // max(count, 1)
        shape += [count, size]
        strides += [stride * size, stride]
    return value._replace(shape=tuple(shape), strides=tuple(strides))


def _spread(value: Value, shape: Sequence[int]) -> Value:
    """One element a group as a value of the split index space: it does not move within a group."""
    strides: list[int] = []
    for dim, stride in zip(value.shape, value.strides, strict=True):
        strides += [0 if dim == 1 else stride, 0]
    return value._replace(shape=tuple(shape), strides=tuple(strides))
