"""Constant weights of transposed convolutions: each phase of the result is a small convolution with stride 1.

Along an axis of stride s, the results r, r + s, r + 2 s, ... meet the same taps of the kernel, every (s / gcd(s, d))-th
for dilation d, and the taps of different r are different ones. So the result falls into prod(strides) phases, each the
convolution of the source with its own taps, turned round; nothing is multiplied by zero and nothing is added up in
memory. Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from ..._kernels.conv_depthwise import depthwise_convolution, pack_depthwise_weights
from ..._kernels.conv_packed import has_lines, pack_conv_weights, packed_conv_layout, packed_convolution
from ..._kernels.matmul import aligned
from ...graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads
from ...typing import DataType
from .choices import forced
from .filters import find_form, is_plain_bias
from .images import axes_of, pick, spans_too_much
from .region import Region, region_name
from .tail import Tail, find_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._kernels.call import KernelCall
    from ...graph.op import Op
    from .filters import Form
    from .groups import Group
    from .lowering import Lowering, Value

__all__ = ["Phases", "emit_phases", "find_phases"]

_MOST_PHASES = 64
"""Each is a step of its own: of more, the steps would cost more than they compute."""


@dataclass(frozen=True)
class _Axis:
    """One phase along one axis.

    Attributes
    ----------
    start, count : int
        First result, and how many there are, a stride apart.
    first, step, taps : int
        Its taps of the kernel.
    begin, end, dilation : int
        Geometry of its convolution; where begin or end are negative, the source is cut.
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


Phase = tuple[_Axis, ...]


@dataclass(frozen=True)
class Phases:
    """The weights of a transposed convolution, by phase.

    Attributes
    ----------
    form : Form
    ic, oc, groups : int
    phases : tuple of (Phase, int)
        And where in the form its weights begin. Unit: bytes.
    """

    form: Form
    ic: int
    oc: int
    groups: int
    phases: tuple[tuple[Phase, int], ...]


def find_phases(lowering: Lowering, group: Group) -> Phases | None:
    """The weights of each phase, kept by the constant tensor cache.

    None where they are no constants, BLAS is forced, the result's channels do not lie innermost, or a phase is no
    convolution.
    """
    op = group.anchor
    assert op is not None
    if group.dequantized or forced("ConvTranspose") == "blas":
        return None
    weights, result = lowering.value(op.inputs[1].id), lowering.shapes[group.result]
    order = lowering.order_of(group.result)
    is_last = order[-1] == channel_axis(len(result), op.attrs["data_format"])
    if not is_last or not lowering.is_constant(weights) or 0 in (*weights.shape, *result):
        return None
    inner, outer, kernel_axes = conv_weight_axes(len(weights.shape), op.attrs["weights_format"])
    groups = op.attrs["groups"]
    ic, oc = weights.shape[inner], weights.shape[outer] * groups
    found = _find_phases(lowering, op, pick(weights.shape, kernel_axes))
    if found is None:
        return None
    phases, nbytes = [], 0
    for phase in found:
        phases.append((phase, nbytes))
        nbytes += aligned(_nbytes(ic, oc, groups, phase))

    def fill(source: Value, panels: Value) -> None:
        strides = [ic // groups * source.strides[inner], *pick(source.strides, (outer, inner))]
        for phase, start in phases:
            offset, steps = source.offset, []
            for axis, part in zip(kernel_axes, phase, strict=True):
                offset += (part.first + (part.taps - 1) * part.step) * source.strides[axis]
                steps.append(-part.step * source.strides[axis])
            call = _pack(ic, oc, groups, phase, [*strides, *steps])
            lowering.emit(call, [source._replace(offset=offset), panels._replace(offset=start)])

    form = find_form(lowering, group, (None if groups > 1 else outer, oc), nbytes, fill)
    return None if form is None else Phases(form, ic, oc, groups, tuple(phases))


def _find_phases(lowering: Lowering, op: Op, kernel: Sequence[int]) -> list[Phase] | None:
    """The phases of every axis combined."""
    src, dst = (lowering.shapes[tensor.id] for tensor in (op.inputs[0], op.outputs[0]))
    axes = axes_of(op, len(src))
    ndim = len(kernel)
    strides, dilations = (per_axis(op.attrs, name, ndim) for name in ("strides", "dilations"))
    begin, _ = resolve_pads(op.attrs, pick(src, axes[2:]), kernel, transposed=True)
    if prod(strides) > _MOST_PHASES or spans_too_much(op, src, dst, kernel):
        return None
    by_axis = []
    for k, axis in enumerate(axes[2:]):
        sizes = src[axis], dst[axis], kernel[k]
        starts = range(min(strides[k], dst[axis]))
        by_axis.append([_Axis.find(start, sizes, strides[k], dilations[k], begin[k]) for start in starts])
    found = [phase for phase in product(*by_axis) if None not in phase]
    return found if len(found) == prod(map(len, by_axis)) else None  # type: ignore[return-value]


def _is_depthwise(ic: int, oc: int, groups: int) -> bool:
    return 1 < groups == ic == oc


def _nbytes(ic: int, oc: int, groups: int, phase: Phase) -> int:
    """Size of the weights of a phase. Unit: bytes."""
    taps = [part.taps for part in phase]
    if _is_depthwise(ic, oc, groups):
        return 4 * oc * prod(taps)
    return packed_conv_layout(ic, oc, taps, groups=groups, dilations=[part.dilation for part in phase]).nbytes


def _pack(ic: int, oc: int, groups: int, phase: Phase, strides: Sequence[int]) -> KernelCall:
    """The kernel that brings the weights of a phase, by these strides, into the form."""
    taps = [part.taps for part in phase]
    if _is_depthwise(ic, oc, groups):
        return pack_depthwise_weights(oc, taps, [strides[0], *strides[3:]])
    return pack_conv_weights(ic, oc, taps, strides, groups=groups, dilations=[part.dilation for part in phase])


def emit_phases(lowering: Lowering, group: Group, phases: Phases, place: Value) -> None:
    """The transposed convolution with weights in that form, with its bias and post-ops, to `place`."""
    op = group.anchor
    assert op is not None
    order, axes = lowering.order_of(group.result), axes_of(op, len(place.shape))
    tail = _find_tail(lowering, group, phases, place, axes[1])
    if tail is not None:
        _emit(lowering, op, phases, tail, place)
        return
    is_early = is_plain_bias(phases.form.bias)
    sums = lowering.temporary(place.shape, DataType.F32, order)
    _emit(lowering, op, phases, Tail(phases.form.bias if is_early else None), sums)
    ops = group.ops[phases.form.folded :]
    region = Region(lowering, place.shape, order=order)
    value = region.load(sums)
    if not is_early and phases.form.bias is not None:
        value = region.binary("add", value, region.load_along(phases.form.bias, axes[1]))
    region.put(_sums_id(group, phases), value)
    for later in ops:
        region.apply(later)
    region.store(group.result, place)
    name = region_name(ops) if ops else None
    lowering.emit(region.builder.build(), [place, *region.operands], name, is_elementwise=True)


def _sums_id(group: Group, phases: Phases) -> int:
    """Id of the tensor that the kernels compute."""
    assert group.anchor is not None
    folded = phases.form.folded
    return (group.ops[folded - 1] if folded else group.anchor).outputs[0].id


def _find_tail(lowering: Lowering, group: Group, phases: Phases, place: Value, axis: int) -> Tail | None:
    """The post-ops that the form has not taken in, if they are a tail of the kernel, which writes to `place`."""
    assert group.anchor is not None
    op, bias, ops = group.anchor, phases.form.bias, group.ops[phases.form.folded :]

    def fits(value: Value) -> bool:
        strides = value.row_strides(lowering.order_of(group.result))
        if strides is None:
            return False
        views = [_cut(op, value._replace(strides=strides), phase) for phase, _ in phases.phases]
        axes = axes_of(op, len(value.shape))
        return all(has_lines(v.shape[0], pick(v.shape, axes[2:]), pick(v.strides, axes)) for v in views)

    if not fits(place) or not is_plain_bias(bias):
        return None
    return find_tail(lowering, ops, _sums_id(group, phases), place, bias, axis, is_residual=fits)


def _cut(op: Op, image: Value, phase: Phase) -> Value:
    """The results of a phase in an image that lies as they do."""
    axes = axes_of(op, len(image.shape))[2:]
    for axis, part, stride in zip(axes, phase, per_axis(op.attrs, "strides", len(axes)), strict=True):
        image = image.cut(axis, part.start, part.count, stride)
    return image


def _emit(lowering: Lowering, op: Op, phases: Phases, tail: Tail, place: Value) -> None:
    """One call for each phase."""
    axes = axes_of(op, len(place.shape))
    order = (0, *axes[2:], axes[1])
    source = lowering.arranged(op.inputs[0].id, order)
    place, residual = _by_rows(place, order), None if tail.residual is None else _by_rows(tail.residual, order)
    for phase, start in phases.phases:
        read, written = source, _cut(op, place, phase)
        added = None if residual is None else _cut(op, residual, phase)
        for axis, part in zip(axes[2:], phase, strict=True):
            count = read.shape[axis] + min(part.begin, 0) + min(part.end, 0)
            read = read.cut(axis, max(-part.begin, 0), count)
        options: dict[str, Any] = {
            "src_strides": pick(read.strides, axes), "dst_strides": pick(written.strides, axes),
            "residual_strides": None if added is None else pick(added.strides, axes),
            "pads_begin": [max(part.begin, 0) for part in phase], "pads_end": [max(part.end, 0) for part in phase],
            "dilations": [part.dilation for part in phase], "bias": tail.bias is not None, "clamp": tail.clamp,
        }  # fmt: skip
        call = _make_call(phases, [part.taps for part in phase], read, axes, options)
        addends = [value for value in (tail.bias, added) if value is not None]
        lowering.emit(call, [read, phases.form.panels._replace(offset=start), *addends, written])


def _by_rows(image: Value, order: Sequence[int]) -> Value:
    """The image with strides that kernels can walk along axes of one element too."""
    return image._replace(strides=image.row_strides(order) or image.strides)


def _make_call(
    phases: Phases, taps: Sequence[int], source: Value, axes: Sequence[int], options: dict[str, Any]
) -> KernelCall:
    """The kernel of a phase."""
    batch, spatial = source.shape[0], pick(source.shape, axes[2:])
    if _is_depthwise(phases.ic, phases.oc, phases.groups):
        return depthwise_convolution(batch, phases.oc, spatial, taps, **options)
    return packed_convolution(batch, phases.ic, phases.oc, spatial, taps, groups=phases.groups, **options)
