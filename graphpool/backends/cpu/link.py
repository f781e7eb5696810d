"""From lowered steps to programs: places of the temporaries, arguments as (base pointer, offset)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...runtime._program import ARENA, FIRST_EXTERNAL, LITERALS, Program, count_lanes, count_scratch
from ...runtime.constant_part import ConstantPart
from .lowering import Buffer
from .placement import plan_temporaries

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ..._kernels.call import KernelCall
    from .lowering import ConstantForm, Lowering, Step

    Linked = tuple[KernelCall, list[tuple[int, int]]]

__all__ = ["link", "link_constants"]


def link(lowering: Lowering, nports: int, lanes: int) -> Program:
    """The program of a lowering for up to `lanes` lanes; external are the ports, then the constant forms."""
    steps = _with_scratch(lowering.steps, lanes)
    linked, scratch, arena_nbytes = _place(steps)
    guards = [step.guard for step in steps]
    return Program(linked, arena_nbytes, nports + len(lowering.forms), lowering.literals, lanes, guards, scratch)


def _with_scratch(steps: Sequence[Step], lanes: int) -> list[Step]:
    """The steps with a buffer for what their kernels need while they run."""
    nlanes = count_lanes([step.call for step in steps], lanes)
    return [
        replace(step, scratch=Buffer(ARENA, count_scratch(step.call.scratch_nbytes, nlanes)))
        if step.call.scratch_nbytes
        else step
        for step in steps
    ]


def link_constants(lowering: Lowering) -> list[ConstantPart]:
    """What makes each constant form of a lowering."""
    return [_link_form(form, bytes(lowering.literals)) for form in lowering.forms]


def _link_form(form: ConstantForm, literals: bytes) -> ConstantPart:
    bases = {base: number for number, base in enumerate((*form.sources, form.result.buffer.base), FIRST_EXTERNAL)}
    steps, scratch, arena_nbytes = _place(_with_scratch(form.steps, 1), bases)
    used = literals if any(base == LITERALS for _, args in steps for base, _ in args) else b""
    program = Program(steps, arena_nbytes, len(bases), used, scratch=scratch)
    sources = tuple(base - FIRST_EXTERNAL for base in form.sources)
    return ConstantPart(sources, form.result.buffer.nbytes, program, (used, *map(_content, steps)))


def _content(step: Linked) -> Hashable:
    """All that the effect of a step depends on."""
    call, args = step
    return call.kernel.name, call.kernel.isa, call.params.tobytes(), tuple(args)


def _place(steps: Sequence[Step], bases: Mapping[int, int] | None = None) -> tuple[list[Linked], list[int], int]:
    """The steps with their arguments in place, external bases renumbered; places of scratch; size of the arena."""
    offsets, arena_nbytes = plan_temporaries(steps)

    def place(buffer: Buffer) -> tuple[int, int]:
        base = buffer.base if bases is None or buffer.base < FIRST_EXTERNAL else bases[buffer.base]
        return base, offsets[buffer] if buffer.base == ARENA else buffer.offset

    linked = []
    for step in steps:
        places = [(*place(value.buffer), value.dtype.nbytes(value.offset)) for value in step.args]
        linked.append((step.call, [(base, start + offset) for base, start, offset in places]))
    scratch = [0 if step.scratch is None else offsets[step.scratch] for step in steps]
    return linked, scratch, arena_nbytes
