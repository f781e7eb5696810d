"""How each kind becomes launches."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..._kernels.core.spaces import collapse
from ..._kernels.cuda.image import Windows, conv_parts, convolution, pooling, resampling
from ..._kernels.cuda.products import eltwise, matmul
from ..._kernels.cuda.rows import best, norm, reduce, running, softmax
from ..._kernels.eltwise.eltwise import EltwiseBuilder
from ..._sizes import largest
from ...graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ...typing import DataType, dense_strides
from ..cpu.emit import indexing, movement, parts, quantization  # noqa: F401  (imported for their rules)
from ..cpu.emit.reduce import NAMES
from ..cpu.layout.images import axes_of, pick
from ..cpu.lower.region import Region
from ..cpu.match.groups import AnchorGroup
from ..cpu.products.matmul_problem import Product
from ..cpu.support import RULES as CPU_RULES
from ..cpu.support import has_no_axes_input, has_small_windows, is_plain_resampling, register_of_type
from .attention import lower_attention
from .library import lower_by_library
from .lowering import Tail, as_float, lower_elementwise, split_axis
from .support import MOST_BEST, RULES, has_rule, rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...graph.op import Op
    from ..cpu.lower.values import Value
    from ..cpu.match.groups import Group
    from .lowering import CudaLowering

__all__ = ["lower_group"]


def lower_group(lowering: CudaLowering, group: Group) -> None:
    """Emit the launches of a group: none where all its results are empty."""
    if all(0 in lowering.shapes[tensor.id] for tensor in group.outputs):
        for tensor in group.outputs:
            lowering.finish(tensor.id, lowering.target(tensor.id))
    elif isinstance(group, AnchorGroup) and group.attention is not None:
        lower_attention(lowering, group)
    elif has_rule(group.first):
        RULES[group.first.kind](lowering, group)
    else:
        lower_elementwise(lowering, group.ops)


def _lower_alone(emit: Callable[..., None], lowering: CudaLowering, group: Group) -> None:
    """Lower an op as on the CPU, without a kernel but for moves."""
    emit(lowering, group.first)


def _operand(value: Value, strides: Sequence[int]) -> tuple[str, Sequence[int]]:
    return value.dtype.value, strides


def _bias(lowering: CudaLowering, op: Op) -> Value | None:
    return lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None


@rule("MatMul")
def lower_matmul(lowering: CudaLowering, group: AnchorGroup) -> None:
    """A batch of products."""
    op = group.anchor
    a, b = (as_float(lowering, tensor.id) for tensor in op.inputs[:2])
    product = Product.of(op, a, b)
    if lower_by_library(lowering, group, product):
        return
    tail = Tail(lowering, group, _bias(lowering, op))
    operands = _operand(a, product.a_strides), _operand(b, product.b_strides)
    call = matmul(product.batch, product.m, product.n, product.k, *operands, tail.program)
    tail.emit(call, [a, b])


def _windows(lowering: CudaLowering, group: AnchorGroup, source: Value, kernel: Sequence[int]) -> Windows:
    op, result = group.anchor, lowering.shapes[group.result]
    axes = axes_of(op, len(result))
    begin, _ = resolve_pads(op.attrs, pick(source.shape, axes[2:]), kernel, transposed=op.kind == "ConvTranspose")
    return Windows(
        pick(source.shape, axes[2:]), pick(result, axes[2:]), kernel, per_axis(op.attrs, "strides", len(kernel)),
        per_axis(op.attrs, "dilations", len(kernel)), begin,
        pick(source.strides, axes), pick(dense_strides(result), axes),
    )  # fmt: skip


def _pointwise(windows: Windows, source: Value, weights: Value, axis: int, strides: Sequence[int]) -> Product | None:
    """The product of matrices that a convolution of single pixels is; None where it is none.

    `strides` are those of the weights: channels of the result, then of the source.
    """
    numbers = (*windows.kernel, *windows.strides, *[1 + pad for pad in windows.pads_begin])
    if any(number != 1 for number in numbers) or list(windows.src) != list(windows.dst):
        return None
    count, inner = source.shape[0], source.shape[axis]
    outer, (image, channel, *spatial) = prod(weights.shape) // inner, windows.src_strides
    is_first = axis == 1
    pixels = collapse(windows.src, spatial) if is_first else collapse((count, *windows.src), (image, *spatial))
    if len(pixels) > 1:
        return None
    [(size, step)] = pixels
    if is_first:
        return Product((count,), outer, size, inner, weights, source, (0, *strides), (image, channel, step))
    return Product((), size, outer, inner, source, weights, (step, channel), tuple(reversed(strides)))


@rule("Convolution", "ConvTranspose", where=has_small_windows)
def lower_convolution(lowering: CudaLowering, group: AnchorGroup) -> None:
    """Implicit matrix products, with weights as they lie."""
    op, is_transposed = group.anchor, group.anchor.kind == "ConvTranspose"
    source, weights = (as_float(lowering, tensor.id) for tensor in op.inputs[:2])
    inner, outer, spatial = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    groups, axis = op.attrs["groups"], channel_axis(len(source.shape), op.attrs["data_format"])
    windows = _windows(lowering, group, source, pick(weights.shape, spatial))
    split = inner if is_transposed else outer  # the axis that has the channels of all groups
    strides = [weights.shape[split] // groups * weights.strides[split]]
    strides += pick(weights.strides, (outer, inner, *spatial))
    product = _pointwise(windows, source, weights, axis, strides[1:3]) if groups == 1 and not is_transposed else None
    if product is not None and lower_by_library(lowering, group, product, axis):
        return
    channels = source.shape[axis], lowering.shapes[group.anchor.outputs[0].id][axis]
    described = source.shape[0], groups, channels, windows, (source.dtype.value, weights.dtype.value)
    nparts, bias = conv_parts(*described), _bias(lowering, op)
    if nparts == 1:
        tail = Tail(lowering, group, bias, axis)
        tail.emit(convolution(*described, strides, tail.program, transposed=is_transposed), [source, weights])
        return
    sums = lowering.temporary((nparts, *lowering.shapes[group.result]))
    builder = EltwiseBuilder(sums.shape)
    builder.store(0, "f32", None, builder.acc())
    call = convolution(*described, strides, builder.program(), transposed=is_transposed, parts=nparts)
    lowering.launch(call, [source, weights, sums])
    tail = Tail(lowering, group, bias, axis, sums=[sums.cut(0, part, 1) for part in range(nparts)])
    tail.emit(eltwise(tail.program))


@rule("AvgPool", "MaxPool", where=has_small_windows)
def lower_pool(lowering: CudaLowering, group: AnchorGroup) -> None:
    """Maximum or mean of each window."""
    op = group.anchor
    source, kernel = as_float(lowering, op.inputs[0].id), tuple(op.attrs["kernel"])
    axis = channel_axis(len(source.shape), op.attrs["data_format"])
    windows, tail = _windows(lowering, group, source, kernel), Tail(lowering, group)
    call = pooling(
        "max" if op.kind == "MaxPool" else "avg", source.shape[0], source.shape[axis], windows, source.dtype.value,
        tail.program, pads_end=resolve_pads(op.attrs, windows.src, kernel)[1],
        exclude_pad=op.attrs.get("exclude_pad", True),
    )  # fmt: skip
    tail.emit(call, [source])


@rule("Interpolate", where=is_plain_resampling)
def lower_interpolate(lowering: CudaLowering, group: AnchorGroup) -> None:
    """Resampling."""
    op, result = group.anchor, lowering.shapes[group.result]
    source, axes = as_float(lowering, op.inputs[0].id), axes_of(op, len(result))
    spatial, ones = axes[2:], [1] * (len(axes) - 2)
    windows = Windows(
        pick(source.shape, spatial), pick(result, spatial), ones, ones, ones, [0] * len(ones),
        pick(source.strides, axes), pick(dense_strides(result), axes),
    )  # fmt: skip
    tail = Tail(lowering, group)
    call = resampling(
        op.attrs["mode"] != "nearest", op.attrs["coordinate_transformation_mode"] == "align_corners",
        source.shape[0], source.shape[axes[1]], windows, source.dtype.value, tail.program,
    )  # fmt: skip
    tail.emit(call, [source])


@rule("SoftMax", "LogSoftmax")
def lower_softmax(lowering: CudaLowering, group: AnchorGroup) -> None:
    """Rows along one axis."""
    op = group.anchor
    source = as_float(lowering, op.inputs[0].id)
    statistics, tail = _statistics(lowering, op), Tail(lowering, group)
    call = softmax(
        source.shape, op.attrs["axis"] % len(source.shape), source.dtype.value, source.strides, tail.program,
        is_log=op.kind == "LogSoftmax", inf_as_zero=op.attrs.get("mode") == "inf_as_zero", stats=bool(statistics),
    )  # fmt: skip
    tail.emit(call, [source, *statistics])
    _finish(lowering, op, statistics)


@rule("LayerNorm", "RMSNorm", "GroupNorm")
def lower_norm(lowering: CudaLowering, group: AnchorGroup) -> None:
    """Rows over the axes that are normalised; of a GroupNorm, whose channels are two axes then, all but groups."""
    op = group.anchor
    source = as_float(lowering, op.inputs[0].id)
    given = op.inputs[1:] if op.attrs.get("use_affine", True) else ()
    affine = [as_float(lowering, tensor.id) for tensor in given]
    if op.kind == "GroupNorm":
        axis = channel_axis(len(source.shape), op.attrs["data_format"])
        affine = [value.reshaped((value.shape[0], *[1] * (len(source.shape) - axis - 1))) for value in affine]
        strides = [split_axis(value.broadcast(source.shape), axis, op.attrs["groups"]).strides for value in affine]
        seen = split_axis(source, axis, op.attrs["groups"])
        axes = [k for k in range(len(seen.shape)) if k not in (0, axis)]
    else:
        axes = list(range(op.attrs["begin_norm_axis"] % len(source.shape), len(source.shape)))
        seen, strides = source, [value.broadcast(source.shape).strides for value in affine]
    statistics, tail = _statistics(lowering, op), Tail(lowering, group)
    operands = [_operand(value, along) for value, along in zip(affine, strides, strict=True)]
    call = norm(
        seen.shape, axes, source.dtype.value, seen.strides, operands, tail.program, epsilon=op.attrs["epsilon"],
        is_rms=op.kind == "RMSNorm", stats=bool(statistics),
    )  # fmt: skip
    tail.emit(call, [source, *affine, *statistics])
    _finish(lowering, op, statistics)


def _statistics(lowering: CudaLowering, op: Op) -> list[Value]:
    """Where what the kernel computes beside its result goes: dense f32."""
    return [lowering.target(tensor.id, dtype=DataType.F32) for tensor in op.outputs[1:]]


def _finish(lowering: CudaLowering, op: Op, statistics: Sequence[Value]) -> None:
    for tensor, value in zip(op.outputs[1:], statistics, strict=True):
        lowering.finish(tensor.id, value)


@rule(*NAMES, where=has_no_axes_input)
def lower_reduce(lowering: CudaLowering, group: Group) -> None:
    """A row for each result; of integers and f64 without post-ops."""
    op = group.first
    source = lowering.value(op.inputs[0].id)
    axes = sorted({axis % len(source.shape) for axis in op.attrs["axes"]})
    described = NAMES[op.kind], source.shape, axes, source.dtype.value, source.strides
    if isinstance(group, AnchorGroup):
        tail = Tail(lowering, group)
        tail.emit(reduce(*described, tail.program), [source])
        return
    place = lowering.target(group.result)
    lowering.launch(reduce(*described, None, register=register_of_type(source.dtype)), [source, place])
    lowering.finish(group.result, place)


@rule("ArgMax", "ArgMin")
def lower_arg_extreme(lowering: CudaLowering, group: Group) -> None:
    """The first element of each line by order."""
    attrs, is_largest = group.first.attrs, group.first.kind == "ArgMax"
    _lower_best(
        lowering, group, 1, is_largest=is_largest, is_nan_first=True, is_last=attrs["select_last_index"]
    )  # fmt: skip


@rule("TopK", where=lambda op: op.attrs["k"] <= MOST_BEST)
def lower_top_k(lowering: CudaLowering, group: Group) -> None:
    """The first elements; a NaN is larger than every number."""
    attrs = group.first.attrs
    _lower_best(lowering, group, attrs["k"], is_largest=attrs["largest"], is_nan_first=attrs["largest"])


def _lower_best(lowering: CudaLowering, group: Group, count: int, **order: bool) -> None:
    """One kernel; the indices are the last result."""
    op = group.first
    source = lowering.value(op.inputs[0].id)
    places = [lowering.target(tensor.id) for tensor in op.outputs]
    call = best(
        source.shape, op.attrs["axis"] % len(source.shape), count, source.dtype.value, source.strides,
        register=register_of_type(source.dtype), has_values=len(places) > 1, **order,
    )  # fmt: skip
    lowering.launch(call, [source, *reversed(places)])
    for tensor, place in zip(op.outputs, places, strict=True):
        lowering.finish(tensor.id, place)


@rule("DynamicQuantizeLinear")
def lower_dynamic_quantize(lowering: CudaLowering, group: Group) -> None:
    """The range, in two reductions; the scale and the zero point that it asks for; the bytes."""
    op = group.first
    source, places = lowering.value(op.inputs[0].id), [lowering.target(tensor.id) for tensor in op.outputs]
    range_of = Region(lowering, ())
    ends = []
    for mode in ("least", "greatest"):
        end, axes = lowering.temporary(()), range(len(source.shape))
        lowering.launch(reduce(mode, source.shape, axes, source.dtype.value, source.strides, None), [source, end])
        ends.append(range_of.load(end))
    least, greatest = ends
    builder, extent = range_of.builder, range_of.binary("sub", greatest, least)
    extent = builder.ternary("select", extent, extent, builder.const(1.0))
    scale = range_of.binary("div", extent, builder.const(255.0))
    zero = range_of.unary(
        "round", range_of.unary("clamp", range_of.binary("div", range_of.unary("neg", least), scale), 0.0, 255.0)
    )
    range_of.write(places[1], scale)
    range_of.write(places[2], zero)
    range_of.emit()
    region = Region(lowering, source.shape)
    scale, zero = (region.load(place.reshaped(())) for place in places[1:])
    scaled = region.binary("div", region.load(source), scale)
    region.write(places[0], region.binary("add", region.unary("round", scaled), zero))
    region.emit()
    for tensor, place in zip(op.outputs, places, strict=True):
        lowering.finish(tensor.id, place)


@rule("CumProd", "CumSum")
def lower_running(lowering: CudaLowering, group: Group) -> None:
    """Floats are collected in f64, integers modulo the range of their type."""
    op = group.first
    source, place = lowering.value(op.inputs[0].id), lowering.target(group.result)
    call = running(
        source.shape, op.attrs["axis"] % len(source.shape), source.dtype.value, source.strides,
        register="f64" if register_of_type(source.dtype) != "s64" else "s64", is_product=op.kind == "CumProd",
        is_exclusive=op.attrs["exclusive"], is_reverse=op.attrs["reverse"],
    )  # fmt: skip
    lowering.launch(call, [source, place])
    lowering.finish(group.result, place)


MOVED = (
    "DynamicDequantize", "Expand", "Gather", "GatherElements", "GatherND", "OneHot", "Pad", "ReverseSequence",
    "RotaryEmbedding", "ScatterElements", "ScatterND", "Slice", "Split", "StaticReshape", "StaticTranspose", "Tile",
)  # fmt: skip
"""Kinds whose rules are those of the CPU: they take no more than moves, elementwise programs and access by index."""

for _kind in MOVED:
    RULES[_kind] = partial(_lower_alone, CPU_RULES[_kind])


def _lower_triangle(lowering: CudaLowering, op: Op) -> None:
    """A selection by the positions along the last two axes, which no kernel of moves makes."""
    source, place = lowering.value(op.inputs[0].id), lowering.target(op.outputs[0].id, any_strides=True)
    ndim = len(source.shape)
    height, width = source.shape[-2:]
    dtype = DataType.S64 if source.dtype is DataType.U64 else source.dtype  # positions have signs, and bits are bits
    region = Region(lowering, source.shape, register=register_of_type(dtype, max(height, width)))
    positions = lowering.positions(largest(height, width))
    rows, columns = (
        region.load_along(positions.cut(0, 0, dim), axis) for axis, dim in ((ndim - 2, height), (ndim - 1, width))
    )
    shift = min(max(op.attrs["k"], -height), width)
    diagonal = region.binary("add", rows, region.load(lowering.literal(np.array([shift]))))
    is_kept = region.binary("ge" if op.attrs["upper"] else "le", columns, diagonal)
    result = region.builder.ternary("select", is_kept, region.load(source), region.builder.const(0.0))
    region.write(place, result)
    region.emit("eltwise(Trilu)")
    lowering.finish(op.outputs[0].id, place)


RULES["Trilu"] = partial(_lower_alone, _lower_triangle)


@rule("GenIndex")
def lower_gen_index(lowering: CudaLowering, group: Group) -> None:
    """Positions, which are known now, along an axis."""
    result = group.first.outputs[0].id
    axis, place = group.first.attrs["axis"] % len(lowering.shapes[result]), lowering.target(result)
    positions = lowering.positions(place.shape[axis])
    count = len(place.shape) - axis - 1
    seen = positions.reshaped((*positions.shape, *[1] * count)).broadcast(place.shape)
    lowering.move(seen, place)
    lowering.finish(result, place)


@rule("Concat")
def lower_concat(lowering: CudaLowering, group: Group) -> None:
    """A copy for each source."""
    op = group.first
    result = op.outputs[0].id
    place, begin = lowering.target(result, any_strides=True), 0
    axis = op.attrs["axis"] % len(place.shape)
    for tensor in op.inputs:
        source = lowering.value(tensor.id)
        lowering.move(source, place.cut(axis, begin, source.shape[axis]))
        begin += source.shape[axis]
    lowering.finish(result, place)
