"""Convolution and ConvTranspose: which of their kernels compute them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._kernels.conv.direct import convolution
from ...._kernels.conv.problem import ConvProblem, ConvShape
from ....graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ..choices import forced
from ..layout.images import pick
from ..lower.epilogue import make_epilogue
from ..lower.images import find_image
from ..lower.integers import operands
from ..match.integers import exact_depth
from ..support import has_small_windows, rule
from .conv_weights import arrange_source, emit_convolution, find_operand, find_unpacked
from .int8_conv import emit_int8_convolution, find_int8_weights
from .transposed import emit_phases, find_phases

if TYPE_CHECKING:
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import Group

__all__ = ["emit_plain"]


@rule("Convolution", is_anchor=True, where=has_small_windows)
def lower_convolution(lowering: Lowering, group: Group) -> None:
    """A convolution, with bias and post-ops behind it."""
    int8_weights = find_int8_weights(lowering, group)
    if int8_weights is not None:
        place = lowering.target(group.result, order=lowering.order_of(group.result), any_strides=True)
        lowering.read_packed(int8_weights.packed, lambda: emit_int8_convolution(lowering, group, int8_weights, place))
        lowering.finish(group.result, place)
        return
    operand = find_operand(lowering, group)
    if operand is not None:
        arrange_source(lowering, group, operand)
    if operand is None:
        place = emit_unpacked(lowering, group)
    elif operand.weights.is_depthwise:
        place = lowering.target(group.result, order=lowering.order_of(group.result), any_strides=True)
        lowering.read_packed(operand.packed.panels, lambda: emit_convolution(lowering, group, operand, place))
    else:
        with lowering.when_kept(operand.packed.panels, False):
            place = emit_unpacked(lowering, group)
        with lowering.when_kept(operand.packed.panels, True):
            emit_convolution(lowering, group, operand, place)
    lowering.finish(group.result, place)


def emit_unpacked(lowering: Lowering, group: Group) -> Value:
    """The convolution with weights as they lie, on pixels whose channels are contiguous or any; where the result is."""
    plain = find_unpacked(lowering, group)
    if plain is None:
        return emit_plain(lowering, group)
    place = lowering.target(group.result, order=lowering.order_of(group.result), any_strides=True)
    emit_convolution(lowering, group, plain, place)
    return place


@rule("ConvTranspose", is_anchor=True, where=has_small_windows)
def lower_transposed(lowering: Lowering, group: Group) -> None:
    """A transposed convolution, with bias and post-ops behind it."""
    phases = find_phases(lowering, group)
    if phases is None:
        place = emit_plain(lowering, group)
    else:
        with lowering.when_kept(phases.packed.panels, False):
            place = emit_plain(lowering, group)
        with lowering.when_kept(phases.packed.panels, True):
            emit_phases(lowering, group, phases, place)
    lowering.finish(group.result, place)


def emit_plain(lowering: Lowering, group: Group, place: Value | None = None) -> Value:
    """The convolution with weights as they lie, to `place` if it is given; where the result is."""
    op = group.anchor
    assert op is not None
    source, weights = operands(lowering, group)
    bias = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    transposed = op.kind == "ConvTranspose"
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    kernel = pick(weights.shape, kernel_axes)
    groups = op.attrs["groups"]
    split = inner if transposed else outer
    group_stride = weights.shape[split] // groups * weights.strides[split]
    result_axis = channel_axis(len(source.shape), op.attrs["data_format"])
    epilogue = make_epilogue(lowering, group, bias, result_axis, place=place, gaps=True)
    image = find_image(lowering, group, source, epilogue)
    begin, end = resolve_pads(op.attrs, image["src_spatial"], kernel, transposed=transposed)
    channels = image["channels"], lowering.shapes[op.outputs[0].id][result_axis]
    problem = ConvProblem.make(
        image["batch"],
        ConvShape(*channels, tuple(kernel), groups, per_axis(op.attrs, "dilations", len(kernel))),
        image["src_spatial"],
        src_strides=image["src_strides"],
        dst_strides=image["dst_strides"],
        strides=op.attrs["strides"],
        pads_begin=begin,
        pads_end=end,
        transposed=transposed,
        output_padding=per_axis(op.attrs, "output_padding", len(kernel), 0) if transposed else None,
    )
    call = convolution(
        problem,
        [group_stride, *pick(weights.strides, (outer, inner, *kernel_axes))],
        image["post_ops"],
        impl=_forced_convolution(op.kind),
        exact_depth=exact_depth(group.dequantized),
    )
    lowering.emit(call, [source, weights, epilogue.place, *epilogue.operands], epilogue.name)
    return epilogue.place


def _forced_convolution(kind: str) -> str:
    """The forced implementation as the kernels name it."""
    impl = forced(kind)
    return "blas_im2col" if impl == "blas" else impl
