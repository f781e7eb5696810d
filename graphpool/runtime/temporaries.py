"""The temporaries of a program's steps, and their places in an arena for one set of sizes after another."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool._sizes import hint_of
from graphpool.fork import cached_property
from graphpool.memory import BufferInfo
from graphpool.memory.planner import Lifetimes, plan_conflicts
from graphpool.memory.user_planner import plan_with
from graphpool.schedule.ordering import conflicts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.memory import Planner
    from graphpool.schedule import Schedule

__all__ = ["ALIGNMENT", "Temporaries"]

ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Temporaries:
    """The temporaries of steps; those that share their bytes in place count as one, which is scratch of a step too.

    Attributes
    ----------
    numbers : mapping
        Which each of a backend's buffers is; empty once the steps are linked, where nobody asks any more.
    sizes : list of int or Size
        Of each. Unit: bytes.
    users : list of list of int
        The steps that use each, ascending.
    schedule : Schedule or None
        How the steps run.
    planner : Planner or None
        The user's, for steps that run one after another.
    """

    numbers: Mapping[Any, int]
    sizes: list[int]
    users: list[list[int]]
    schedule: Schedule | None
    planner: Planner | None

    def plan(self, sizes: Sequence[int] | None = None) -> tuple[Sequence[int], int]:
        """Offset of each in an arena, and the arena's size, for these sizes or those that there are now. Unit: bytes.

        Buffers live from their first use to their last. On several streams two of them share bytes only if every use of
        one happens before every use of the other.
        """
        return self._plan_now if sizes is None or sizes == self._now else self._planned(sizes)

    @cached_property
    def _now(self) -> tuple[int, ...]:
        return tuple(map(hint_of, self.sizes))

    @cached_property
    def _plan_now(self) -> tuple[Sequence[int], int]:
        return self._planned(self._now)

    def _planned(self, sizes: Sequence[int]) -> tuple[Sequence[int], int]:
        if not sizes:
            return (), 0
        if self.schedule is None:
            return self._plan_in_order(sizes)
        return _plan_apart(sizes, self.users, self.schedule)

    def _plan_in_order(self, sizes: Sequence[int]) -> tuple[Sequence[int], int]:
        """Offsets when steps run one after another."""
        if self.planner is not None:
            rows = enumerate(zip(self._lives, sizes, strict=True))
            placed = plan_with(self.planner, [BufferInfo(k, *life, size) for k, (life, size) in rows], ALIGNMENT)
            return [placed.offsets[k] for k in range(len(sizes))], placed.nbytes
        if max(first for first, _ in self._lives) < min(end for _, end in self._lives):
            # all live at one time, as when constants are packed: nothing can share
            starts = list(accumulate([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes], initial=0))[:-1]
            return starts, starts[-1] + sizes[-1]
        return self._lifetimes.plan(sizes)

    @cached_property
    def _lives(self) -> list[tuple[int, int]]:
        """First step of each, and the step behind its last."""
        return [(min(steps), max(steps) + 1) for steps in self.users]

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        return Lifetimes(self._lives, ALIGNMENT)

    def linked(self) -> Temporaries:
        """The same without a backend's buffers, for programs that are linked."""
        return Temporaries({}, self.sizes, self.users, self.schedule, self.planner)

    def offsets(self, places: Sequence[int]) -> dict[Any, int]:
        """The offset of each buffer, where each temporary has this place. Unit: bytes."""
        return {buffer: places[number] for buffer, number in self.numbers.items()}


def _plan_apart(
    sizes: Sequence[int], numbers_of: Sequence[Sequence[int]], schedule: Schedule
) -> tuple[Sequence[int], int]:
    """Offsets when steps run as a schedule says."""
    uses = [numbers if size else () for size, numbers in zip(sizes, numbers_of, strict=True)]
    return plan_conflicts(sizes, conflicts(schedule, uses), ALIGNMENT)
