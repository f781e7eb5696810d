"""How each kind becomes launches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..._kernels.cuda.image import Windows, convolution, pooling
from ..._kernels.cuda.index import gather
from ..._kernels.cuda.products import matmul
from ..._kernels.cuda.rows import norm, reduce, softmax
from ...graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ...typing import DataType, dense_strides
from ..cpu.emit import movement, parts  # noqa: F401  (imported for their rules)
from ..cpu.emit.indexing import geometry
from ..cpu.emit.reduce import NAMES
from ..cpu.layout.images import axes_of, pick
from ..cpu.match.groups import AnchorGroup
from ..cpu.products.matmul_problem import Product
from ..cpu.support import RULES as CPU_RULES
from ..cpu.support import has_no_axes_input
from .attention import lower_attention
from .lowering import Tail, as_float, lower_elementwise, split_axis
from .support import RULES, has_windows, rule

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
    elif group.first.kind in RULES:
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
    product, tail = Product.of(op, a, b), Tail(lowering, group, _bias(lowering, op))
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


@rule("Convolution", "ConvTranspose", where=has_windows)
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
    tail = Tail(lowering, group, _bias(lowering, op), axis)
    channels = source.shape[axis], lowering.shapes[group.anchor.outputs[0].id][axis]
    dtypes = source.dtype.value, weights.dtype.value
    call = convolution(
        source.shape[0], groups, channels, windows, dtypes, strides, tail.program, transposed=is_transposed
    )
    tail.emit(call, [source, weights])


@rule("AvgPool", "MaxPool", where=has_windows)
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
def lower_reduce(lowering: CudaLowering, group: AnchorGroup) -> None:
    """A row for each result."""
    op = group.anchor
    source = as_float(lowering, op.inputs[0].id)
    axes = sorted({axis % len(source.shape) for axis in op.attrs["axes"]})
    tail = Tail(lowering, group)
    call = reduce(NAMES[op.kind], source.shape, axes, source.dtype.value, source.strides, tail.program)
    tail.emit(call, [source])


for _kind in ("Expand", "Slice", "Split", "StaticReshape", "StaticTranspose"):
    RULES[_kind] = partial(_lower_alone, CPU_RULES[_kind])  # the same memory, seen in another way


@rule("Gather", "GatherElements", "GatherND")
def lower_gather(lowering: CudaLowering, group: Group) -> None:
    """One kernel picks the rows."""
    op = group.first
    source, indices = (lowering.value(tensor.id) for tensor in op.inputs)
    source = source if op.kind == "GatherElements" else lowering.dense(source, source.dtype)
    indices = indices if op.kind != "GatherND" else lowering.dense(indices, indices.dtype)
    place, itemsize = lowering.target(op.outputs[0].id), source.dtype.bits // 8
    call = gather(**geometry(op, source, indices), itemsize=itemsize, index_dtype=indices.dtype.value)
    lowering.launch(call, [source, indices, place])
    lowering.finish(op.outputs[0].id, place)


@rule("GenIndex")
def lower_gen_index(lowering: CudaLowering, group: Group) -> None:
    """Positions, which are known now, along an axis."""
    result = group.first.outputs[0].id
    axis, place = group.first.attrs["axis"] % len(lowering.shapes[result]), lowering.target(result)
    positions = lowering.literal(np.arange(place.shape[axis], dtype=place.dtype.numpy))
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
