"""How each kind becomes launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._kernels.cuda.image import Windows, convolution, pooling
from ..._kernels.cuda.products import matmul
from ..._kernels.cuda.rows import layer_norm, reduce, softmax
from ...graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ...typing import DataType, dense_strides
from ..cpu.emit.reduce import NAMES
from ..cpu.layout.images import axes_of, pick
from ..cpu.match.groups import AnchorGroup
from ..cpu.products.matmul_problem import Product
from ..cpu.support import has_no_axes_input
from .lowering import Tail, as_float, lower_elementwise
from .support import RULES, has_windows, rule

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    elif group.first.kind in RULES:
        RULES[group.first.kind](lowering, group)
    else:
        lower_elementwise(lowering, group.ops)


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
    begin, _ = resolve_pads(op.attrs, pick(source.shape, axes[2:]), kernel)
    return Windows(
        pick(source.shape, axes[2:]), pick(result, axes[2:]), kernel, op.attrs["strides"],
        per_axis(op.attrs, "dilations", len(kernel)), begin,
        pick(source.strides, axes), pick(dense_strides(result), axes),
    )  # fmt: skip


@rule("Convolution", where=has_windows)
def lower_convolution(lowering: CudaLowering, group: AnchorGroup) -> None:
    """Implicit matrix products, with weights as they lie."""
    op = group.anchor
    source, weights = (as_float(lowering, tensor.id) for tensor in op.inputs[:2])
    inner, outer, spatial = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    groups, axis = op.attrs["groups"], channel_axis(len(source.shape), op.attrs["data_format"])
    windows = _windows(lowering, group, source, pick(weights.shape, spatial))
    strides = [
        weights.shape[outer] // groups * weights.strides[outer],
        *pick(weights.strides, (outer, inner, *spatial)),
    ]
    tail = Tail(lowering, group, _bias(lowering, op), axis)
    channels, dtypes = (source.shape[axis], weights.shape[outer]), (source.dtype.value, weights.dtype.value)
    tail.emit(convolution(source.shape[0], groups, channels, windows, dtypes, strides, tail.program), [source, weights])


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


@rule("LayerNorm", "RMSNorm")
def lower_norm(lowering: CudaLowering, group: AnchorGroup) -> None:
    """Rows over the axes that are normalised."""
    op = group.anchor
    source = as_float(lowering, op.inputs[0].id)
    begin = op.attrs["begin_norm_axis"] % len(source.shape)
    given = op.inputs[1:] if op.attrs.get("use_affine", True) else ()
    affine = [as_float(lowering, tensor.id).broadcast(source.shape[begin:]) for tensor in given]
    statistics, tail = _statistics(lowering, op), Tail(lowering, group)
    call = layer_norm(
        source.shape, begin, source.dtype.value, source.strides, [_operand(value, value.strides) for value in affine],
        tail.program, epsilon=op.attrs["epsilon"], is_rms=op.kind == "RMSNorm", stats=bool(statistics),
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


@rule("StaticReshape")
def lower_reshape(lowering: CudaLowering, group: Group) -> None:
    """The same memory under another shape; a copy where the source has gaps or the result leaves the partition."""
    op = group.first
    source, shape = lowering.value(op.inputs[0].id), lowering.shapes[op.outputs[0].id]
    lowering.finish(op.outputs[0].id, lowering.dense(source, source.dtype).reshaped(shape))


@rule("StaticTranspose")
def lower_transpose(lowering: CudaLowering, group: Group) -> None:
    """The same memory with its axes in another order; copied only where the result leaves the partition."""
    op = group.first
    source = lowering.value(op.inputs[0].id)
    ndim = len(source.shape)
    order = [axis % ndim for axis in op.attrs["order"]] or list(reversed(range(ndim)))
    lowering.finish(op.outputs[0].id, source.transposed(order))


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
