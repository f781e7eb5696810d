"""Transposed convolutions: constant weights phase by phase, and products of pixels where results have few channels.

Each phase of the result is a small convolution with stride 1.

Along an axis of stride s, the results r, r + s, r + 2 s, ... meet the same taps of the kernel, every (s / gcd(s, d))-th
for dilation d, and the taps of different r are different ones. So the result falls into prod(strides) phases, each the
convolution of the source with its own taps, turned round; nothing is multiplied by zero and nothing is added up in
memory. Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.
"""

from __future__ import annotations

from itertools import product
from math import gcd, prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, replace

from ...._kernels.conv.overlap import overlap
from ...._kernels.conv.packed import F32ConvFormat, has_lines
from ...._kernels.conv.problem import ConvProblem, ConvShape
from ...._kernels.gemm.matmul import matmul
from ...._kernels.gemm.problem import MatmulProblem
from ...._kernels.image.window import merged_stride
from ...._sizes import Preference
from ....graph.shapes import conv_weight_axes, per_axis, resolve_pads
from ....typing import DataType
from ..choices import forced
from ..layout.images import axes_of, pick, spans_too_much
from ..layout.packed import MOST_PHASES, ConvAxes, PhaseWeights
from ..lower.epilogue import find_image, make_epilogue
from ..lower.instructions import apply
from ..lower.post_ops import FusedPostOps, is_plain_bias
from ..lower.region import Region, region_name
from ..support import FLOATS
from .choice import Choice
from .weights import PackedWeights, pack_floats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._kernels.conv.problem import ConvFormat
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from .conv_problem import ConvSite

__all__ = ["find_overlap", "find_phases"]

_FEW_CHANNELS = 4
"""Channels of a result that leave most of a vector of channels empty, on every instruction set but the weakest."""


@dataclass(frozen=True)
class _Axis:
    """One phase along one axis.

    `count` results from `start` on, a stride apart; `taps` of the kernel from `first` on; the geometry of its
    convolution, where the source is cut if begin or end are negative.
    """

    start: int
    count: int
    first: int
    step: int
    taps: int
    begin: int
    end: int
    dilation: int

    @classmethod
    def find(cls, start: int, sizes: tuple[int, int, int], stride: int, dilation: int, pad: int) -> _Axis | None:
        """The phase that begins with result `start`; None where it meets no tap or nothing of the source."""
        src, dst, kernel = sizes
        step, gap = stride // gcd(stride, dilation), dilation // gcd(stride, dilation)
        first = next((k for k in range(min(step, kernel)) if (start + pad - k * dilation) % stride == 0), None)
        if first is None:
            return None
        taps, count = (kernel - 1 - first) // step + 1, -(-(dst - start) // stride)
        begin = (taps - 1) * gap - (start + pad - first * dilation) // stride
        end = count + (taps - 1) * gap - src - begin
        is_empty = src + min(begin, 0) + min(end, 0) <= 0
        return None if is_empty else cls(start, count, first, step, taps, begin, end, gap)


_LEAST_PIXELS = 196
"""Of all images, for which weights that users keep in another type are widened in each run: that takes 2 % of it."""


Phase = tuple[_Axis, ...]


Phases = tuple[tuple[Phase, "ConvFormat", int], ...]
"""The format of the weights of a transposed convolution: each phase, its own, and where it begins. Unit: bytes."""


def find_phases(site: ConvSite) -> Choice | None:
    """The transposed convolution phase by phase, with weights kept by the constant tensor cache.

    None where they are no constants, BLAS is forced, no phase is a convolution, or one has more axes than its kernel
    walks. Results of other phases are the bias: strides may be larger than the kernel.
    """
    lowering, op, front = site.lowering, site.op, site.group.compressed
    if site.group.dequantized or forced("ConvTranspose") == "blas" or (front and lowering.prefer == "memory"):
        return None
    tensor_id = op.inputs[1].id
    weights = lowering.any_value(front.inputs[0].id if front else tensor_id)
    is_known = lowering.is_constant(weights) or weights.layout is not None
    if not is_known or lowering.dtypes[tensor_id] not in FLOATS or 0 in (*weights.shape, *site.result):
        return None
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    groups, kernel = op.attrs["groups"], tuple(pick(weights.shape, kernel_axes))
    found = _find_phases(lowering, op, kernel)
    if not found:
        return None
    ic, oc = weights.shape[inner], weights.shape[outer] * groups
    shape = ConvShape(ic, oc, kernel, groups, tuple(part.dilation for part in found[0]))
    layout = PhaseWeights(shape, ConvAxes(inner, outer, kernel_axes), tuple(part.step for part in found[0]))
    formats = layout.phases()
    phases = tuple((phase, *formats[tuple(part.first for part in phase)]) for phase in found)
    if not _fits(site, phases, lowering.temporary(site.result, order=_rows_of(site))):  # where results go at worst
        return None
    own_type = replace(layout, dtype=weights.dtype)
    is_widened = prod(lowering.shapes[op.inputs[0].id]) >= _LEAST_PIXELS * ic
    layouts = [own_type, layout] if is_widened else [layout, own_type]
    given = lowering.find_given(tensor_id, layouts) if front is None else None
    if given is not None:
        panels = lowering.typed(weights.as_elements(given.kept, given.nbytes)).as_bytes
        own = PackedWeights(panels, phases, site.bias)
        return Choice(lambda place: _emit(site, own, place), site.target())
    packed = pack_floats(site, layout, phases, None if groups > 1 else outer, oc)
    return Choice(lambda place: _emit(site, packed, place), packed=packed.panels)


def find_overlap(site: ConvSite) -> Choice | None:
    """One product in which vectors run along the pixels of the source, then sums where windows overlap.

    None where the result has more channels than a few, for several groups, where the weights of a channel do not lie
    behind one another, or where the products would take far more memory than source and result.
    """
    lowering, op = site.lowering, site.op
    source, weights = (lowering.shapes[tensor.id] for tensor in op.inputs[:2])
    _, outer, kernel_axes = conv_weight_axes(len(weights), op.attrs["weights_format"])
    kernel = pick(weights, kernel_axes)
    is_bytes = site.group.dequantized or site.group.compressed
    is_refused = is_bytes or forced("ConvTranspose") == "blas" or op.attrs["groups"] != 1
    if is_refused or 0 in (*source, *weights, *site.result) or weights[outer] > _FEW_CHANNELS:
        return None
    value = lowering.any_value(op.inputs[1].id)
    if value.layout is not None or merged_stride(_rows_of_weights(value, outer, kernel_axes)) is None:
        return None
    spatial = pick(source, site.axes[2:])
    with Preference(*source, *site.result):
        if source[0] * weights[outer] * prod(kernel) * prod(spatial) > 2 * (prod(source) + prod(site.result)):
            return None
    return Choice(lambda place: _emit_overlap(site, place))


def _rows_of_weights(weights: Value, outer: int, kernel_axes: Sequence[int]) -> list[tuple[int, int]]:
    """Extents and strides of what is a row of the product: channels of the result, then taps."""
    return [(weights.shape[axis], weights.strides[axis]) for axis in (outer, *kernel_axes)]


def _emit_overlap(site: ConvSite, place: Value | None) -> Value:
    lowering, group, op = site.lowering, site.group, site.op
    source, weights = (lowering.typed(lowering.value(tensor.id)) for tensor in op.inputs[:2])
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    batch, channel, *spatial = site.axes
    if merged_stride([(source.shape[axis], source.strides[axis]) for axis in spatial]) is None:
        source = lowering.dense(source, DataType.F32)
    pixel = merged_stride([(source.shape[axis], source.strides[axis]) for axis in spatial])
    row = merged_stride(_rows_of_weights(weights, outer, kernel_axes))
    assert pixel is not None
    assert row is not None  # as `find_overlap` saw
    n, pixels = source.shape[batch], prod(pick(source.shape, spatial))
    kernel = tuple(pick(weights.shape, kernel_axes))
    nrows = weights.shape[outer] * prod(kernel)
    products = lowering.temporary((n, nrows, pixels))
    problem = MatmulProblem(
        [n], nrows, pixels, weights.shape[inner], (0, row, weights.strides[inner]), products.strides[:2]
    )
    b_strides = source.strides[batch], source.strides[channel], pixel
    lowering.emit(matmul(problem, b_strides), [weights, source, products], "ConvTranspose(product)")
    epilogue = make_epilogue(lowering, group, site.bias, channel, place=place, gaps=True)
    image = find_image(lowering, group, source, epilogue)
    call = overlap(site.image_problem(image, kernel), image["post_ops"])
    lowering.emit(call, [products, epilogue.place, *epilogue.operands], epilogue.name)
    return epilogue.place


def _find_phases(lowering: Lowering, op: Op, kernel: Sequence[int]) -> list[Phase] | None:
    """The phases of every axis combined, without those whose results meet no tap, or nothing of the source."""
    src, dst = (lowering.shapes[tensor.id] for tensor in (op.inputs[0], op.outputs[0]))
    axes = axes_of(op, len(src))
    ndim = len(kernel)
    strides, dilations = (per_axis(op.attrs, name, ndim) for name in ("strides", "dilations"))
    begin, _ = resolve_pads(op.attrs, pick(src, axes[2:]), kernel, transposed=True)
    if prod(strides) > MOST_PHASES or spans_too_much(op, src, dst, kernel):
        return None
    by_axis = []
    for k, axis in enumerate(axes[2:]):
        sizes = src[axis], dst[axis], kernel[k]
        starts = range(min(strides[k], dst[axis]))
        by_axis.append([_Axis.find(start, sizes, strides[k], dilations[k], begin[k]) for start in starts])
    return [phase for phase in product(*by_axis) if None not in phase]  # type: ignore[misc]


def _emit(site: ConvSite, weights: PackedWeights[Phases], place: Value | None) -> Value:
    """The transposed convolution with its bias and post-ops, to `place`."""
    assert place is not None  # that of what stands in
    lowering, group, axis, bias = site.lowering, site.group, site.axes[1], weights.bias
    strides = per_axis(site.op.attrs, "strides", len(site.axes) - 2)
    starts = [min(pair) for pair in zip(strides, pick(place.shape, site.axes[2:]), strict=True)]
    has_gaps = len(weights.format) < prod(starts)
    fused = None if has_gaps else site.find_post_ops(place, weights, lambda image: _fits(site, weights.format, image))
    if fused is not None:
        _emit_calls(site, weights, fused, place)
        return place
    is_early = is_plain_bias(bias)
    sums = lowering.temporary(place.shape, DataType.F32, _rows_of(site))
    if has_gaps:
        region = Region(lowering, sums.shape, order=_rows_of(site))
        value = region.load_along(bias, axis) if is_early and bias is not None else region.builder.const(0.0)
        region.write(sums, value)
        region.emit("eltwise(fill)")
    _emit_calls(site, weights, FusedPostOps(bias if is_early else None), sums)
    ops = group.ops[weights.folded :]
    if is_early and not ops:
        lowering.move(sums, place)
        return place
    sums = lowering.dense(sums, DataType.F32, site.order)
    region = Region(lowering, place.shape, order=site.order)
    value = region.load(sums)
    if not is_early and bias is not None:
        value = region.binary("add", value, region.load_along(bias, axis))
    region.put(group.reached(weights.folded), value)
    for later in ops:
        apply(region, later)
    region.store(group.result, place)
    name = region_name(ops) if ops else None
    region.emit(name, is_elementwise=True)
    return place


def _fits(site: ConvSite, weights_format: Phases, image: Value) -> bool:
    """Whether a kernel can write the results of each phase in an image that lies so."""
    strides = image.row_strides(_rows_of(site))
    if strides is None:
        return False
    image, axes = image._replace(strides=strides), site.axes
    for phase, own, _ in weights_format:
        view, stage = _cut(site, image, phase), isinstance(own, F32ConvFormat) and own.is_staged
        if not has_lines(view.shape[0], pick(view.shape, axes[2:]), pick(view.strides, axes), stage=stage):
            return False
    return True


def _cut(site: ConvSite, image: Value, phase: Phase) -> Value:
    """The results of a phase in an image that lies as they do."""
    axes = site.axes[2:]
    for axis, part, stride in zip(axes, phase, per_axis(site.op.attrs, "strides", len(axes)), strict=True):
        image = image.cut(axis, part.start, part.count, stride)
    return image


def _emit_calls(site: ConvSite, weights: PackedWeights[Phases], fused: FusedPostOps, place: Value) -> None:
    """One call for each phase."""
    lowering, axes, order = site.lowering, site.axes, _rows_of(site)
    source = lowering.arranged(site.op.inputs[0].id, order)
    place, residual = _by_rows(place, order), None if fused.residual is None else _by_rows(fused.residual, order)
    for phase, weights_format, start in weights.format:
        read, written = source, _cut(site, place, phase)
        added = None if residual is None else _cut(site, residual, phase)
        for axis, part in zip(axes[2:], phase, strict=True):
            count = read.shape[axis] + min(part.begin, 0) + min(part.end, 0)
            read = read.cut(axis, max(-part.begin, 0), count)
        problem = ConvProblem.make(
            read.shape[0],
            weights_format.shape,
            pick(read.shape, axes[2:]),
            src_strides=pick(read.strides, axes),
            dst_strides=pick(written.strides, axes),
            pads_begin=[max(part.begin, 0) for part in phase],
            pads_end=[max(part.end, 0) for part in phase],
            threads=lowering.threads,
        )
        tail = replace(fused, residual=added).tail(written, (), None if added is None else pick(added.strides, axes))
        call = weights_format.convolution(problem, tail.post_ops)
        lowering.emit(call, [read, weights.panels._replace(offset=start), *tail.args])


def _rows_of(site: ConvSite) -> tuple[int, ...]:
    """Axes in the order in which kernels walk images: the channels of a pixel are a row."""
    return (0, *site.axes[2:], site.axes[1])


def _by_rows(image: Value, order: Sequence[int]) -> Value:
    """The image with strides that kernels can walk along axes of one element too."""
    return image._replace(strides=image.row_strides(order) or image.strides)
