"""Horizontal fusion of convolutions: several that read one image with windows of the same geometry, in one call.

The weights are packed side by side, so that the image is read once for all of them, and the results are slices of
one image, channels last: whoever reads a slice steps over the channels of the others. The sums are the same to the last
bit as those of separate calls. Whether it pays is not decided here (`merging.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

from ....typing import DataType
from ..lower.post_ops import find_post_ops
from ..match.groups import AnchorGroup
from .conv_packed import emit_joint, find_weights
from .conv_problem import ConvSite
from .convolution import emit_plain
from .weights import PackedWeights, bias_of, find_folded, fold, folded_sources

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ...._kernels.conv.problem import ConvFormat
    from ....graph.op import Op
    from ..layout.packed import ConvWeights
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import Group


__all__ = ["FusionMember", "HorizontalFusion", "emit_horizontal_fusion", "find_horizontal_fusions"]


@dataclass(frozen=True)
class _Part:
    """What a convolution brings into packed weights that several share: plain weights, its own bias, what is folded."""

    site: ConvSite
    source: Value
    weights: ConvWeights
    bias: Value | None
    folded: tuple[Op, ...]

    def sources(self) -> list[Value]:
        """The constants that are packed, the bias where it is folded."""
        return [self.source, *folded_sources(self.site, self.folded)]


@dataclass(frozen=True)
class FusionMember:
    """A group that may share its call.

    The bias is a constant that is added first, None too where what `part` folds brings it; a clamp is what the kernel
    does last.
    """

    group: AnchorGroup
    part: _Part
    bias: Value | None
    clamp: tuple[float, float] | None

    @property
    def key(self) -> Hashable:
        """What must be equal for one call to compute both."""
        op, weights = self.part.site.op, self.part.weights
        attrs = tuple(sorted((name, repr(value)) for name, value in op.attrs.items()))
        has_bias = self.bias is not None or bool(self.part.folded)
        geometry = weights.with_out_channels(0), self.part.source.dtype, attrs
        return op.inputs[0].id, geometry, has_bias, self.clamp


class HorizontalFusion(tuple[FusionMember, ...]):
    """Groups, two at least, that one call can compute, in an order in which they can be computed."""

    __slots__ = ()

    @property
    def op_ids(self) -> tuple[int, ...]:
        """Ids of the convolutions."""
        return tuple(member.part.site.op.id for member in self)


def find_horizontal_fusions(lowering: Lowering, groups: Sequence[Group]) -> list[HorizontalFusion]:
    """All groups that could share a call with others; groups are in an order in which they can be computed.

    Nothing was emitted yet.
    """
    found: dict[Hashable, list[FusionMember]] = {}
    convolutions = [g for g in groups if isinstance(g, AnchorGroup) and g.anchor.kind == "Convolution"]
    readers = Counter(group.anchor.inputs[0].id for group in convolutions)
    for group in convolutions:
        is_alone = readers[group.anchor.inputs[0].id] == 1
        member = None if is_alone else _find_member(lowering, group)
        if member is not None:
            found.setdefault(member.key, []).append(member)
    return [HorizontalFusion(alike) for alike in found.values() if len(alike) > 1]


def _find_member(lowering: Lowering, group: AnchorGroup) -> FusionMember | None:
    """The group as a member, if all that comes behind its convolution is a constant bias and a clamp."""
    site = ConvSite(lowering, group)
    part = _find_part(site)
    if part is None or site.op.attrs["groups"] > 1 or part.weights.is_depthwise:
        return None
    folded = len(part.folded)
    bias = None if folded else part.bias
    place = lowering.temporary(site.result, lowering.dtypes[group.result], site.order)
    fused = find_post_ops(lowering, group.ops[folded:], group.reached(folded), place, bias, site.axes[1])
    if fused is None or fused.residual is not None or (folded and fused.bias is not None):
        return None
    is_known = fused.bias is None or (lowering.is_constant(fused.bias) and fused.bias.dtype is DataType.F32)
    if not is_known or (fused.bias is not None and fused.bias.shape != (part.weights.out_channels,)):
        return None
    return FusionMember(group, part, fused.bias, fused.clamp)


def _find_part(site: ConvSite) -> _Part | None:
    """What a group's convolution brings into joint weights; None where it is not packed, or not known yet."""
    lowering, op = site.lowering, site.op
    if not all(lowering.has_value(tensor.id) for tensor in op.inputs[1:]):
        return None
    weights = find_weights(site)
    if weights is None:
        return None
    return _Part(site, lowering.value(op.inputs[1].id), weights, site.bias, find_folded(site))


def emit_horizontal_fusion(lowering: Lowering, fusion: HorizontalFusion) -> None:
    """One call for all where their packed weights are kept, and each by itself where it is not."""
    site = fusion[0].part.site
    shape, axis = list(site.result), site.axes[1]
    counts = [member.part.weights.out_channels for member in fusion]
    shape[axis] = sum(counts)
    joint = lowering.temporary(shape, order=site.order)
    places = [joint.cut(axis, sum(counts[:k]), count) for k, count in enumerate(counts)]
    weights = _join_weights(lowering, [s.part for s in fusion], [s.bias for s in fusion])
    with lowering.when_kept(weights.panels, False):
        for member, place in zip(fusion, places, strict=True):
            emit_plain(member.part.site, place)
    with lowering.when_kept(weights.panels, True):
        emit_joint(site, weights, fusion[0].clamp, joint, f"{len(fusion)} convolutions")
    for member, place in zip(fusion, places, strict=True):
        lowering.finish(member.group.result, place)


def _join_weights(
    lowering: Lowering, parts: Sequence[_Part], biases: Sequence[Value | None]
) -> PackedWeights[ConvFormat]:
    """The weights of several convolutions, packed side by side by output channels, and their biases.

    The parts are alike in all but the number of output channels. A bias is a constant, None where there is none or it
    is folded in.
    """
    channels = [part.weights.out_channels for part in parts]
    total = sum(channels)
    weights = parts[0].weights.with_out_channels(total)
    starts = [sum(channels[:k]) for k in range(len(parts))]
    offset = weights.format.nbytes
    has_bias = any(part.folded for part in parts) or any(bias is not None for bias in biases)
    sources = [source for part in parts for source in part.sources()]
    sources += [bias for bias in biases if bias is not None]

    def fill(panels: Value) -> None:
        dims = list(parts[0].source.shape)
        dims[weights.axes.outer] = total
        joint = lowering.temporary(dims)
        for part, bias, start, count in zip(parts, biases, starts, channels, strict=True):
            source, place = lowering.typed(part.source), bias_of(panels, offset, start, count)
            if part.folded:
                source = fold(lowering, part.folded, source, part.bias, weights.axes.outer, place) or source
            lowering.move(source, joint.cut(weights.axes.outer, start, count))
            if bias is not None:
                lowering.move(bias, place)
        lowering.pack(weights, joint, panels)

    panels = lowering.packed_constant(sources, offset + (4 * total if has_bias else 0), fill)
    return PackedWeights(panels, weights.format, bias_of(panels, offset, 0, total) if has_bias else None)
