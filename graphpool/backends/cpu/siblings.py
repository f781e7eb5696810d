"""Sibling convolutions: several that read one image with windows of the same geometry, computed by one call.

The weights lie side by side in one form, so that the image is read once for all of them, and the results are slices of
one image, channels last: whoever reads a slice steps over the channels of the others. The sums are the same to the last
bit as those of separate calls. Whether it pays is not decided here (`merging.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...typing import DataType
from .emit_spatial import emit_plain
from .filters import emit_joint
from .images import axes_of
from .joint_filters import find_part, join_filters
from .tail import find_tail

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .groups import Group
    from .joint_filters import Part
    from .lowering import Lowering, Value

__all__ = ["Sibling", "Siblings", "emit_siblings", "find_siblings"]


@dataclass(frozen=True)
class Sibling:
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

    group: Group
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


class Siblings(tuple[Sibling, ...]):
    """Groups, two at least, that one call can compute, in an order in which they can be computed."""

    __slots__ = ()

    @property
    def op_ids(self) -> tuple[int, ...]:
        """Ids of the convolutions."""
        return tuple(sibling.part.op.id for sibling in self)


def find_siblings(lowering: Lowering, groups: Sequence[Group]) -> list[Siblings]:
    """All groups that could share a call with others.

    Parameters
    ----------
    lowering : Lowering
        Before any step was emitted.
    groups : sequence of Group
        In an order in which they can be computed.
    """
    found: dict[Hashable, list[Sibling]] = {}
    convolutions = [group for group in groups if group.anchor is not None and group.anchor.kind == "Convolution"]
    readers = Counter(group.anchor.inputs[0].id for group in convolutions if group.anchor is not None)
    for group in convolutions:
        is_alone = group.anchor is None or readers[group.anchor.inputs[0].id] == 1
        sibling = None if is_alone else _find_sibling(lowering, group)
        if sibling is not None:
            found.setdefault(sibling.key, []).append(sibling)
    return [Siblings(alike) for alike in found.values() if len(alike) > 1]


def _find_sibling(lowering: Lowering, group: Group) -> Sibling | None:
    """The group as a sibling, if all that comes behind its convolution is a constant bias and a clamp."""
    part = find_part(lowering, group)
    if part is None or part.op.attrs["groups"] > 1:
        return None
    folded = int(part.norm is not None)
    bias = None if folded else part.bias
    order, last = lowering.order_of(group.result), group.ops[folded - 1] if folded else part.op
    place = lowering.temporary(lowering.shapes[group.result], lowering.dtypes[group.result], order)
    tail = find_tail(lowering, group.ops[folded:], last.outputs[0].id, place, bias, axes_of(part.op, len(order))[1])
    if tail is None or tail.residual is not None or (folded and tail.bias is not None):
        return None
    is_known = tail.bias is None or (lowering.is_constant(tail.bias) and tail.bias.dtype is DataType.F32)
    if not is_known or (tail.bias is not None and tail.bias.shape != (part.weights.out_channels,)):
        return None
    return Sibling(group, part, tail.bias, tail.clamp)


def emit_siblings(lowering: Lowering, siblings: Siblings) -> None:
    """One call for all where the form of their weights is kept, and each by itself where it is not."""
    first = siblings[0]
    shape = list(lowering.shapes[first.group.result])
    axis = axes_of(first.part.op, len(shape))[1]
    counts = [sibling.part.weights.out_channels for sibling in siblings]
    shape[axis] = sum(counts)
    joint = lowering.temporary(shape, order=lowering.order_of(first.group.result))
    places = [joint.cut(axis, sum(counts[:k]), count) for k, count in enumerate(counts)]
    filters = join_filters(lowering, [s.part for s in siblings], [s.bias for s in siblings])
    with lowering.when_kept(filters.form.panels, False):
        for sibling, place in zip(siblings, places, strict=True):
            emit_plain(lowering, sibling.group, place)
    with lowering.when_kept(filters.form.panels, True):
        emit_joint(lowering, first.part.op, filters, first.clamp, joint, f"{len(siblings)} convolutions")
    for sibling, place in zip(siblings, places, strict=True):
        lowering.finish(sibling.group.result, place)
