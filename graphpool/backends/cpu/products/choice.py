"""Which implementation computes an anchor: the first of a table, in order of preference, that can."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from graphpool._dataclasses import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup

    S = TypeVar("S", bound="Site")

__all__ = ["Choice", "Site", "is_small", "lower_first"]

_SMALL_NBYTES = 2**16
"""Packed constants up to this size are not worth a second lowering of what reads them.

Those of floats take room in the arena beside other temporaries, which large ones would make grow by too much.
"""


@dataclass(frozen=True)
class Site:
    """An anchor with the ops behind it, while it is lowered."""

    lowering: Lowering
    group: AnchorGroup

    @property
    def op(self) -> Op:
        """The anchor."""
        return self.group.anchor

    @property
    def bias(self) -> Value | None:
        """The anchor's own."""
        return self.lowering.value(self.op.inputs[2].id) if len(self.op.inputs) > 2 else None

    @property
    def order(self) -> tuple[int, ...]:
        """Axes of the result in the order in which they lie."""
        return self.lowering.order_of(self.group.result)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return self.lowering.shapes[self.group.result]

    @property
    def fpmath(self) -> str:
        """The anchor's float mode: its own, else the graph's."""
        found: str = self.op.attrs.get("fpmath", self.lowering.fpmath)
        return found

    def target(self) -> Value:
        """Where kernels that can write any strides may put the result."""
        return self.lowering.target(self.group.result, order=self.order, any_strides=True)


@dataclass(frozen=True)
class Choice:
    """An implementation that can compute an anchor.

    `emit` emits the steps and returns where the result is: at the place that it is given, or one of its own for None.
    `place` is where it writes, None: where the implementation does that stands in for it. It reads the constant
    `packed`; a run for which that is not kept fills a temporary with it if `is_filled`, else the next implementation of
    the table stands in.
    """

    emit: Callable[[Value | None], Value]
    place: Value | None = None
    packed: Value | None = None
    is_filled: bool = False


def is_small(packed: Value) -> bool:
    """Whether a run for which a packed constant is not kept may fill a temporary with it."""
    return packed.buffer.nbytes <= _SMALL_NBYTES


def lower_first(site: S, table: Sequence[Callable[[S], Choice | None]]) -> None:
    """Lower an anchor by the first implementation of a table that can compute it; the last one always can."""
    site.lowering.finish(site.group.result, _emit_first(site, table, None))


def _emit_first(site: S, table: Sequence[Callable[[S], Choice | None]], place: Value | None) -> Value:
    number, choice = next((k, found) for k, find in enumerate(table) if (found := find(site)) is not None)
    place, packed, lowering = choice.place or place, choice.packed, site.lowering
    if packed is None:
        return choice.emit(place)
    if choice.is_filled:
        return lowering.read_packed(packed, lambda: choice.emit(place))
    is_decided = place is not None
    if is_decided:
        with lowering.when_kept(packed, True):
            choice.emit(place)
    with lowering.when_kept(packed, False):
        place = _emit_first(site, table[number + 1 :], place)
    if not is_decided:
        with lowering.when_kept(packed, True):
            choice.emit(place)
    return place
