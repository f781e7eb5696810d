"""Convolution and ConvTranspose: their implementations in order of preference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._kernels.conv.direct import convolution, takes_bias
from ....graph.op import Op
from ....graph.shapes import conv_weight_axes, per_axis, resolve_pads, spatial_axes, window_extent
from ..choices import forced
from ..layout.images import pick
from ..lower.epilogue import find_image, make_epilogue
from ..lower.integers import operands
from ..lower.post_ops import is_plain_bias
from ..match.groups import AnchorGroup
from ..match.integers import exact_depth
from ..support import has_small_windows, rule
from .choice import Choice, lower_first
from .conv_packed import find_packed, find_unpacked, settle_weights
from .conv_problem import ConvSite
from .int8_conv import find_int8
from .transposed import find_overlap, find_phases

if TYPE_CHECKING:
    from ..lower.lowering import Lowering
    from ..lower.values import Value

__all__ = ["emit_plain"]


def _has_known_shape(op: Op) -> bool:
    """Whether the shape of the result is no tensor."""
    return len(op.inputs) == 2 and has_small_windows(op)


@rule("Convolution", is_anchor=True, where=has_small_windows)
def lower_convolution(lowering: Lowering, group: AnchorGroup) -> None:
    """A convolution, with bias and post-ops behind it."""
    lower_first(ConvSite(lowering, group), CONVOLUTION)


@rule("ConvTranspose", is_anchor=True, where=has_small_windows)
def lower_transposed(lowering: Lowering, group: AnchorGroup) -> None:
    """A transposed convolution, with bias and post-ops behind it."""
    lower_first(ConvSite(lowering, group), TRANSPOSED)


@rule("ConvolutionBackwardData", where=_has_known_shape)
def lower_backward_data(lowering: Lowering, op: Op) -> None:
    """The transposed convolution with the same weights: what were channels of the result are those of the source."""
    source, weights, result = (lowering.shapes[tensor.id] for tensor in (*op.inputs, op.outputs[0]))
    axes = spatial_axes(len(result), op.attrs["data_format"])
    kernel = pick(weights, conv_weight_axes(len(weights), op.attrs["weights_format"])[2])
    begin, _ = resolve_pads(op.attrs, pick(result, axes), kernel)
    strides, dilations = (per_axis(op.attrs, name, len(axes)) for name in ("strides", "dilations"))
    reached = [
        (source[axis] - 1) * strides[i] + window_extent(kernel[i], dilations[i]) - begin[i]
        for i, axis in enumerate(axes)
    ]  # of which the result has less or more
    site = _adjoint(
        lowering, op, "ConvTranspose", auto_pad="None", pads_begin=begin,
        pads_end=[max(have - result[axis], 0) for have, axis in zip(reached, axes, strict=True)],
        output_padding=[max(result[axis] - have, 0) for have, axis in zip(reached, axes, strict=True)],
    )  # fmt: skip
    lower_first(site, TRANSPOSED)


@rule("ConvTransposeBackwardData", where=has_small_windows)
def lower_transposed_backward_data(lowering: Lowering, op: Op) -> None:
    """The convolution with the same weights."""
    lower_first(_adjoint(lowering, op, "Convolution"), CONVOLUTION)


_ADJOINT_FORMATS = {"XIO": "XOI", "OIX": "IOX", "XOI": "XIO", "IOX": "OIX"}
"""How weights lie for the one who takes results for sources."""


def _adjoint(lowering: Lowering, op: Op, kind: str, **attrs: Any) -> ConvSite:
    """The op as one of a kind whose results have the shape of its own, alone."""
    attrs = {**op.attrs, **attrs, "weights_format": _ADJOINT_FORMATS[op.attrs["weights_format"]]}
    return ConvSite(lowering, AnchorGroup((), Op(op.id, kind, op.inputs, op.outputs, op.name, **attrs)))


def find_plain(site: ConvSite) -> Choice:
    """The convolution with weights as they lie."""
    return Choice(lambda place: emit_plain(site, place))


def emit_plain(site: ConvSite, place: Value | None = None) -> Value:
    """The convolution with weights as they lie, to `place` if it is given; where the result is."""
    lowering, group, op = site.lowering, site.group, site.op
    settle_weights(site)
    source, weights = operands(lowering, group)
    transposed = op.kind == "ConvTranspose"
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    kernel = pick(weights.shape, kernel_axes)
    groups = op.attrs["groups"]
    split = inner if transposed else outer
    group_stride = weights.shape[split] // groups * weights.strides[split]
    is_term = not (transposed or group.dequantized) and is_plain_bias(site.bias) and takes_bias(site.shape)
    early, late = (site.bias, None) if is_term else (None, site.bias)
    epilogue = make_epilogue(lowering, group, late, site.axes[1], place=place, gaps=True)
    image = find_image(lowering, group, source, epilogue, early)
    call = convolution(
        site.image_problem(image, kernel),
        [group_stride, *pick(weights.strides, (outer, inner, *kernel_axes))],
        image["post_ops"],
        impl=_forced_convolution(op.kind),
        exact_depth=exact_depth(group.dequantized),
    )
    biases = [] if early is None else [early]
    lowering.emit(call, [source, weights, *biases, epilogue.place, *epilogue.operands], epilogue.name)
    return epilogue.place


def _forced_convolution(kind: str) -> str:
    """The forced implementation as the kernels name it."""
    impl = forced(kind)
    return "blas_im2col" if impl == "blas" else impl


CONVOLUTION = (find_int8, find_packed, find_unpacked, find_plain)
TRANSPOSED = (find_overlap, find_phases, find_plain)
