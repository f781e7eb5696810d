"""Constant weights of convolutions as their kernels want them, and the convolutions that read them.

The form that the constant tensor cache keeps holds the weights in panels, transformed where minimal filtering gains
enough for the memory that it takes, or by (tap, channel) where the convolution is depthwise. A BatchNorm of constants
behind the convolution is folded into it: its scale into the weights, its shift into a bias that lies behind them.
Convolutions that read the same image alike may share one form (`joint_filters.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ..._kernels.conv_bf16 import bf16_conv_nbytes, bf16_convolution, pack_bf16_conv_weights
from ..._kernels.conv_depthwise import depthwise_convolution, pack_depthwise_weights, unpack_depthwise_weights
from ..._kernels.conv_packed import (
    is_staged,
    pack_conv_weights,
    packed_conv_layout,
    packed_convolution,
    unpack_conv_weights,
)
from ..._kernels.window import merged_stride
from ..._kernels.winograd import (
    choose_tile,
    pack_winograd_weights,
    winograd_convolution,
    winograd_layout,
)
from ...graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ...typing import DataType
from .choices import allows_bf16, forced
from .epilogue import make_epilogue
from .images import axes_of, pick
from .instructions import emit_norm
from .lowering import Value, strides_in
from .region import region_name
from .tail import Tail, find_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._kernels.call import KernelCall
    from ...graph.op import Op
    from .groups import Group
    from .lowering import Lowering

__all__ = [
    "FLOATS",
    "FilterShape",
    "Filters",
    "Form",
    "arrange_source",
    "bias_of",
    "emit_convolution",
    "emit_joint",
    "filters_nbytes",
    "find_filters",
    "find_form",
    "find_norm",
    "find_plain",
    "find_shape",
    "fold_norm",
    "is_plain_bias",
    "pack_filters",
    "pixel_strides",
]

_LEAST_PIXELS = 16
"""Pixels of a result for which packing the weights at each execution pays."""

_BF16_TILE, _LEAST_WINOGRAD_PIXELS = 4, 196
"""Tile and pixels of a result from which on minimal filtering in f32 is faster than products of bf16."""

FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})


@dataclass(frozen=True)
class FilterShape:
    """Sizes of the weights: channels of both sides, groups, kernel, where axes are; tile of minimal filtering, or 0."""

    ic: int
    oc: int
    groups: int
    kernel: tuple[int, ...]
    inner: int
    outer: int
    kernel_axes: tuple[int, ...]
    tile: int
    is_bf16: bool = False

    @classmethod
    def of(
        cls, op: Op, shape: Sequence[int], result: Sequence[int], prefer: str, *, allows_bf16: bool = False
    ) -> FilterShape:
        """Those of a convolution by the shapes of its weights and of its result."""
        inner, outer, kernel_axes = conv_weight_axes(len(shape), op.attrs["weights_format"])
        groups = op.attrs["groups"]
        kernel = tuple(shape[axis] for axis in kernel_axes)
        ic, oc = shape[inner] * groups, shape[outer]
        is_plain = (
            kernel == (3, 3) and groups == 1 and {*op.attrs["strides"], *per_axis(op.attrs, "dilations", 2)} == {1}
        )
        spatial = pick(result, axes_of(op, len(result))[2:])
        tile = choose_tile(result[0], ic, oc, spatial) if prefer == "latency" and is_plain else 0
        if allows_bf16 and (tile < _BF16_TILE or prod(spatial) < _LEAST_WINOGRAD_PIXELS):
            tile = 0
        is_bf16 = allows_bf16 and not tile and not ic == oc == groups
        return cls(ic, oc, groups, kernel, inner, outer, kernel_axes, tile, is_bf16)

    @property
    def is_depthwise(self) -> bool:
        """Whether every group has one channel on both sides."""
        return self.ic == self.oc == self.groups

    def strides(self, weights: Value) -> list[int]:
        """Strides of the weights: (group, out channel in the group, in channel in the group, spatial...)."""
        group = self.oc // self.groups * weights.strides[self.outer]
        return [group, *pick(weights.strides, (self.outer, self.inner, *self.kernel_axes))]


@dataclass(frozen=True)
class Form:
    """Constant weights as kernels want them, with a BatchNorm behind them folded in.

    Attributes
    ----------
    panels : Value
        What the cache keeps.
    bias : Value or None
        What is added first: part of the form where a BatchNorm was folded, else the convolution's own.
    folded : int
        Ops behind the convolution that the form has taken in.
    """

    panels: Value
    bias: Value | None
    folded: int


@dataclass(frozen=True)
class Filters:
    """The weights of a convolution as its kernel wants them, or, with strides, as they lie, perhaps times a scale."""

    form: Form
    shape: FilterShape
    strides: Sequence[int] | None = None
    scale: Value | None = None


def find_filters(lowering: Lowering, group: Group) -> Filters | None:
    """The weights in another form, kept by the constant tensor cache.

    None where they are no constants, where BLAS is forced, or where the result's channels, for which these kernels are
    made, do not lie innermost.
    """
    op, shape = group.anchor, find_shape(lowering, group)
    if op is None or shape is None:
        return None

    def fill(source: Value, panels: Value) -> None:
        lowering.emit(pack_filters(shape, op, source), [source, panels])

    def unpack(panels: Value, place: Value) -> None:
        lowering.emit(_unpack(shape, op, place), [panels, place])

    inverse = None if shape.tile or shape.is_bf16 else unpack  # both round
    form = find_form(lowering, group, (shape.outer, shape.oc), filters_nbytes(shape, op), fill, inverse)
    return None if form is None else Filters(form, shape)


def find_shape(lowering: Lowering, group: Group) -> FilterShape | None:
    """The sizes of a convolution whose weights may take another form; None where `find_filters` gives None."""
    op = group.anchor
    if op is None or group.dequantized or forced("Convolution") == "blas":
        return None
    weights = lowering.value(op.inputs[1].id)
    if not lowering.is_constant(weights) or not _has_pixels(lowering, group, weights):
        return None
    result, allows_bf16 = lowering.shapes[group.result], _multiplies_bf16(lowering, op, weights)
    return FilterShape.of(op, weights.shape, result, lowering.prefer, allows_bf16=allows_bf16)


def find_plain(lowering: Lowering, group: Group) -> Filters | None:
    """The weights for kernels that pack them at each execution; None where the result has few pixels.

    Those of depthwise convolutions are so few that they become a temporary.
    """
    op = group.anchor
    assert op is not None
    if group.dequantized or forced("Convolution") == "blas":
        return None
    weights, result = lowering.value(op.inputs[1].id), lowering.shapes[group.result]
    if weights.dtype not in FLOATS or not _has_pixels(lowering, group, weights):
        return None
    shape = FilterShape.of(op, weights.shape, result, "memory")
    if _has_few_pixels(shape, result):
        return None
    source = lowering.typed(weights)
    own = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    if not shape.is_depthwise:
        return _as_they_lie(lowering, group, source, shape, own)
    panels = lowering.temporary((filters_nbytes(shape, op),), DataType.U8)
    lowering.emit(pack_filters(shape, op, source), [source, panels])
    return Filters(Form(panels, own, 0), shape)


def _as_they_lie(lowering: Lowering, group: Group, source: Value, shape: FilterShape, own: Value | None) -> Filters:
    """Weights for kernels that pack them, times the scale of a BatchNorm of constants behind the convolution."""
    norm = find_norm(lowering, group, own)
    if norm is None:
        return Filters(Form(source, own, 0), shape, shape.strides(source))
    scale, shift = lowering.temporary((shape.oc,)), lowering.temporary((shape.oc,))
    emit_norm(lowering, norm, scale, shift, own=own)
    return Filters(Form(source, shift, 1), shape, shape.strides(source), scale)


def _has_few_pixels(shape: FilterShape, result: Sequence[int]) -> bool:
    return prod(result) // shape.oc < _LEAST_PIXELS


def _is_staged(shape: FilterShape) -> bool:
    """Whether the kernel copies what it reads, however it lies."""
    return is_staged(shape.ic, shape.kernel, shape.groups) and not shape.is_depthwise


def arrange_source(lowering: Lowering, group: Group, filters: Filters) -> None:
    """Bring the source where kernels of both kinds of weights read it, outside of what depends on the kind."""
    op = group.anchor
    assert op is not None
    result = lowering.shapes[group.result]
    if not _has_few_pixels(filters.shape, result) and not _is_staged(filters.shape):
        _find_source(lowering, op, filters.shape, axes_of(op, len(result)))


def _has_pixels(lowering: Lowering, group: Group, weights: Value) -> bool:
    """Whether the result is an image of floats whose pixels have their channels side by side, and nothing is empty."""
    result = lowering.shapes[group.result]
    assert group.anchor is not None
    is_last = lowering.order_of(group.result)[-1] == channel_axis(len(result), group.anchor.attrs["data_format"])
    return is_last and 0 not in (*weights.shape, *result)


def _multiplies_bf16(lowering: Lowering, op: Op, weights: Value) -> bool:
    """Whether a convolution may multiply numbers of bf16: they are, or the float mode allows it."""
    types = {lowering.dtypes[op.inputs[0].id], weights.dtype}
    return allows_bf16("bf16" if types == {DataType.BF16} else lowering.fpmath, types)


def find_form(
    lowering: Lowering,
    group: Group,
    channels: tuple[int | None, int],
    weights_nbytes: int,
    pack: Callable[[Value, Value], None],
    unpack: Callable[[Value, Value], None] | None = None,
) -> Form | None:
    """A form of the constant weights of a group's anchor; None where they are no floats.

    Parameters
    ----------
    lowering : Lowering
    group : Group
    channels : (int or None, int)
        Axis of the weights that holds the output channels, and how many there are; None: nothing can be folded.
    weights_nbytes : int
        Of the weights in the form, a multiple of 4. Unit: bytes.
    pack : callable
        Takes the weights in f32 and the form, and emits the steps that fill it.
    unpack : callable, optional
        Takes the form and the weights, and emits the inverse, bit for bit.
    """
    op = group.anchor
    assert op is not None
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
    panels = lowering.constant_form(sources, nbytes, fill, restore if is_exact and is_whole else None)
    return Form(panels, bias_of(panels, weights_nbytes, 0, count) if folded else own, len(folded) and 1)


def fold_norm(lowering: Lowering, weights: Value, norm: Op, own: Value | None, outer: int, bias: Value) -> Value:
    """The weights with the scale of a BatchNorm; its shift, with the convolution's own bias, goes to `bias`."""
    weights = lowering.dense(weights)
    scaled = lowering.temporary(weights.shape)
    emit_norm(lowering, norm, scaled, bias, weights=weights, axis=outer, own=own)
    return scaled


def find_norm(lowering: Lowering, group: Group, own: Value | None) -> Op | None:
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
    is_alike = op.attrs["data_format"] == group.anchor.attrs["data_format"] if group.anchor is not None else False
    return op if is_known and is_alike and op.inputs[0].dtype is DataType.F32 else None


def _dilations(op: Op, shape: FilterShape) -> tuple[int, ...]:
    return per_axis(op.attrs, "dilations", len(shape.kernel))


def filters_nbytes(shape: FilterShape, op: Op) -> int:
    """Size of the weights in the form, without a bias. Unit: bytes."""
    if shape.is_depthwise:
        return 4 * shape.oc * prod(shape.kernel)
    if shape.tile:
        return winograd_layout(shape.ic, shape.oc, tile=shape.tile).nbytes
    more: dict[str, Any] = {"groups": shape.groups, "dilations": _dilations(op, shape)}
    if shape.is_bf16:
        return bf16_conv_nbytes(shape.ic, shape.oc, shape.kernel, **more)
    return packed_conv_layout(shape.ic, shape.oc, shape.kernel, **more).nbytes


def pack_filters(shape: FilterShape, op: Op, weights: Value) -> KernelCall:
    """The kernel that brings the weights into the form."""
    strides = shape.strides(weights)
    if shape.is_depthwise:
        return pack_depthwise_weights(shape.oc, shape.kernel, [strides[0], *strides[3:]])
    if shape.tile:
        return pack_winograd_weights(shape.ic, shape.oc, strides[1:], tile=shape.tile)
    more: dict[str, Any] = {"groups": shape.groups, "dilations": _dilations(op, shape)}
    if shape.is_bf16:
        return pack_bf16_conv_weights(shape.ic, shape.oc, shape.kernel, strides, **more)
    return pack_conv_weights(shape.ic, shape.oc, shape.kernel, strides, **more)


def _unpack(shape: FilterShape, op: Op, weights: Value) -> KernelCall:
    """The inverse of `pack_filters`, for forms that hold the weights as they were."""
    strides = shape.strides(weights)
    if shape.is_depthwise:
        return unpack_depthwise_weights(shape.oc, shape.kernel, [strides[0], *strides[3:]])
    more: dict[str, Any] = {"groups": shape.groups, "dilations": _dilations(op, shape)}
    return unpack_conv_weights(shape.ic, shape.oc, shape.kernel, strides, **more)


def bias_of(form: Value, offset: int, start: int, count: int) -> Value:
    """The bias of `count` channels from `start` on, behind the weights of a form."""
    return Value(DataType.F32, (count,), (1,), form.buffer, offset // 4 + start)


# ---- convolutions


def emit_convolution(lowering: Lowering, group: Group, filters: Filters, place: Value) -> None:
    """The convolution with weights in that form, with its bias and the post-ops that remain, to `place`."""
    op = group.anchor
    assert op is not None
    axes, order = axes_of(op, len(place.shape)), lowering.order_of(group.result)
    own_strides = pixel_strides(place, order) if place.dtype is DataType.F32 else None
    dst_strides = pick(own_strides or strides_in(place.shape, order), axes)
    tail = _find_tail(lowering, group, filters, place, axes[1])
    if tail is None:
        is_early = is_plain_bias(filters.form.bias)
        late = None if is_early else filters.form.bias
        epilogue = make_epilogue(lowering, group, late, axes[1], skipped=filters.form.folded, place=place)
        tail, operands, name = Tail(filters.form.bias if is_early else None), epilogue.operands, epilogue.name
        options: dict[str, Any] = {"epilogue": epilogue.block, "dst_needs_scratch": own_strides is None}
    else:
        operands, options = [], {}
        name = region_name(group.ops) if group.ops else None
    residual = None if tail.residual is None else pick(pixel_strides(tail.residual, order) or (), axes)
    options |= {"residual_strides": residual}
    _emit(lowering, op, filters, tail, place, dst_strides, options, operands, name)


def emit_joint(
    lowering: Lowering, op: Op, filters: Filters, clamp: tuple[float, float] | None, place: Value, name: str
) -> None:
    """The convolutions of a form of several, op one of them, to a `place` of all their channels."""
    dst_strides = pick(place.strides, axes_of(op, len(place.shape)))
    _emit(lowering, op, filters, Tail(filters.form.bias, None, clamp), place, dst_strides, {}, [], name)


def _emit(
    lowering: Lowering,
    op: Op,
    filters: Filters,
    tail: Tail,
    place: Value,
    dst_strides: Sequence[int],
    options: dict[str, Any],
    operands: Sequence[Value],
    name: str | None,
) -> None:
    """The kernel on its source, with what it does on registers."""
    axes = axes_of(op, len(place.shape))
    options |= {"bias": tail.bias is not None, "clamp": tail.clamp}
    source = _find_source(lowering, op, filters.shape, axes)
    weights = [filters.form.panels]
    if filters.strides is not None:
        options |= {"weights_strides": filters.strides, "scale": filters.scale is not None}
        weights += [] if filters.scale is None else [filters.scale]
    call = _make_call(op, filters.shape, source, axes, dst_strides, options)
    lowering.emit(call, [source, *weights, *tail.operands, place, *operands], name)


def _find_tail(lowering: Lowering, group: Group, filters: Filters, place: Value, axis: int) -> Tail | None:
    """The post-ops that the form has not taken in, if they are a tail of the kernel."""
    order = lowering.order_of(group.result)
    if pixel_strides(place, order) is None or not is_plain_bias(filters.form.bias):
        return None
    assert group.anchor is not None
    last = group.ops[filters.form.folded - 1] if filters.form.folded else group.anchor
    ops, first = group.ops[filters.form.folded :], last.outputs[0].id

    def is_residual(value: Value) -> bool:
        return pixel_strides(value, order) is not None

    return find_tail(lowering, ops, first, place, filters.form.bias, axis, is_residual=is_residual)


def pixel_strides(image: Value, order: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of an image whose channels lie side by side, and whose pixels one stride walks; None for others."""
    strides = image.row_strides(order)
    pixels = order[1:-1]
    if strides is None or merged_stride([(image.shape[axis], strides[axis]) for axis in pixels]) is None:
        return None
    return strides


def is_plain_bias(bias: Value | None) -> bool:
    """Whether kernels can read the bias as it lies."""
    return bias is None or (bias.dtype is DataType.F32 and (bias.shape == (1,) or bias.strides == (1,)))


def _find_source(lowering: Lowering, op: Op, shape: FilterShape, axes: Sequence[int]) -> Value:
    """The source in f32, or bf16 if that is multiplied, channels last unless the kernel copies what it reads anyway."""
    source = lowering.value(op.inputs[0].id)
    dtype = source.dtype if shape.is_bf16 else DataType.F32
    if _is_staged(shape):
        return lowering.typed(source, dtype)
    return lowering.arranged(op.inputs[0].id, (0, *axes[2:], axes[1]), dtype)


def _make_call(
    op: Op, shape: FilterShape, source: Value, axes: Sequence[int], dst_strides: Sequence[int], options: dict[str, Any]
) -> KernelCall:
    """The kernel that reads the form."""
    batch, spatial = source.shape[0], pick(source.shape, axes[2:])
    begin, end = resolve_pads(op.attrs, spatial, shape.kernel)
    options |= {"src_strides": pick(source.strides, axes), "dst_strides": dst_strides}
    options |= {"pads_begin": begin, "pads_end": end}
    if shape.tile:
        return winograd_convolution(batch, shape.ic, shape.oc, spatial, tile=shape.tile, **options)
    options |= {"strides": op.attrs["strides"], "dilations": _dilations(op, shape)}
    if shape.is_depthwise:
        return depthwise_convolution(batch, shape.oc, spatial, shape.kernel, **options)
    if shape.is_bf16:
        options |= {"groups": shape.groups, "src_dtype": source.dtype.value}
        return bf16_convolution(batch, shape.ic, shape.oc, spatial, shape.kernel, **options)
    return packed_convolution(batch, shape.ic, shape.oc, spatial, shape.kernel, groups=shape.groups, **options)
