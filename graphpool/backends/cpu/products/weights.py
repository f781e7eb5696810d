"""Constant weights as kernels read them, kept by the constant tensor cache.

What follows a convolution and is a scale and a shift of each channel by constants, a BatchNorm or arithmetic, is folded
into its weights: the scale into them, the shift into a bias that lies behind them. Nothing is folded into weights that
the user has packed; there these ops stay what they are. Weights of 8 or 4 bits that a convolution of floats reads are
dequantised into what the cache keeps.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Generic, TypeVar

from graphpool._dataclasses import dataclass

from ....graph.shapes import channel_axis
from ....typing import DataType
from ..lower.instructions import apply, emit_norm
from ..lower.region import Region, fill, region_name
from ..lower.values import Value
from ..support import FLOATS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..layout.packed import WeightLayout
    from ..lower.lowering import Lowering
    from ..lower.steps import Emitter
    from .choice import Site

__all__ = ["PackedWeights", "bias_of", "dequantize", "find_folded", "fold", "folded_sources", "pack_floats"]

F = TypeVar("F")

_SCALES = {"Multiply": "mul", "Divide": "div"}
_SHIFTS = {"Add": "add", "BiasAdd": "add", "Subtract": "sub"}
"""Kinds of arithmetic -> instructions."""


@dataclass(frozen=True)
class PackedWeights(Generic[F]):
    """Weights in a format, and what was made of what surrounds them.

    Attributes
    ----------
    panels : Value
        Where they lie: what the cache keeps, what the user has packed, or the weights themselves for kernels that pack
        them.
    bias : Value or None
        What is added first: packed with the weights where something was folded or it was no f32, else the anchor's own.
    folded : int
        Ops behind the anchor that were folded into the weights.
    scale : Value or None
        Numbers by which kernels that pack the weights multiply them, one for each output channel.
    zero_point, columns : int, tuple of int
        Zero points of quantised activations, 0 where the run gives it, and of weights as the panels hold them; none
        where all are 0.
    """

    panels: Value
    format: F
    bias: Value | None = None
    folded: int = 0
    scale: Value | None = None
    zero_point: int = 0
    columns: tuple[int, ...] = ()


def pack_floats(site: Site, layout: WeightLayout, weights_format: F, outer: int | None, count: int) -> PackedWeights[F]:
    """The plain constant weights of an anchor, floats, packed in a layout and kept by the constant tensor cache.

    `outer` is the axis of the weights that holds the output channels, `count` of them, None if nothing can be folded.
    """
    lowering, own, nbytes, front = site.lowering, site.bias, layout.nbytes, site.group.compressed
    sources = [lowering.value(tensor.id) for tensor in (front.inputs if front else site.op.inputs[1:2])]
    weights = sources[0]
    folded = () if outer is None else find_folded(site)
    converted = [] if folded else [bias for bias in (own,) if bias is not None and _is_converted(site, bias, count)]

    def fill_panels(panels: Value) -> None:
        source = dequantize(lowering, front) if front else lowering.typed(weights)
        if outer is not None and folded:
            source = fold(lowering, folded, source, own, outer, bias_of(panels, nbytes, 0, count)) or source
        for bias in converted:
            lowering.move(bias, bias_of(panels, nbytes, 0, count))
        lowering.pack(layout, source, panels)

    def restore(emitter: Emitter, panels: Value) -> None:
        emitter.unpack(layout, panels, weights)

    # what is folded has several sources; what was converted is not what the source was
    is_exact = layout.is_exact(weights.dtype) and not folded and weights.dtype is DataType.F32 and weights.is_whole
    has_bias = bool(folded or converted)
    panels = lowering.packed_constant(
        [*sources, *folded_sources(site, folded), *converted],
        nbytes + (4 * count if has_bias else 0),
        fill_panels,
        restore if is_exact else None,
    )
    if not has_bias:
        return PackedWeights(panels, weights_format, own)
    return PackedWeights(panels, weights_format, bias_of(panels, nbytes, 0, count), len(folded))


def _is_converted(site: Site, bias: Value, count: int) -> bool:
    """Whether a bias becomes f32 when the weights are packed: a constant of another type, for each output channel."""
    return bias.dtype is not DataType.F32 and bias.shape == (count,) and _is_known(site, bias)


def dequantize(lowering: Lowering, front: Op) -> Value:
    """The weights that a Dequantize gives, in a temporary."""
    result = front.outputs[0].id
    region, place = Region(lowering, lowering.shapes[result]), lowering.temporary(lowering.shapes[result])
    apply(region, front)
    region.store(result, place)
    region.emit(region_name([front]), is_elementwise=True)
    return place


def find_folded(site: Site) -> tuple[Op, ...]:
    """The ops that come first behind a convolution and only scale and shift its channels by constants.

    None where its own bias is no constant, or all that they are is a bias: kernels add one as it lies.
    """
    found: list[Op] = []
    lowering, value, ops = site.lowering, site.op.outputs[0].id, site.group.ops
    for k, op in enumerate(ops):
        is_alone = sum(tensor.id == value for other in ops[k:] for tensor in other.inputs) == 1
        if not is_alone or not _is_affine(site, op, value):
            break
        found.append(op)
        value = op.outputs[0].id
    if site.bias is None:
        return tuple(found) if any(_scales(lowering, op) for op in found) else ()
    return tuple(found) if _is_known(site, site.bias) else ()


def _is_affine(site: Site, op: Op, value: int) -> bool:
    """Whether the op scales and shifts each channel of the value by constants."""
    lowering, ids = site.lowering, [tensor.id for tensor in op.inputs]
    if value not in ids or op.outputs[0].dtype not in FLOATS or len(_constants(op, site)) != len(ids) - 1:
        return False
    is_along = op.attrs.get("data_format", site.op.attrs["data_format"]) == site.op.attrs["data_format"]
    if op.kind in ("BatchNormInference", "BiasAdd"):
        return is_along and ids[0] == value
    if op.kind not in _SCALES and op.kind not in _SHIFTS:
        return False
    number = lowering.value(ids[1 - ids.index(value)])
    shape = (1,) * (len(site.result) - len(number.shape)) + number.shape
    axis = channel_axis(len(shape), site.op.attrs["data_format"])
    is_one = all(dim == 1 for k, dim in enumerate(shape) if k != axis)
    return is_one and (op.kind != "Divide" or ids[0] == value)


def _scales(lowering: Lowering, op: Op) -> bool:
    """Whether an op that is folded changes weights: a constant less a value does."""
    return op.kind not in _SHIFTS or (op.kind == "Subtract" and lowering.has_value(op.inputs[0].id))


def _constants(op: Op, site: Site) -> list[int]:
    """Ids of the inputs that are constants."""
    lowering = site.lowering
    return [t.id for t in op.inputs if lowering.has_value(t.id) and _is_known(site, lowering.value(t.id))]


def _is_known(site: Site, value: Value) -> bool:
    return site.lowering.is_constant(value) and value.dtype in FLOATS


def folded_sources(site: Site, folded: Sequence[Op]) -> list[Value]:
    """The constants that are folded into weights beside them, the convolution's own bias among them."""
    numbers = [site.lowering.value(tensor_id) for op in folded for tensor_id in _constants(op, site)]
    return [*numbers, *([site.bias] if site.bias is not None and folded else [])]


def fold(
    lowering: Lowering, ops: Sequence[Op], weights: Value | None, own: Value | None, outer: int, bias: Value
) -> Value | None:
    """Weights, or 1 for None, times the scales of ops, in f32; what becomes of the own bias goes to `bias`."""
    for op in ops:
        place = bias if op is ops[-1] else lowering.temporary(bias.shape)
        if op.kind == "BatchNormInference":
            before = None if weights is None else lowering.dense(weights)
            weights = lowering.temporary(bias.shape if before is None else before.shape)
            emit_norm(lowering, op, weights, place, weights=before, axis=outer, own=own)
        else:
            weights = _fold_arithmetic(lowering, op, weights, own, outer, place)
        own = place
    return weights


def _fold_arithmetic(
    lowering: Lowering, op: Op, weights: Value | None, own: Value | None, outer: int, bias: Value
) -> Value | None:
    """The same of one op of two operands."""
    port = int(not lowering.has_value(op.inputs[0].id))
    number = lowering.dense(lowering.value(op.inputs[port].id))
    number, name = number.reshaped((prod(number.shape),)), (_SCALES | _SHIFTS)[op.kind]

    def write(place: Value, axis: int, value: Value | None, otherwise: float, other: Value | None = number) -> Value:
        """The op on a value, or a number where there is none, and another along an axis, or 0."""
        region = Region(lowering, place.shape)
        x = region.builder.const(otherwise) if value is None else region.load(value.broadcast(place.shape))
        y = region.builder.const(0.0) if other is None else region.load_along(other, axis)
        region.write(place, region.binary(name, *((x, y) if port else (y, x))))
        region.emit(f"eltwise({op.kind} folded)")
        return place

    if own is None and op.kind in _SCALES:
        fill(lowering, bias, 0.0)
    else:
        write(bias, 0, own, 0.0)
    if not _scales(lowering, op):
        return weights
    scaled = lowering.temporary(bias.shape if weights is None else weights.shape)
    return write(scaled, outer, weights, 1.0, number if op.kind in _SCALES else None)


def bias_of(packed: Value, offset: int, start: int, count: int) -> Value:
    """The bias of `count` channels from `start` on, behind packed weights."""
    return Value(DataType.F32, (count,), (1,), packed.buffer, offset // 4 + start)
