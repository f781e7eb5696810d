"""Host functions for sequences of which only a run tells the length, or the places: lists of arrays.

Entries are as those of `host_ops.SEARCHES`. Source: the specification of the operators.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.runtime.host_room import HostNeed, ValueBound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.runtime.model_form import HostFunction

    from .node import Node

__all__ = ["SEQUENCES"]


class _OnLists:
    """Gives what `run` makes of a node's inputs, None for those that are left out; `tell` does so for their bounds.

    Items of lists have memory of their own, so that lists may share them.
    """

    gives_fresh = True

    def __init__(
        self,
        run: Callable[[Node, list[Any]], Any],
        tell: Callable[[Node, list[Any]], HostNeed | None],
        node: Node,
        places: Sequence[int | None],
        known: Mapping[str, Any],
    ) -> None:
        self._run, self._tell, self._node, self._places = run, tell, node, places
        self._known = [known.get(name) for name in node.input]

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The result."""
        return [self._run(self._node, self._given(inputs, self._known))]

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Any) -> HostNeed | None:
        """As `HostFunction.bound`."""
        if None in inputs:
            return None
        return self._tell(self._node, self._given(inputs, list(map(_bound_of, self._known))))

    def _given(self, inputs: Sequence[Any], known: Sequence[Any]) -> list[Any]:
        found = [value if place is None else inputs[place] for place, value in zip(self._places, known, strict=True)]
        return found + [None] * (3 - len(found))


def _bound_of(content: Any) -> ValueBound | None:
    if isinstance(content, list):
        return ValueBound.of_items(ValueBound.of_array(item.shape, item.itemsize) for item in content)
    return None if content is None else ValueBound.of_array(np.shape(content), np.asarray(content).itemsize)


def _none(node: Node, given: list[Any]) -> Any:
    return []


def _none_bound(node: Node, given: list[Any]) -> HostNeed:
    return HostNeed([ValueBound.of_items(())], 0, kept_nbytes=0)


def _place(given: Any, length: int, most: int) -> int:
    """What a position says, at most `most`, which it is by default; negative ones count from the end."""
    place = most if given is None else int(np.asarray(given).reshape(()))
    if not -length <= place <= most:
        raise IndexError(f"position {place} in a sequence of {length}")
    return place + length if place < 0 else place


def _insert(node: Node, given: list[Any]) -> Any:
    items, item, place = given
    at = _place(place, len(items), len(items))
    return [*items[:at], np.array(item), *items[at:]]


def _insert_bound(node: Node, given: list[Any]) -> HostNeed:
    """At each place the item, or what is there now, or at the place before."""
    items, item, _ = given
    known, most = items.items, None
    if known is not None:
        shifted = zip([item, *known], [*known, item], strict=True)
        most = tuple([_larger(_larger(one, other), item) for one, other in shifted])
    return HostNeed([ValueBound(None, items.nbytes + item.nbytes, most)], item.nbytes, kept_nbytes=item.nbytes)


def _larger(one: ValueBound, other: ValueBound) -> ValueBound:
    """What either is at most."""
    nbytes = max(one.nbytes, other.nbytes)
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return ValueBound(None, nbytes)
    return ValueBound(tuple(map(max, one.shape, other.shape)), nbytes)


def _erase(node: Node, given: list[Any]) -> Any:
    items, place, _ = given
    at = _place(place, len(items), len(items) - 1)
    return [*items[:at], *items[at + 1 :]]


def _erase_bound(node: Node, given: list[Any]) -> HostNeed:
    items = given[0].items
    if items is None:
        return HostNeed([given[0]], 0, kept_nbytes=0)
    left = [_larger(one, other) for one, other in pairwise(items)]
    return HostNeed([ValueBound(None, given[0].nbytes, tuple(left))], 0, kept_nbytes=0)


def _at(node: Node, given: list[Any]) -> Any:
    items, place, _ = given
    return items[_place(place, len(items), len(items) - 1)]


def _at_bound(node: Node, given: list[Any]) -> HostNeed:
    items = given[0].items
    if not items:
        return HostNeed([ValueBound(None, given[0].nbytes)], 0, kept_nbytes=0)
    found = items[0]
    for item in items[1:]:
        found = _larger(found, item)
    return HostNeed([found], 0, kept_nbytes=0)


def _length(node: Node, given: list[Any]) -> Any:
    return np.array(len(given[0]))


def _length_bound(node: Node, given: list[Any]) -> HostNeed:
    return HostNeed([ValueBound.of_array((), 8)], 8)


def _join(node: Node, given: list[Any]) -> Any:
    join: Any = np.stack if node.attrs.get("new_axis", 0) else np.concatenate
    return join(given[0], axis=node.attrs["axis"])


def _join_bound(node: Node, given: list[Any]) -> HostNeed:
    """The sum along the axis, the largest along others."""
    items, axis, nbytes = given[0].items, node.attrs["axis"], given[0].nbytes
    shapes = [item.shape for item in items or ()]
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) != 1 or None in ranks:
        return HostNeed([ValueBound(None, nbytes)], nbytes)
    most = list(map(max, *shapes)) if len(shapes) > 1 else list(shapes[0])
    if node.attrs.get("new_axis", 0):
        most.insert(axis % (len(most) + 1), len(shapes))
    else:
        most[axis] = sum(shape[axis] for shape in shapes)
    return HostNeed([ValueBound(tuple(most), nbytes)], nbytes)


def _split(node: Node, given: list[Any]) -> Any:
    """As `sequences.follow_sequences` has it: parts of given sizes, or of one size, or single elements."""
    x, split, _ = given
    axis = node.attrs.get("axis", 0)
    length = x.shape[axis]
    sizes = np.asarray(1 if split is None else split)
    if sizes.shape:
        if sizes.min(initial=0) < 0 or sizes.sum() != length:
            raise ValueError(f"parts of {sizes.tolist()} of {length}")
        ends = np.cumsum(sizes)[:-1]
    elif sizes <= 0:
        raise ValueError(f"parts of {int(sizes)}")
    else:
        ends = np.arange(int(sizes), length, int(sizes))
    parts = np.split(x, ends, axis) if length or sizes.shape else []
    if not sizes.shape and sizes == 1 and not node.attrs.get("keepdims", 1):
        parts = [np.squeeze(part, axis) for part in parts]
    return list(map(np.array, parts))


def _split_bound(node: Node, given: list[Any]) -> HostNeed | None:
    x = given[0]
    axis = node.attrs.get("axis", 0)
    return None if x.shape is None else HostNeed([ValueBound(None, x.nbytes)], x.nbytes + 16 * x.shape[axis])


def _entry(run: Any, tell: Any) -> Any:
    def make(node: Node, places: Sequence[int | None], known: Mapping[str, Any], opsets: Any) -> HostFunction:
        return _OnLists(run, tell, node, places, known)

    return make


SEQUENCES: dict[str, Any] = {
    "SequenceEmpty": _entry(_none, _none_bound),
    "SequenceInsert": _entry(_insert, _insert_bound), "SequenceErase": _entry(_erase, _erase_bound),
    "SequenceAt": _entry(_at, _at_bound), "SequenceLength": _entry(_length, _length_bound),
    "ConcatFromSequence": _entry(_join, _join_bound), "SplitToSequence": _entry(_split, _split_bound),
}  # fmt: skip
"""Ops on lists."""
