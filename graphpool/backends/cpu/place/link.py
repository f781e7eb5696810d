"""From lowered steps to programs: places of the temporaries, arguments as (base pointer, offset)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphpool._sizes import hint_of

from ....runtime._program import ARENA, FIRST_EXTERNAL, LITERALS, Program, count_scratch, count_threads
from ....runtime._variable import VariableProgram
from ....runtime.constant_part import ConstantPart
from ....schedule.control import ListedCall, stream_lists
from ..lower.values import Buffer
from .placement import ALIGNMENT, plan_places, plan_temporaries, share_places, uses_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ...._kernels.core.call import KernelCall
    from ....schedule import Schedule
    from ..lower.lowering import Lowering
    from ..lower.steps import PackedConstant, Step
    from ..lower.values import Value

    Linked = tuple[KernelCall, list[tuple[int, int]]]

__all__ = ["VariableLink", "link", "link_constants", "link_stage", "link_variable"]


@dataclass(frozen=True)
class LinkedProgram:
    """A program, and where its steps and temporaries come from.

    `order` has the position of each step in the lowering; `buffers` the offset, the size and the steps, ascending, of
    each temporary.
    """

    program: Program
    order: tuple[int, ...]
    buffers: tuple[tuple[int, int, tuple[int, ...]], ...]


def link(lowering: Lowering, nports: int, threads: int, schedule: Schedule | None = None) -> LinkedProgram:
    """The program of a lowering for up to `threads` threads; external are the ports, then the packed constants.

    The steps stand in the order in which a schedule issues them; with none, as they were lowered.
    """
    order = tuple(range(len(lowering.steps))) if schedule is None else schedule.order
    lists = () if schedule is None else _renumber(stream_lists(schedule), order)
    nthreads = count_threads([step.call for step in lowering.steps], threads, len(lists))
    lowered = _with_scratch(lowering.steps, nthreads)
    offsets, arena_nbytes = plan_temporaries(lowered, schedule)
    steps = [lowered[k] for k in order]
    guards = [step.guard for step in steps]
    nexternals = nports + len(lowering.packed)
    linked, scratch = _place(steps, offsets), _place_scratch(steps, offsets)
    program = Program(linked, arena_nbytes, nexternals, lowering.literals, threads, guards, scratch, lists)
    buffers = [(offsets[b], b.nbytes, tuple(sorted(set(numbers)))) for b, numbers in uses_of(steps).items()]
    return LinkedProgram(program, order, tuple(buffers))


@dataclass(frozen=True)
class VariableLink:
    """A linked program of which sizes vary.

    Attributes
    ----------
    linked : LinkedProgram
        For the sizes that there are now.
    variable : VariableProgram
        Made of its program.
    sizes : tuple of int or Size
        Of the temporaries, those that share their bytes as one. Unit: bytes.
    numbers : tuple of tuple of int
        The steps that use each.
    schedule : Schedule or None
    """

    linked: LinkedProgram
    variable: VariableProgram
    sizes: tuple[Any, ...]
    numbers: tuple[tuple[int, ...], ...]
    schedule: Schedule | None

    def plan(self, sizes: Sequence[int]) -> tuple[Sequence[int], int]:
        """Offsets of the temporaries for other sizes, and the size of the arena. Unit: bytes."""
        return plan_places(sizes, self.numbers, self.schedule) if sizes else ((), 0)


def link_variable(lowering: Lowering, nports: int, threads: int, schedule: Schedule | None = None) -> VariableLink:
    """`link` for a lowering of which sizes vary."""
    order = tuple(range(len(lowering.steps))) if schedule is None else schedule.order
    lists = () if schedule is None else _renumber(stream_lists(schedule), order)
    nthreads = count_threads([step.call for step in lowering.steps], threads, len(lists))
    lowered = _with_scratch(lowering.steps, nthreads)
    homes, used = share_places(lowered, schedule)
    sizes, numbers = tuple([home.nbytes for home in used]), tuple(map(tuple, used.values()))
    places, arena_nbytes = plan_places(list(map(hint_of, sizes)), numbers, schedule) if sizes else ((), 0)
    number_of = {home: number for number, home in enumerate(used)}
    steps = [lowered[k] for k in order]
    guards = [step.guard for step in steps]

    def home_of(buffer: Buffer | None) -> int | None:
        return None if buffer is None else number_of[homes[buffer]]

    args = [
        (home_of(value.buffer.whole), offset) if value.buffer.base == ARENA else (None, offset + value.buffer.offset)
        for step in steps
        for value in step.args
        for offset in [value.dtype.nbytes(value.offset)]
    ]
    entries = [(step.call.ntasks, step.call.scratch_nbytes, home_of(step.scratch), step.call.patches) for step in steps]
    offsets = {buffer: places[number_of[home]] for buffer, home in homes.items()}
    placed = [(call, [(base, hint_of(offset)) for base, offset in args]) for call, args in _place(steps, offsets)]
    calls = [(call.with_hints(), args) for call, args in placed]
    nexternals = nports + len(lowering.packed)
    scratch = _place_scratch(steps, offsets)
    program = Program(calls, arena_nbytes, nexternals, lowering.literals, threads, guards, scratch, lists)
    buffers = [(offsets[b], hint_of(b.nbytes), tuple(sorted(set(users)))) for b, users in uses_of(steps).items()]
    rows = [[(step, call.waits, call.is_event) for call in calls for step in call.nodes] for calls in lists]
    variable = VariableProgram(program, entries, args, rows)
    return VariableLink(LinkedProgram(program, order, tuple(buffers)), variable, sizes, numbers, schedule)


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
    """The steps with a buffer for what their kernels need while they run on so many threads."""
    return [
        step._replace(scratch=Buffer(ARENA, count_scratch(step.call.scratch_nbytes, nthreads)))
        if step.call.scratch_nbytes
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
    inverse = packed.restore if is_all_that_is_read and len(packed.sources) == 1 else ()
    restore = _link_steps(inverse, literals, threads, (base, *packed.sources))[0] if inverse else None
    sources = tuple(base - FIRST_EXTERNAL for base in packed.sources)
    return ConstantPart(sources, packed.result.buffer.nbytes, program, key, restore)


def _link_steps(
    steps: Sequence[Step], literals: bytes, threads: int, externals: Sequence[int]
) -> tuple[Program, Hashable]:
    """The program of steps on these external bases, in this order, and all that its effect depends on."""
    bases = {base: number for number, base in enumerate(externals, FIRST_EXTERNAL)}
    steps = [step._replace(call=step.call.pinned()) for step in steps]
    lowered = _with_scratch(steps, count_threads([step.call for step in steps], threads))
    offsets, arena_nbytes = plan_temporaries(lowered)
    placed, scratch = _place(lowered, offsets, bases), _place_scratch(lowered, offsets)
    used = literals if LITERALS in [base for _, args in placed for base, _ in args] else b""
    program = Program(placed, arena_nbytes, len(bases), used, threads, scratch=scratch)
    return program, (used, *map(_content, placed))


def _content(step: Linked) -> Hashable:
    """All that the effect of a step depends on."""
    call, args = step
    return call.kernel.name, call.kernel.isa, call.params.tobytes(), tuple(args)


def _place(
    steps: Sequence[Step], offsets: Mapping[Buffer, int], bases: Mapping[int, int] | None = None
) -> list[Linked]:
    """The steps with their arguments in place, external bases renumbered."""

    def place(value: Value) -> tuple[int, int]:
        base, buffer, offset = value.buffer.base, value.buffer, value.offset and value.dtype.nbytes(value.offset)
        if base == ARENA:
            return base, offset + offsets[buffer if buffer.within is None else buffer.whole]
        return base if bases is None or base < FIRST_EXTERNAL else bases[base], offset + buffer.offset

    return [(step.call, list(map(place, step.args))) for step in steps]


def _place_scratch(steps: Sequence[Step], offsets: Mapping[Buffer, int]) -> list[int]:
    """Offset of the scratch of each step; 0 where it needs none."""
    return [0 if step.scratch is None else offsets[step.scratch] for step in steps]
