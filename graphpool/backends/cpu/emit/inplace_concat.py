"""Concat without a copy: what it joins is written straight into the joined tensor.

Where groups of the partition compute the parts, the joined tensor gets its memory first and each part a home in it:
rows with gaps where channels lie last, whole slices along an outer axis. A joined tensor may be part of the next, and
one whose parts lie side by side in a larger one already is a view of that. A part keeps a place of its own where its
kernel, or one of those that read it, wants rows without gaps.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from graphpool._dataclasses import replace

from ..layout.channels import WINDOWS
from ..support import is_elementwise

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import Group

__all__ = ["emit_concat", "place_concat_inputs"]

Readers = dict[int, list["Op"]]

_VIEWS = frozenset({"StaticReshape", "StaticTranspose", "Reorder", "Slice", "Split", "Expand"})
"""Kinds that compute nothing: their results lie where their operands do."""

_WITH_GAPS = WINDOWS | {"Concat", "MatMul"}
"""Kinds whose kernels read, and write, rows with gaps, as elementwise ones do."""


def place_concat_inputs(lowering: Lowering, ops: Sequence[Op], groups: Sequence[Group]) -> None:
    """Decide which results of groups lie inside joined tensors: the last Concat first, as it may hold the others.

    Cost: linear in the ops.
    """
    joined = [group.ops[0] for group in groups if _is_concat(group)]
    if not joined:
        return
    makers = {group.result: group for group in groups}
    readers: Readers = {}
    for op in ops:
        for tensor in op.inputs:
            readers.setdefault(tensor.id, []).append(op)
    for op in reversed(joined):
        _settle(lowering, op, makers, readers)


def _settle(lowering: Lowering, op: Op, makers: Mapping[int, Group], readers: Readers) -> None:
    """Homes for the parts of one joined tensor, and for itself where it is a view of a larger one."""
    result = op.outputs[0].id
    order = lowering.order_of(result)
    if lowering.dtypes[result].bits < 8:
        return
    if lowering.place(result) is None and lowering.home(result) is None:
        view = _find_view(lowering, op)
        if view is not None and (view.lies_in(order) or _all_take_gaps(readers[result])):
            lowering.settle(result, view)
            return
    counts = Counter(tensor.id for tensor in op.inputs)
    parts = [t.id for t in op.inputs if counts[t.id] == 1 and _is_free(lowering, t.id, result, makers)]
    if not parts:
        return
    place = lowering.target(result, order=order, gaps=True)
    homes = [(part, home) for part, home in _parts(lowering, op, place) if part in parts]
    homes = [(part, home) for part, home in homes if home.lies_in(order) or _may_have_gaps(part, makers, readers)]
    if homes and place.row_strides(order) is not None:
        lowering.settle(result, place)
        for part, home in homes:
            lowering.settle(part, home)


def _is_free(lowering: Lowering, part: int, result: int, makers: Mapping[int, Group]) -> bool:
    """Whether a group computes the part as it lies in the joined tensor, and it has no other place."""
    group = makers.get(part)
    if group is None or lowering.place(part) is not None or lowering.home(part) is not None:
        return False
    is_alike = lowering.order_of(part) == lowering.order_of(result) and lowering.dtypes[part] is lowering.dtypes[result]
    return is_alike and lowering.may_lie_within(part, result) and group.first.kind not in _VIEWS


def _may_have_gaps(part: int, makers: Mapping[int, Group], readers: Readers) -> bool:
    """Whether the kernel that writes the part, and all that read it, take rows with gaps."""
    group = makers[part]
    is_writer = group.first.kind in _WITH_GAPS or is_elementwise(group.first)
    return is_writer and _all_take_gaps(readers[part])


def _all_take_gaps(readers: Sequence[Op]) -> bool:
    return all(op.kind in _WITH_GAPS or is_elementwise(op) for op in readers)


def _find_view(lowering: Lowering, op: Op) -> Value | None:
    """The joined tensor as it lies in a larger one, if its parts have their homes there side by side."""
    homes = [home for tensor in op.inputs if (home := lowering.home(tensor.id)) is not None]
    if len(homes) < len(op.inputs):
        return None
    axis = op.attrs["axis"] % len(homes[0].shape)
    for a, b in pairwise(homes):
        follows = b.offset == a.offset + a.shape[axis] * a.strides[axis]
        if not follows or a.buffer.within is not b.buffer.within or (a.dtype, a.strides) != (b.dtype, b.strides):
            return None
    buffer = homes[0].buffer.within
    assert buffer is not None
    return homes[0]._replace(shape=lowering.shapes[op.outputs[0].id], buffer=buffer)


def emit_concat(lowering: Lowering, op: Op, place: Value) -> None:
    """Move to the joined tensor what was not written there."""
    for part, slot in _parts(lowering, op, place):
        value, home = lowering.value(part), lowering.home(part)
        if value.is_at(slot):
            continue
        if home is None or not home.is_at(slot):
            lowering.move(value, slot)
        else:
            lowering.move(value, home)
            lowering.finish(part, home)


def _parts(lowering: Lowering, op: Op, place: Value) -> Iterator[tuple[int, Value]]:
    """Each tensor that is joined and its slot in the joined one, a buffer of its own to those who order steps."""
    axis, start = op.attrs["axis"] % len(place.shape), 0
    for tensor in op.inputs:
        count = lowering.shapes[tensor.id][axis]
        slot = place.cut(axis, start, count)
        yield tensor.id, slot._replace(buffer=replace(place.buffer, within=place.buffer))
        start += count


def _is_concat(group: Group) -> bool:
    return group.first.kind == "Concat"
