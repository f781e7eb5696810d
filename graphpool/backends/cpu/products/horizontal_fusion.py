"""Horizontal fusion of convolutions: several that read one image with windows of the same geometry, in one call.

The weights are packed side by side, so that the image is read once for all of them, and the results are slices of
one image, channels last: whoever reads a slice steps over the channels of the others. The sums are the same to the last
bit as those of separate calls. Whether it pays is not decided here (`merging.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....typing import DataType
from ..layout.images import axes_of
from ..lower.post_ops import find_post_ops
from ..match.groups import AnchorGroup
from .conv_weights import emit_joint
from .convolution import emit_plain
from .joint_weights import find_part, join_weights

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import Group
    from .joint_weights import Part

__all__ = ["FusionMember", "HorizontalFusion", "emit_horizontal_fusion", "find_horizontal_fusions"]


@dataclass(frozen=True)
class FusionMember:
    """A group that may share its call.

    Attributes
    ----------
    group : Group
    part : Part
        Its weights.
    bias : Value or None
        A constant that is added first; None too where the BatchNorm of `part` brings it.
    clamp : (float, float) or None
        What the kernel does last.
    """

    group: AnchorGroup
    part: Part
    bias: Value | None
    clamp: tuple[float, float] | None

    @property
    def key(self) -> Hashable:
        """What must be equal for one call to compute both."""
        op, weights = self.part.op, self.part.weights
        attrs = tuple(sorted((name, repr(value)) for name, value in op.attrs.items()))
        has_bias = self.bias is not None or self.part.norm is not None
        geometry = weights.with_out_channels(0), self.part.source.dtype, attrs
        return op.inputs[0].id, geometry, has_bias, self.clamp


class HorizontalFusion(tuple[FusionMember, ...]):
    """Groups, two at least, that one call can compute, in an order in which they can be computed."""

    __slots__ = ()

    @property
    def op_ids(self) -> tuple[int, ...]:
        """Ids of the convolutions."""
        return tuple(member.part.op.id for member in self)


def find_horizontal_fusions(lowering: Lowering, groups: Sequence[Group]) -> list[HorizontalFusion]:
    """All groups that could share a call with others.

    Parameters
    ----------
    lowering : Lowering
        Before any step was emitted.
    groups : sequence of Group
        In an order in which they can be computed.
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
    part = find_part(lowering, group)
    if part is None or part.op.attrs["groups"] > 1 or part.weights.is_depthwise:
        return None
    folded = int(part.norm is not None)
    bias = None if folded else part.bias
    order = lowering.order_of(group.result)
    place = lowering.temporary(lowering.shapes[group.result], lowering.dtypes[group.result], order)
    axis = axes_of(part.op, len(order))[1]
    fused = find_post_ops(lowering, group.ops[folded:], group.reached(folded), place, bias, axis)
    if fused is None or fused.residual is not None or (folded and fused.bias is not None):
        return None
    is_known = fused.bias is None or (lowering.is_constant(fused.bias) and fused.bias.dtype is DataType.F32)
    if not is_known or (fused.bias is not None and fused.bias.shape != (part.weights.out_channels,)):
        return None
    return FusionMember(group, part, fused.bias, fused.clamp)


def emit_horizontal_fusion(lowering: Lowering, fusion: HorizontalFusion) -> None:
    """One call for all where their packed weights are kept, and each by itself where it is not."""
    first = fusion[0]
    shape = list(lowering.shapes[first.group.result])
    axis = axes_of(first.part.op, len(shape))[1]
    counts = [member.part.weights.out_channels for member in fusion]
    shape[axis] = sum(counts)
    joint = lowering.temporary(shape, order=lowering.order_of(first.group.result))
    places = [joint.cut(axis, sum(counts[:k]), count) for k, count in enumerate(counts)]
    operand = join_weights(lowering, [s.part for s in fusion], [s.bias for s in fusion])
    with lowering.when_kept(operand.packed.panels, False):
        for member, place in zip(fusion, places, strict=True):
            emit_plain(lowering, member.group, place)
    with lowering.when_kept(operand.packed.panels, True):
        emit_joint(lowering, first.part.op, operand, first.clamp, joint, f"{len(fusion)} convolutions")
    for member, place in zip(fusion, places, strict=True):
        lowering.finish(member.group.result, place)
