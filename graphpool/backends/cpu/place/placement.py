"""Which bytes a step's values take: temporaries in the arena, and what may lie in one place.

A step may write over an operand that it has read by then, as elementwise ones do, and that nobody reads afterwards:
inside the arena that is done here, for external tensors it is reported as in-place ports, which the caller may use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._sizes import is_variable, key_of
from ....runtime._program import ARENA, FIRST_EXTERNAL
from ....runtime.temporaries import ALIGNMENT, Temporaries
from ....schedule.ordering import happens_before
from ....typing import PropertyType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....memory import Planner
    from ....schedule import Schedule
    from ..lower.steps import RowLoop, Step
    from ..lower.values import Buffer, Value

__all__ = ["ALIGNMENT", "find_inplace_ports", "find_temporaries", "uses_of"]


def find_temporaries(
    steps: Sequence[Step],
    schedule: Schedule | None = None,
    planner: Planner | None = None,
    loops: Sequence[RowLoop] = (),
) -> Temporaries:
    """The temporaries of steps in the order in which they were lowered."""
    uses = uses_of(steps)
    for loop in loops:
        _extend(uses, steps, loop)
    homes = _share(steps, uses, _precedes(schedule))
    used: dict[Buffer, list[int]] = {}
    for buffer, steps_of in uses.items():
        used.setdefault(homes[buffer], []).extend(steps_of)
    number_of = {home: number for number, home in enumerate(used)}
    numbers = {buffer: number_of[home] for buffer, home in homes.items()}
    return Temporaries(numbers, [home.nbytes for home in used], list(used.values()), schedule, planner)


def _extend(uses: dict[Buffer, list[int]], steps: Sequence[Step], loop: RowLoop) -> None:
    """Let what a loop shares with other steps, or whose rows its trips take in turns, live through all of its trips."""
    args = [value.buffer for step in steps[loop.begin : loop.end] for value in step.args]
    moving = {buffer.whole for buffer in args if loop.moves(buffer)}
    for buffer, numbers in uses.items():
        is_outside = numbers[0] < loop.begin or numbers[-1] >= loop.end
        if (is_outside and any(loop.begin <= n < loop.end for n in numbers)) or buffer in moving:
            uses[buffer] = sorted([*numbers, loop.begin, loop.end - 1])


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
        place = step.args[step.in_place[0]].buffer if step.in_place else None
        if place is not None and place.base == ARENA and place.within is None and uses[place][0] == number:
            for argument in step.in_place[1:]:
                source = step.args[argument].buffer.whole
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
    """Whether the step reads each element of `source` just where it writes one of its result."""
    place = step.args[step.in_place[0]]
    geometry = _geometry_of(place)
    return all(
        _geometry_of(value) == geometry
        for number, value in enumerate(step.args)
        if number != step.in_place[0] and value.buffer.whole is source.whole
    )


def _geometry_of(value: Value) -> tuple[object, ...]:
    """How elements lie, axes of one element left out, whose strides mean nothing."""
    axes = [pair for pair in zip(value.shape, value.strides, strict=True) if is_variable(pair[0]) or pair[0] != 1]
    return value.dtype, value.offset, axes


def _writes_all(step: Step, base: int) -> bool:
    """Whether the step writes, in place, the whole of what the base pointer points to."""
    place = step.args[step.in_place[0]].buffer if step.in_place else None
    return place is not None and place.base == base and place.within is None


def find_inplace_ports(
    steps: Sequence[Step],
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    schedule: Schedule | None = None,
) -> list[tuple[int, int]]:
    """Pairs of ports that may share a buffer: one step in place reads the input, last of all, and writes the output.

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
        if writer is None or not _writes_all(steps[writer], j):
            continue
        read = {steps[writer].args[argument].buffer.base for argument in steps[writer].in_place[1:]}
        candidates = [i for i in read if FIRST_EXTERNAL <= i < j]
        for i in sorted(candidates):
            source = inputs[i - FIRST_EXTERNAL] if i - FIRST_EXTERNAL < len(inputs) else None
            if source is None or source.id in pairs or source.property is PropertyType.CONSTANT:
                continue
            if _is_last(uses[i], writer, precedes) and _is_aligned(steps[writer], buffers[i]):
                pairs[source.id] = output.id
                break
    return list(pairs.items())
