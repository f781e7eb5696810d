"""Products of quantised operands: the integers are multiplied, and their sums scaled.

A Dequantize in front of both operands of a product is not computed as it stands: x - zp is, which f32 holds exactly,
and the scales follow behind the product; likewise a DynamicDequantize by one scale and zero point of the run. Sums are
exact for any number of terms, as with an s32 accumulator: in f32 for as many terms as stay within 2**24, those sums in
f64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....graph.shapes import channel_axis
from ..match.integers import dynamic_numbers, scales_of
from .region import Region

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..match.groups import AnchorGroup
    from .lowering import Lowering
    from .values import Value

__all__ = ["integers_of", "operands", "scaled"]


def operands(lowering: Lowering, group: AnchorGroup) -> tuple[Value, Value]:
    """Both operands of the group's product as f32: the integers x - zp where they are quantised."""
    if not group.dequantized:
        a, b = (lowering.typed(lowering.value(tensor.id)) for tensor in group.anchor.inputs[:2])
    else:
        a, b = (integers_of(lowering, group.dequantized[port]) for port in (0, 1))
    return a, b


def integers_of(lowering: Lowering, op: Op) -> Value:
    """X - zp of a Dequantize."""
    source, zero_points, given = lowering.value(op.inputs[0].id), op.attrs.get("zps") or [], dynamic_numbers(op)[1:]
    if not any(zero_points) and not given:
        return lowering.typed(source)
    region = Region(lowering, source.shape, order=source.order)
    axis = op.attrs["axis"] % len(source.shape) if source.shape else 0
    zero = region.load_along(lowering.value(given[0]), axis) if given else region.literal(zero_points, axis)
    difference = region.binary("sub", region.load(source), zero)
    place = lowering.temporary(source.shape, order=source.order)
    region.write(place, difference)
    region.emit("eltwise(x - zp)", is_elementwise=True)
    return place


def scaled(region: Region, group: AnchorGroup, sums: Any) -> Any:
    """Sums of integer products times the scales of both operands; other sums as they are."""
    if not group.dequantized:
        return sums
    scales, given = (
        scales_of(group.dequantized),
        [dynamic_numbers(op)[0] for op in group.dequantized.values() if op.inputs[1:]],
    )
    if (scales == 1.0).all() and not given:
        return sums
    ndim = len(region.shape)
    is_matmul = group.anchor.kind == "MatMul"
    axis = ndim - 1 if is_matmul else channel_axis(ndim, group.anchor.attrs["data_format"])
    scale = region.literal(scales, axis)
    for tensor_id in given:
        scale = region.binary("mul", scale, region.load_along(region.lowering.value(tensor_id), axis))
    return region.binary("mul", sums, scale)
