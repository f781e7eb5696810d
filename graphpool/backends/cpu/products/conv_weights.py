"""Constant weights of convolutions as their kernels want them, and the convolutions that read them.

What the constant tensor cache keeps holds the weights in panels, transformed where Winograd's algorithm gains
enough for the memory that it takes, or by (tap, channel) where the convolution is depthwise. A BatchNorm of constants
behind the convolution is folded into it: its scale into the weights, its shift into a bias that lies behind them.
Convolutions that read the same image alike may share packed weights (`joint_weights.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from ...._kernels.conv.bf16 import Bf16ConvFormat
from ...._kernels.conv.depthwise import DepthwiseFormat
from ...._kernels.conv.packed import F32ConvFormat, is_staged
from ...._kernels.conv.problem import ConvProblem, ConvShape
from ...._kernels.conv.winograd import WinogradFormat, choose_tile
from ...._kernels.image.window import merged_stride
from ....graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ....typing import DataType
from ..choices import allows_bf16, forced
from ..layout.images import axes_of, pick, spans_too_much
from ..lower.epilogue import make_epilogue
from ..lower.instructions import emit_norm
from ..lower.post_ops import FusedPostOps, Tail, find_post_ops, is_plain_bias
from ..lower.values import Value, strides_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...._kernels.conv.problem import ConvFormat
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..match.groups import AnchorGroup

__all__ = [
    "FLOATS",
    "ConvOperand",
    "ConvWeights",
    "PackedWeights",
    "arrange_source",
    "bias_of",
    "choose_format",
    "conv_problem",
    "emit_convolution",
    "emit_joint",
    "find_norm",
    "find_operand",
    "find_unpacked",
    "find_weights",
    "fold_norm",
    "pack_weights_of",
    "pixel_strides",
]

_LEAST_PIXELS = 16
"""Pixels of a result for which packing the weights at each execution pays."""

_BF16_TILE, _LEAST_WINOGRAD_PIXELS = 4, 196
"""Tile and pixels of a result from which on Winograd's algorithm in f32 is faster than products of bf16."""

FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})


@dataclass(frozen=True)
class ConvWeights:
    """Weights of a convolution: their format, and where the axes of the plain weights are.

    Attributes
    ----------
    format : ConvFormat
    inner, outer : int
        Axis of the input channels of a group, and of the output channels.
    kernel_axes : tuple of int
    """

    format: ConvFormat
    inner: int
    outer: int
    kernel_axes: tuple[int, ...]

    @classmethod
    def of(
        cls, op: Op, dims: Sequence[int], result: Sequence[int], prefer: str, *, allows_bf16: bool = False
    ) -> ConvWeights:
        """Those of a convolution by the shapes of its weights and of its result."""
        inner, outer, kernel_axes = conv_weight_axes(len(dims), op.attrs["weights_format"])
        groups, kernel = op.attrs["groups"], tuple(dims[axis] for axis in kernel_axes)
        dilations = per_axis(op.attrs, "dilations", len(kernel))
        shape = ConvShape(dims[inner] * groups, dims[outer], kernel, groups, dilations)
        spatial = pick(result, axes_of(op, len(result))[2:])
        is_plain = kernel == (3, 3) and groups == 1 and {*op.attrs["strides"], *dilations} == {1}
        tile = 0
        if prefer == "latency" and is_plain:
            tile = choose_tile(result[0], shape.in_channels, shape.out_channels, spatial)
        if allows_bf16 and (tile < _BF16_TILE or prod(spatial) < _LEAST_WINOGRAD_PIXELS):
            tile = 0
        return cls(choose_format(shape, tile, allows_bf16=allows_bf16), inner, outer, kernel_axes)

    @property
    def out_channels(self) -> int:
        """Of all groups."""
        return self.format.shape.out_channels

    @property
    def is_depthwise(self) -> bool:
        """Whether there are groups, and each has one channel on both sides."""
        return isinstance(self.format, DepthwiseFormat)

    @property
    def is_staged(self) -> bool:
        """Whether the kernel copies what it reads, however it lies."""
        shape = self.format.shape
        return not self.is_depthwise and is_staged(shape.in_channels, shape.kernel, shape.groups)

    def with_out_channels(self, count: int) -> ConvWeights:
        """The same weights of another number of output channels."""
        shape = replace(self.format.shape, out_channels=count)
        return replace(self, format=replace(self.format, shape=shape))

    def strides(self, weights: Value) -> list[int]:
        """Strides of the weights: (group, out channel in the group, in channel in the group, spatial...)."""
        group = self.out_channels // self.format.shape.groups * weights.strides[self.outer]
        return [group, *pick(weights.strides, (self.outer, self.inner, *self.kernel_axes))]


def choose_format(shape: ConvShape, tile: int = 0, *, allows_bf16: bool = False) -> ConvFormat:
    """The format of weights; `tile` is that of Winograd, or 0."""
    if 1 < shape.groups == shape.in_channels == shape.out_channels:
        return DepthwiseFormat(shape)
    if tile:
        return WinogradFormat(shape, tile)
    return Bf16ConvFormat(shape) if allows_bf16 else F32ConvFormat(shape)


@dataclass(frozen=True)
class PackedWeights:
    """Constant weights as kernels want them, with a BatchNorm behind them folded in.

    Attributes
    ----------
    panels : Value
        What the cache keeps.
    bias : Value or None
        What is added first: packed with the weights where a BatchNorm was folded, else the convolution's own.
    folded : int
        Ops behind the convolution that were folded into the weights.
    """

    panels: Value
    bias: Value | None
    folded: int


@dataclass(frozen=True)
class ConvOperand:
    """The weights of a convolution as its kernel wants them, or, with strides, as they lie, perhaps times a scale."""

    packed: PackedWeights
    weights: ConvWeights
    strides: Sequence[int] | None = None
    scale: Value | None = None


def find_operand(lowering: Lowering, group: AnchorGroup) -> ConvOperand | None:
    """The packed weights, kept by the constant tensor cache.

    None where they are no constants, where BLAS is forced, or where `_suits_panels` does not hold.
    """
    weights = find_weights(lowering, group)
    if weights is None:
        return None

    def fill(source: Value, panels: Value) -> None:
        lowering.emit(weights.format.pack(weights.strides(source)), [source, panels])

    def unpack(panels: Value, place: Value) -> None:
        lowering.emit(weights.format.unpack(weights.strides(place)), [panels, place])

    inverse = unpack if weights.format.is_exact else None
    channels = weights.outer, weights.out_channels
    packed = pack_weights_of(lowering, group, channels, weights.format.nbytes, fill, inverse)
    return None if packed is None else ConvOperand(packed, weights)


def find_weights(lowering: Lowering, group: AnchorGroup) -> ConvWeights | None:
    """The weights of a convolution that may be packed; None where `find_operand` gives None."""
    op = group.anchor
    if group.dequantized or forced("Convolution") == "blas":
        return None
    weights = lowering.value(op.inputs[1].id)
    if not lowering.is_constant(weights) or not _has_pixels(lowering, group, weights):
        return None
    result, allows_bf16 = lowering.shapes[group.result], _multiplies_bf16(lowering, op, weights)
    found = ConvWeights.of(op, weights.shape, result, lowering.prefer, allows_bf16=allows_bf16)
    return found if _suits_panels(lowering, group, found) else None


def find_unpacked(lowering: Lowering, group: AnchorGroup) -> ConvOperand | None:
    """The weights for kernels that pack them at each execution; None where the result has few pixels.

    Those of depthwise convolutions are so few that they become a temporary.
    """
    op = group.anchor
    if group.dequantized or forced("Convolution") == "blas":
        return None
    weights, result = lowering.value(op.inputs[1].id), lowering.shapes[group.result]
    if weights.dtype not in FLOATS or not _has_pixels(lowering, group, weights):
        return None
    found = ConvWeights.of(op, weights.shape, result, "memory")
    if _has_few_pixels(found, result) or not _suits_panels(lowering, group, found):
        return None
    source = lowering.typed(weights)
    own = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    if not found.is_depthwise:
        return _as_they_lie(lowering, group, source, found, own)
    panels = lowering.temporary((found.format.nbytes,), DataType.U8)
    lowering.emit(found.format.pack(found.strides(source)), [source, panels])
    return ConvOperand(PackedWeights(panels, own, 0), found)


def _as_they_lie(
    lowering: Lowering, group: AnchorGroup, source: Value, weights: ConvWeights, own: Value | None
) -> ConvOperand:
    """Weights for kernels that pack them, times the scale of a BatchNorm of constants behind the convolution."""
    norm = find_norm(lowering, group, own)
    if norm is None:
        return ConvOperand(PackedWeights(source, own, 0), weights, weights.strides(source))
    channels = (weights.out_channels,)
    scale, shift = lowering.temporary(channels), lowering.temporary(channels)
    emit_norm(lowering, norm, scale, shift, own=own)
    return ConvOperand(PackedWeights(source, shift, 1), weights, weights.strides(source), scale)


def _has_few_pixels(weights: ConvWeights, result: Sequence[int]) -> bool:
    return prod(result) // weights.out_channels < _LEAST_PIXELS


def arrange_source(lowering: Lowering, group: AnchorGroup, operand: ConvOperand) -> None:
    """Bring the source where kernels of both kinds of weights read it, outside of what depends on the kind."""
    op = group.anchor
    result = lowering.shapes[group.result]
    if not _has_few_pixels(operand.weights, result) and not operand.weights.is_staged:
        _find_source(lowering, op, operand.weights, axes_of(op, len(result)))


def _has_pixels(lowering: Lowering, group: AnchorGroup, weights: Value) -> bool:
    """Whether the result is an image of floats whose pixels have their channels side by side, and nothing is empty."""
    result = lowering.shapes[group.result]
    is_last = lowering.order_of(group.result)[-1] == channel_axis(len(result), group.anchor.attrs["data_format"])
    return is_last and 0 not in (*weights.shape, *result)


def _suits_panels(lowering: Lowering, group: AnchorGroup, weights: ConvWeights) -> bool:
    """Whether there is more than one channel to fill vectors, and what windows span may be copied."""
    op, shape = group.anchor, weights.format.shape
    src, dst = (lowering.shapes[tensor.id] for tensor in (op.inputs[0], op.outputs[0]))
    is_single = shape.in_channels == shape.out_channels == 1
    return not is_single and not spans_too_much(op, src, dst, shape.kernel)


def _multiplies_bf16(lowering: Lowering, op: Op, weights: Value) -> bool:
    """Whether a convolution may multiply numbers of bf16: they are, or the float mode allows it."""
    types = {lowering.dtypes[op.inputs[0].id], weights.dtype}
    return allows_bf16("bf16" if types == {DataType.BF16} else lowering.fpmath, types)


def pack_weights_of(
    lowering: Lowering,
    group: AnchorGroup,
    channels: tuple[int | None, int],
    weights_nbytes: int,
    pack: Callable[[Value, Value], None],
    unpack: Callable[[Value, Value], None] | None = None,
) -> PackedWeights | None:
    """The constant weights of a group's anchor, packed; None where they are no floats.

    Parameters
    ----------
    lowering : Lowering
    group : Group
    channels : (int or None, int)
        Axis of the weights that holds the output channels, and how many there are; None: nothing can be folded.
    weights_nbytes : int
        Of the packed weights, a multiple of 4. Unit: bytes.
    pack : callable
        Takes the weights in f32 and the packed ones, and emits the steps that fill these.
    unpack : callable, optional
        Takes the packed weights and the plain ones, and emits the inverse, bit for bit.
    """
    op = group.anchor
    weights = lowering.value(op.inputs[1].id)
    if weights.dtype not in FLOATS:
        return None
    outer, count = channels
    own = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    norm = None if outer is None else find_norm(lowering, group, own)
    folded = [] if norm is None else [lowering.value(tensor.id) for tensor in norm.inputs[1:]]
    sources = [weights, *folded, *([own] if own is not None and folded else [])]

    def fill(panels: Value) -> None:
        source = lowering.typed(weights)
        if norm is not None and outer is not None:
            source = fold_norm(lowering, source, norm, own, outer, bias_of(panels, weights_nbytes, 0, count))
        pack(source, panels)

    def restore(panels: Value) -> None:
        assert unpack is not None  # else nobody asks
        unpack(panels, weights)

    # a folded BatchNorm rounds; what was converted is not what the source was
    is_exact = unpack is not None and not folded and weights.dtype is DataType.F32
    is_whole = weights.buffer.nbytes == weights.dtype.nbytes(prod(weights.shape))
    nbytes = weights_nbytes + (4 * count if folded else 0)
    panels = lowering.packed_constant(sources, nbytes, fill, restore if is_exact and is_whole else None)
    return PackedWeights(panels, bias_of(panels, weights_nbytes, 0, count) if folded else own, len(folded) and 1)


def fold_norm(lowering: Lowering, weights: Value, norm: Op, own: Value | None, outer: int, bias: Value) -> Value:
    """The weights with the scale of a BatchNorm; its shift, with the convolution's own bias, goes to `bias`."""
    weights = lowering.dense(weights)
    scaled = lowering.temporary(weights.shape)
    emit_norm(lowering, norm, scaled, bias, weights=weights, axis=outer, own=own)
    return scaled


def find_norm(lowering: Lowering, group: AnchorGroup, own: Value | None) -> Op | None:
    """The BatchNorm that alone reads the convolution's result, if all its parameters and the bias are constants."""
    op = group.ops[0] if group.ops else None
    if op is None or op.kind != "BatchNormInference":
        return None
    if any(tensor.id == op.inputs[0].id for other in group.ops[1:] for tensor in other.inputs):
        return None
    if not all(map(lowering.has_value, [tensor.id for tensor in op.inputs[1:]])):
        return None
    values = [lowering.value(tensor.id) for tensor in op.inputs[1:]] + ([] if own is None else [own])
    is_known = {value.dtype for value in values} == {DataType.F32} and all(map(lowering.is_constant, values))
    is_alike = op.attrs["data_format"] == group.anchor.attrs["data_format"]
    return op if is_known and is_alike and op.inputs[0].dtype is DataType.F32 else None


def bias_of(packed: Value, offset: int, start: int, count: int) -> Value:
    """The bias of `count` channels from `start` on, behind packed weights."""
    return Value(DataType.F32, (count,), (1,), packed.buffer, offset // 4 + start)


# ---- convolutions


def emit_convolution(lowering: Lowering, group: AnchorGroup, operand: ConvOperand, place: Value) -> None:
    """The convolution with its bias and the post-ops that remain, to `place`."""
    op = group.anchor
    axes, order = axes_of(op, len(place.shape)), lowering.order_of(group.result)
    own_strides = pixel_strides(place, order) if place.dtype is DataType.F32 else None
    dst_strides = pick(own_strides or strides_in(place.shape, order), axes)
    fused = _find_post_ops(lowering, group, operand, place, axes[1])
    if fused is None:
        bias = operand.packed.bias
        early, late = (bias, None) if is_plain_bias(bias) else (None, bias)
        epilogue = make_epilogue(lowering, group, late, axes[1], skipped=operand.packed.folded, place=place)
        tail = epilogue.tail(needs_scratch=own_strides is None, bias=early)
    else:
        residual = None if fused.residual is None else pick(pixel_strides(fused.residual, order) or (), axes)
        tail = fused.tail(place, group.ops, residual)
    _emit(lowering, op, operand, dst_strides, tail)


def emit_joint(
    lowering: Lowering, op: Op, operand: ConvOperand, clamp: tuple[float, float] | None, place: Value, name: str
) -> None:
    """The convolutions of joint weights, op one of them, to a `place` of all their channels."""
    dst_strides = pick(place.strides, axes_of(op, len(place.shape)))
    fused = FusedPostOps(operand.packed.bias, clamp=clamp)
    _emit(lowering, op, operand, dst_strides, replace(fused.tail(place, ()), name=name))


def _emit(lowering: Lowering, op: Op, operand: ConvOperand, dst_strides: Sequence[int], tail: Tail) -> None:
    """The kernel on its source, with what it does behind its sums."""
    axes, weights = axes_of(op, len(dst_strides)), operand.weights
    source = _find_source(lowering, op, weights, axes)
    problem = conv_problem(op, weights.format.shape, source, axes, dst_strides)
    constants = [operand.packed.panels]
    if operand.strides is None:
        call = weights.format.convolution(problem, tail.post_ops)
    else:
        assert isinstance(weights.format, F32ConvFormat)  # `find_unpacked` takes no other
        call = weights.format.unpacked_convolution(
            problem, operand.strides, tail.post_ops, scale=operand.scale is not None
        )
        constants += [] if operand.scale is None else [operand.scale]
    lowering.emit(call, [source, *constants, *tail.args], tail.name)


def conv_problem(
    op: Op, shape: ConvShape, source: Value, axes: Sequence[int], dst_strides: Sequence[int], *, zero_point: int = 0
) -> ConvProblem:
    """What a convolution asks of its kernel; `axes` and `dst_strides` in the order (n, channel, spatial...)."""
    spatial = pick(source.shape, axes[2:])
    begin, end = resolve_pads(op.attrs, spatial, shape.kernel)
    return ConvProblem.make(
        source.shape[0],
        shape,
        spatial,
        src_strides=pick(source.strides, axes),
        dst_strides=dst_strides,
        strides=op.attrs["strides"],
        pads_begin=begin,
        pads_end=end,
        src_dtype=source.dtype.value,
        zero_point=zero_point,
    )


def _find_post_ops(
    lowering: Lowering, group: AnchorGroup, operand: ConvOperand, place: Value, axis: int
) -> FusedPostOps | None:
    """The post-ops that are not folded into the weights, if the kernel can fuse them."""
    order = lowering.order_of(group.result)
    if pixel_strides(place, order) is None:
        return None
    ops, first = group.ops[operand.packed.folded :], group.reached(operand.packed.folded)

    def is_residual(value: Value) -> bool:
        return pixel_strides(value, order) is not None

    return find_post_ops(lowering, ops, first, place, operand.packed.bias, axis, is_residual=is_residual)


def pixel_strides(image: Value, order: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of an image whose channels lie side by side, and whose pixels one stride walks; None for others."""
    strides = image.row_strides(order)
    pixels = order[1:-1]
    if strides is None or merged_stride([(image.shape[axis], strides[axis]) for axis in pixels]) is None:
        return None
    return strides


def _find_source(lowering: Lowering, op: Op, weights: ConvWeights, axes: Sequence[int]) -> Value:
    """The source in f32, or bf16 if that is multiplied, channels last unless the kernel copies what it reads anyway."""
    source = lowering.value(op.inputs[0].id)
    dtype = source.dtype if isinstance(weights.format, Bf16ConvFormat) else DataType.F32
    if weights.is_staged:
        return lowering.typed(source, dtype)
    return lowering.arranged(op.inputs[0].id, (0, *axes[2:], axes[1]), dtype)
