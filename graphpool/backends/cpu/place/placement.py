"""Which bytes a step's values take: temporaries in the arena, and what may lie in one place.

An elementwise step may write over an operand that it reads in the same order and that nobody reads afterwards: inside
the arena that is done here, for external tensors it is reported as in-place ports, which the caller may use.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

from ...._sizes import hint_of, key_of
from ....fork import cached_property
from ....memory import BufferInfo
from ....memory.planner import Lifetimes, plan_conflicts
from ....memory.user_planner import plan_with
from ....runtime._program import ARENA, FIRST_EXTERNAL
from ....schedule.ordering import conflicts, happens_before
from ....typing import PropertyType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....memory import Planner
    from ....schedule import Schedule
    from ..lower.steps import Step
    from ..lower.values import Buffer

__all__ = ["ALIGNMENT", "Temporaries", "find_inplace_ports", "find_temporaries", "uses_of"]

ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Temporaries:
    """The temporaries of steps; those that share their bytes in place count as one, which is scratch of a step too.

    Attributes
    ----------
    numbers : dict of Buffer to int
        Which each buffer is.
    sizes : list of int or Size
        Of each. Unit: bytes.
    users : list of list of int
        The steps that use each, ascending.
    schedule : Schedule or None
        How the steps run.
    planner : Planner or None
        The user's, for steps that run one after another.
    """

    numbers: dict[Buffer, int]
    sizes: list[int]
    users: list[list[int]]
    schedule: Schedule | None
    planner: Planner | None

    def plan(self, sizes: Sequence[int] | None = None) -> tuple[Sequence[int], int]:
        """Offset of each in an arena, and the arena's size, for these sizes or those that there are now. Unit: bytes.

        Buffers live from their first use to their last. On several streams two of them share bytes only if every use of
        one happens before every use of the other.
        """
        found = list(map(hint_of, self.sizes)) if sizes is None else sizes
        if not found:
            return (), 0
        if self.schedule is None:
            return self._plan_in_order(found)
        return _plan_apart(found, self.users, self.schedule)

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

    def offsets(self, places: Sequence[int]) -> dict[Buffer, int]:
        """The offset of each buffer, where each temporary has this place. Unit: bytes."""
        return {buffer: places[number] for buffer, number in self.numbers.items()}


def find_temporaries(
    steps: Sequence[Step], schedule: Schedule | None = None, planner: Planner | None = None
) -> Temporaries:
    """The temporaries of steps in the order in which they were lowered."""
    uses = uses_of(steps)
    homes = _share(steps, uses, _precedes(schedule))
    used: dict[Buffer, list[int]] = {}
    for buffer, steps_of in uses.items():
        used.setdefault(homes[buffer], []).extend(steps_of)
    number_of = {home: number for number, home in enumerate(used)}
    numbers = {buffer: number_of[home] for buffer, home in homes.items()}
    return Temporaries(numbers, [home.nbytes for home in used], list(used.values()), schedule, planner)


def _plan_apart(
    sizes: Sequence[int], numbers_of: Sequence[Sequence[int]], schedule: Schedule
) -> tuple[Sequence[int], int]:
    """Offsets when steps run as a schedule says."""
    uses = [numbers if size else () for size, numbers in zip(sizes, numbers_of, strict=True)]
    return plan_conflicts(sizes, conflicts(schedule, uses), ALIGNMENT)


def _precedes(schedule: Schedule | None) -> Callable[[int, int], bool]:
    """Whether one step ends before another one starts, whatever the timing."""
    return int.__lt__ if schedule is None else happens_before(schedule)


def uses_of(steps: Sequence[Step]) -> dict[Buffer, list[int]]:
    """Numbers of the steps that touch each temporary, scratch included, ascending, one for each argument."""
    uses: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        for value in step.args:
            buffer = value.buffer
            if buffer.base == ARENA:
                uses.setdefault(buffer if buffer.within is None else buffer.whole, []).append(number)
        if step.scratch is not None:
            uses[step.scratch] = [number]
    return uses


def _share(
    steps: Sequence[Step], uses: dict[Buffer, list[int]], precedes: Callable[[int, int], bool]
) -> dict[Buffer, Buffer]:
    """Temporary -> the temporary whose bytes it takes over, or itself."""
    homes: dict[Buffer, Buffer] = {}
    for number, step in enumerate(steps):
        place = step.args[0].buffer if step.is_elementwise else None
        if place is not None and place.base == ARENA and place.within is None and uses[place][0] == number:
            for value in step.args[1:]:
                source = value.buffer.whole
                dies_here = source.base == ARENA and _is_last(uses[source], number, precedes)
                is_as_large = key_of(source.nbytes) == key_of(place.nbytes)  # for all sizes
                if dies_here and source is not place and is_as_large and _is_aligned(step, source):
                    homes[place] = homes.get(source, source)
                    break
    for buffer in uses:
        homes.setdefault(buffer, buffer)
    return homes


def _is_last(numbers: Sequence[int], last: int, precedes: Callable[[int, int], bool]) -> bool:
    """Whether all uses but `last` end before it starts."""
    return all(number == last or precedes(number, last) for number in numbers)


def _is_aligned(step: Step, source: Buffer) -> bool:
    """Whether the elementwise step reads each element of `source` just where it writes one of its result."""
    place = step.args[0]
    return all(
        (value.dtype, value.shape, value.strides, value.offset)
        == (place.dtype, place.shape, place.strides, place.offset)
        for value in step.args[1:]
        if value.buffer.whole is source
    )


def _writes_all(step: Step, base: int) -> bool:
    """Whether the elementwise step writes the whole of what the base pointer points to."""
    place = step.args[0].buffer
    return place.base == base and place.within is None


def find_inplace_ports(
    steps: Sequence[Step],
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    schedule: Schedule | None = None,
) -> list[tuple[int, int]]:
    """Pairs of ports that may share a buffer: one elementwise step reads the input, last of all, and writes the output.

    Every port is in one pair at most. Cost: linear in the steps' arguments and in the ports.
    """
    precedes = _precedes(schedule)
    uses: dict[int, list[int]] = {}
    first_write: dict[int, int] = {}
    buffers: dict[int, Buffer] = {}
    for number, step in enumerate(steps):
        for value in step.args:
            uses.setdefault(value.buffer.base, []).append(number)
            buffers[value.buffer.base] = value.buffer
            if value.buffer.base >= FIRST_EXTERNAL + len(inputs):
                first_write.setdefault(value.buffer.base, number)
    pairs: dict[int, int] = {}
    for j, output in enumerate(outputs, FIRST_EXTERNAL + len(inputs)):
        writer = first_write.get(j)
        if writer is None or not steps[writer].is_elementwise or not _writes_all(steps[writer], j):
            continue
        candidates = [i for i in {v.buffer.base for v in steps[writer].args} if FIRST_EXTERNAL <= i < j]
        for i in sorted(candidates):
            source = inputs[i - FIRST_EXTERNAL] if i - FIRST_EXTERNAL < len(inputs) else None
            if source is None or source.id in pairs or source.property is PropertyType.CONSTANT:
                continue
            if _is_last(uses[i], writer, precedes) and _is_aligned(steps[writer], buffers[i]):
                pairs[source.id] = output.id
                break
    return list(pairs.items())
