"""LayerNorm, RMSNorm, GroupNorm, SoftMax, LogSoftmax, BatchNormForwardTraining, CouplePairs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool._sizes import Preference

from ...._kernels.norm.couple import couple
from ...._kernels.norm.norm import NormOptions, batch_moments, group_norm, layer_norm
from ...._kernels.norm.softmax import softmax, softmax_row
from ....graph.shapes import channel_axis
from ....typing import DataType
from ..lower.epilogue import emit_anchor, emit_by_rows, make_epilogue
from ..lower.region import Region, fill
from ..support import rule

if TYPE_CHECKING:
    from ...._kernels.core.call import KernelCall
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup


@rule("LayerNorm", "RMSNorm", "GroupNorm", is_anchor=True)
def lower_norm(lowering: Lowering, group: AnchorGroup) -> None:
    """Normalisation with gamma, beta and statistics, post-ops behind it."""
    op = group.anchor
    source = lowering.dense(lowering.value(op.inputs[0].id))
    affine = _affine(lowering, op)
    statistics = [lowering.target(tensor.id, dtype=DataType.F32) for tensor in op.outputs[1:]]
    epilogue = make_epilogue(lowering, group)
    options = NormOptions(
        gamma=len(affine) > 0, beta=len(affine) > 1, keep_stats=bool(statistics), epsilon=op.attrs["epsilon"],
        epilogue=epilogue.block,
    )  # fmt: skip
    if op.kind == "GroupNorm":
        axis = channel_axis(len(source.shape), op.attrs["data_format"])
        call = group_norm(source.shape, op.attrs["groups"], axis, options)
    else:
        call = layer_norm(source.shape, op.attrs["begin_norm_axis"], options, is_rms=op.kind == "RMSNorm")
    emit_anchor(lowering, group, call, [source, *affine, *statistics], epilogue, is_in_place=True)
    _finish_all(lowering, op, statistics, math.nan if 0 in source.shape else None)


def _affine(lowering: Lowering, op: Op) -> list[Value]:
    """Gamma and beta where they are wanted, dense f32, one element for each that they scale."""
    values = [lowering.value(tensor.id) for tensor in op.inputs[1:]] if op.attrs.get("use_affine", True) else []
    if op.kind != "GroupNorm":
        shape = lowering.shapes[op.inputs[0].id]
        normalised = shape[op.attrs["begin_norm_axis"] % len(shape) :]
        values = [value.broadcast(normalised) for value in values]
    return [lowering.dense(value) for value in values]


@rule("SoftMax", "LogSoftmax", is_anchor=True)
def lower_softmax(lowering: Lowering, group: AnchorGroup) -> None:
    """SoftMax or LogSoftmax, statistics, post-ops."""
    op, axis = group.anchor, group.anchor.attrs["axis"]
    source = _by_lines(lowering.typed(lowering.value(op.inputs[0].id)), axis, lowering)
    statistics = [lowering.target(tensor.id, dtype=DataType.F32) for tensor in op.outputs[1:]]

    def make(epilogue: bytes) -> KernelCall:
        return softmax(
            source.shape, axis, is_log=op.kind == "LogSoftmax", inf_as_zero=op.attrs.get("mode") == "inf_as_zero",
            stats=bool(statistics), src_strides=source.strides, epilogue=epilogue,
        )  # fmt: skip

    row = softmax_row(source.shape, axis, source.strides)
    epilogue = make_epilogue(lowering, group)
    emit_by_rows(lowering, group, make, [source, *statistics], epilogue, row, is_in_place=True)
    _finish_all(lowering, op, statistics, -math.inf if 0 in source.shape else None)


def _by_lines(source: Value, axis: int, lowering: Lowering) -> Value:
    """The source, or a copy whose lines are contiguous where few columns lie side by side instead."""
    width, _ = softmax_row(source.shape, axis, source.strides)
    with Preference(width, source.strides[axis]):
        is_narrow = source.strides[axis] != 1 and width < _LEAST_COLUMNS
    return lowering.dense(source) if is_narrow else source


_LEAST_COLUMNS = 16
"""Columns for which vectors along them are full."""


@rule("CouplePairs")
def lower_couple_pairs(lowering: Lowering, op: Op) -> None:
    """One kernel, by blocks of rows."""
    source, place = lowering.dense(lowering.value(op.inputs[0].id)), lowering.target(op.outputs[0].id)
    lowering.emit(couple(*place.shape), [source, place])
    lowering.finish(op.outputs[0].id, place)


def _finish_all(lowering: Lowering, op: Op, results: list[Value], empty: float | None) -> None:
    """Say where the statistics are; `empty` is what they are over no elements, which kernels do not write."""
    for tensor, result in zip(op.outputs[1:], results, strict=True):
        if empty is not None:
            fill(lowering, result, empty)
        lowering.finish(tensor.id, result)


@rule("BatchNormForwardTraining")
def lower_batch_norm_training(lowering: Lowering, op: Op) -> None:
    """Moments of the batch, the normalised result, and the running moments moved towards the batch's."""
    source = lowering.typed(lowering.value(op.inputs[0].id))
    mean, variance, *affine = (lowering.value(tensor.id) for tensor in op.inputs[1:])
    axis = channel_axis(len(source.shape), op.attrs["data_format"])
    channels = (source.shape[axis],)
    moments, form = ([lowering.temporary(channels) for _ in range(2)] for _ in range(2))
    if 0 in source.shape:
        for moment in (*moments, *form):
            fill(lowering, moment, math.nan)
    else:
        call = batch_moments(source.shape, axis, epsilon=op.attrs["epsilon"], src_strides=source.strides)
        lowering.emit(call, [source, *moments, *form])
    _normalise(lowering, op, source, form, affine, axis)
    momentum = op.attrs.get("momentum", 0.5)
    for tensor, running, batch in zip(op.outputs[1:3], (mean, variance), moments, strict=True):
        region = Region(lowering, channels)
        kept = region.binary("mul", region.load(running), region.builder.const(momentum))
        added = region.binary("mul", region.load(batch), region.builder.const(1.0 - momentum))
        region.put(tensor.id, region.binary("add", kept, added))
        place = region.store(tensor.id)
        region.emit("eltwise(running moment)")
        lowering.finish(tensor.id, place)
    for tensor, batch in zip(op.outputs[3:5], moments, strict=True):
        lowering.finish(tensor.id, batch)


def _normalise(lowering: Lowering, op: Op, source: Value, form: list[Value], affine: list[Value], axis: int) -> None:
    """The normal form of `batch_moments`, times gamma, plus beta."""
    region = Region(lowering, source.shape)
    offset, scale = (region.load_along(vector, axis) for vector in form)
    deviation = region.builder.ternary("fma", region.load(source), region.builder.const(0.25), offset)
    result = region.binary("mul", deviation, scale)
    for name, vector in zip(("mul", "add"), affine, strict=False):
        result = region.binary(name, result, region.load_along(vector, axis))
    region.put(op.outputs[0].id, result)
    place = region.store(op.outputs[0].id)
    region.emit("eltwise(BatchNorm)")
    lowering.finish(op.outputs[0].id, place)
