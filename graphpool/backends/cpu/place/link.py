"""From lowered steps to programs: places of the temporaries, arguments as (base pointer, offset)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace
from graphpool._sizes import hint_of, is_variable
from graphpool.fork import cached_property

from ....graph.partition import flat_key
from ....runtime._program import ARENA, FIRST_EXTERNAL, LITERALS, Program, count_scratch, count_threads
from ....runtime._variable import VariableProgram
from ....runtime.constant_part import ConstantPart
from ....schedule.control import ListedCall, stream_lists
from ..lower.steps import Emitter, Step
from ..lower.values import Buffer
from .placement import ALIGNMENT, find_temporaries, uses_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...._kernels.core.call import KernelCall
    from ....memory import Planner
    from ....runtime.temporaries import Temporaries
    from ....schedule import Schedule
    from ..lower.lowering import Lowering
    from ..lower.steps import PackedConstant, Restore, RowLoop
    from ..lower.values import Value

    Linked = tuple[KernelCall, list[tuple[int, int]]]

__all__ = ["LinkedProgram", "link", "link_constants", "link_stage"]


@dataclass(frozen=True)
class LinkedProgram:
    """A program for the sizes that there are now, and where its steps and temporaries come from.

    `order` has the position of each step in the lowering; `steps` are in that order. `sequential` has the temporaries
    of the steps as they would be if each followed the one before.
    """

    program: Program
    order: tuple[int, ...]
    steps: Sequence[Step]
    temporaries: Temporaries
    sequential: Temporaries
    places: Sequence[int]
    loops: Sequence[RowLoop] = ()

    def buffers(self) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """The offset, the size and the steps of each buffer."""
        sizes = self.temporaries.sizes
        return tuple([(self.places[number], hint_of(sizes[number]), steps) for number, steps in self.uses()])

    def uses(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Of each buffer the temporary that it is, as large as itself, and the steps, ascending."""
        numbers = self.temporaries.numbers
        return tuple([(numbers[b], tuple(sorted(set(users)))) for b, users in self._uses.items()])

    def tensors(self, held: Mapping[Buffer, int]) -> tuple[int | None, ...]:
        """Of each buffer the id of the tensor that it holds."""
        return tuple(map(held.get, self._uses))

    @cached_property
    def _uses(self) -> dict[Buffer, list[int]]:
        return uses_of(self.steps)

    def variable(self) -> VariableProgram:
        """What makes the programs for other sizes."""
        number_of = self.temporaries.numbers
        entries = [
            (call.ntasks, call.scratch_nbytes, None if scratch is None else number_of[scratch], call.patches)
            for call, scratch in [(step.call, step.scratch) for step in self.steps]
        ]
        paces = [0] * sum([len(step.args) for step in self.steps])
        for loop in self.loops:
            first = sum([len(step.args) for step in self.steps[: loop.begin]])
            own = _paces(loop, self.steps)
            paces[first : first + len(own)] = own
        values = [value for step in self.steps for value in step.args]
        args = [
            (number_of[buffer.whole], offset, pace) if buffer.base == ARENA else (None, buffer.offset + offset, pace)
            for buffer, offset, pace in [
                (value.buffer, value.dtype.nbytes(value.offset), pace)
                for value, pace in zip(values, paces, strict=True)
            ]
        ]
        return VariableProgram(self.program, entries, args, [loop.trips for loop in self.loops])


def link(
    lowering: Lowering, nports: int, threads: int, schedule: Schedule | None = None, planner: Planner | None = None
) -> LinkedProgram:
    """The program of a lowering for up to `threads` threads; external are the ports, then the packed constants.

    The steps stand in the order in which a schedule issues them; with none, as they were lowered.
    """
    order = tuple(range(len(lowering.steps))) if schedule is None else schedule.order
    lists = () if schedule is None else _renumber(stream_lists(schedule), order)
    nthreads = count_threads([step.call for step in lowering.steps], threads, len(lists))
    lowered = _with_scratch(lowering.steps, nthreads)
    temporaries = find_temporaries(lowered, schedule, planner, lowering.loops)
    sequential = temporaries if schedule is None else _sequential(lowering, threads, planner)
    places, arena_nbytes = temporaries.plan()
    offsets = temporaries.offsets(places)
    steps = [lowered[k] for k in order]
    guards = [step.guard for step in steps]
    nexternals = nports + len(lowering.packed)
    placed, scratch = _place(steps, offsets), _place_scratch(steps, offsets)
    hinted = [loop.with_hints() for loop in lowering.loops]
    loops = [(loop.begin, loop.end, loop.trips, _paces(loop, steps)) for loop in hinted]
    program = Program(placed, arena_nbytes, nexternals, lowering.literals, threads, guards, scratch, lists, loops)
    return LinkedProgram(program, order, steps, temporaries, sequential, places, lowering.loops)


def _paces(loop: RowLoop, steps: Sequence[Step]) -> list[int]:
    """How far each argument of the steps of a loop moves on from trip to trip. Unit: bytes."""
    return [loop.pace(value.buffer) for step in steps[loop.begin : loop.end] for value in step.args]


def _sequential(lowering: Lowering, threads: int, planner: Planner | None) -> Temporaries:
    nthreads = count_threads([step.call for step in lowering.steps], threads, 0)
    return find_temporaries(_with_scratch(lowering.steps, nthreads), None, planner)


def link_stage(lowering: Lowering, nexternals: int, stage: Sequence[Sequence[int]], threads: int) -> Program:
    """A program of some steps of a lowering: those of each row in order, the rows side by side.

    Their temporaries lie apart, since nobody knows what else would use them.
    """
    steps = [lowering.steps[number] for row in stage for number in row]
    numbers = iter(range(len(steps)))
    rows = [[ListedCall((next(numbers),)) for _ in row] for row in stage] if len(stage) > 1 else []
    lowered = _with_scratch(steps, count_threads([step.call for step in steps], threads, len(rows)))
    offsets: dict[Buffer, int] = {}
    end = 0
    for buffer in uses_of(lowered):
        offsets[buffer], end = end, end + -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
    linked, scratch = _place(lowered, offsets), _place_scratch(lowered, offsets)
    guards = [step.guard for step in lowered]
    return Program(linked, end, nexternals, lowering.literals, threads, guards, scratch, rows)


def _renumber(lists: Sequence[Sequence[ListedCall]], order: Sequence[int]) -> list[list[ListedCall]]:
    """The lists with steps named by their position in issue order."""
    position = {step: k for k, step in enumerate(order)}
    return [[replace(call, nodes=tuple(position[v] for v in call.nodes)) for call in calls] for calls in lists]


def _with_scratch(steps: Sequence[Step], nthreads: int) -> list[Step]:
    """The steps with a buffer for what their kernels need while they run on so many threads.

    What varies may be nothing for some sizes: that is no reason to compile for them apart.
    """
    return [
        step._replace(scratch=Buffer(ARENA, count_scratch(step.call.scratch_nbytes, nthreads)))
        if is_variable(step.call.scratch_nbytes) or step.call.scratch_nbytes
        else step
        for step in steps
    ]


def link_constants(lowering: Lowering, threads: int) -> list[ConstantPart]:
    """What packs each constant of a lowering, on up to `threads` threads."""
    literals, read = bytes(lowering.literals), _read_beside_packed(lowering)
    return [_link_packed(packed, literals, threads, read.isdisjoint(packed.sources)) for packed in lowering.packed]


def _read_beside_packed(lowering: Lowering) -> set[int]:
    """Base pointers that some step reads even when all that is packed of them is kept."""
    guards: dict[int, set[tuple[int, bool] | None]] = {}
    for packed in lowering.packed:
        for base in packed.sources:
            guards.setdefault(base, set()).add((packed.result.buffer.base, False))
    args = ((step.guard, value.buffer.base) for step in lowering.steps for value in step.args)
    return {base for guard, base in args if guard not in guards.get(base, ())}


def _link_packed(packed: PackedConstant, literals: bytes, threads: int, is_all_that_is_read: bool) -> ConstantPart:
    base = packed.result.buffer.base
    program, key = _link_steps(packed.steps, literals, threads, (*packed.sources, base))
    restore = None
    if packed.restore is not None and is_all_that_is_read and len(packed.sources) == 1:
        restore = partial(_link_restore, packed.restore, packed.result, packed.sources, threads)
    sources = tuple(base - FIRST_EXTERNAL for base in packed.sources)
    return ConstantPart(sources, packed.result.buffer.nbytes, program, key, restore, is_all_that_is_read)


def _link_restore(restore: Restore, result: Value, sources: tuple[int, ...], threads: int) -> Program:
    """The program that writes the source of a packed constant."""
    emitter = Emitter(result.buffer.base)
    restore(emitter, result)
    return _link_steps(emitter.steps, bytes(emitter.literals), threads, (result.buffer.base, *sources))[0]


def _link_steps(
    steps: Sequence[Step], literals: bytes, threads: int, externals: Sequence[int]
) -> tuple[Program, bytes]:
    """The program of steps on these external bases, in this order, and all that its effect depends on."""
    bases = {base: number for number, base in enumerate(externals, FIRST_EXTERNAL)}
    steps = [Step(step.call.pinned(), *step[1:]) for step in steps]
    lowered = _with_scratch(steps, count_threads([step.call for step in steps], threads))
    temporaries = find_temporaries(lowered)
    places, arena_nbytes = temporaries.plan()
    offsets = temporaries.offsets(places)
    placed, scratch = _place(lowered, offsets, bases), _place_scratch(lowered, offsets)
    used = literals if LITERALS in [base for _, args in placed for base, _ in args] else b""
    program = Program(placed, arena_nbytes, len(bases), used, threads, scratch=scratch)
    return program, flat_key((used, list(map(_content, placed))))


def _content(step: Linked) -> tuple[Any, ...]:
    """All that the effect of a step depends on."""
    call, args = step
    return call.kernel.name, call.kernel.isa, call.params.tobytes(), args


def _place(
    steps: Sequence[Step], offsets: Mapping[Buffer, int], bases: Mapping[int, int] | None = None
) -> list[Linked]:
    """The steps with their arguments in place, external bases renumbered, for the sizes that there are now."""

    def place(value: Value) -> tuple[int, int]:
        base, buffer, offset = value.buffer.base, value.buffer, value.dtype.nbytes(hint_of(value.offset))
        if base == ARENA:
            return base, offset + offsets[buffer if buffer.within is None else buffer.whole]
        return base if bases is None or base < FIRST_EXTERNAL else bases[base], offset + buffer.offset

    return [(step.call.with_hints(), list(map(place, step.args))) for step in steps]


def _place_scratch(steps: Sequence[Step], offsets: Mapping[Buffer, int]) -> list[int]:
    """Offset of the scratch of each step; 0 where it needs none."""
    return [0 if step.scratch is None else offsets[step.scratch] for step in steps]
