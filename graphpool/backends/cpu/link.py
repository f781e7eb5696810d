"""From lowered steps to programs: places of the temporaries, arguments as (base pointer, offset)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runtime._program import ARENA, FIRST_EXTERNAL, LITERALS, Program
from ...runtime.constant_part import ConstantPart
from .placement import plan_temporaries

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ..._kernels.call import KernelCall
    from .lowering import Buffer, ConstantForm, Lowering, Step

    Linked = tuple[KernelCall, list[tuple[int, int]]]

__all__ = ["link", "link_constants"]


def link(lowering: Lowering, nports: int, lanes: int) -> Program:
    """The program of a lowering for up to `lanes` lanes; external are the ports, then the constant forms."""
    steps, arena_nbytes = _place(lowering.steps)
    guards = [step.guard for step in lowering.steps]
    return Program(steps, arena_nbytes, nports + len(lowering.forms), lowering.literals, lanes, guards)


def link_constants(lowering: Lowering) -> list[ConstantPart]:
    """What makes each constant form of a lowering."""
    return [_link_form(form, bytes(lowering.literals)) for form in lowering.forms]


def _link_form(form: ConstantForm, literals: bytes) -> ConstantPart:
    bases = {base: number for number, base in enumerate((*form.sources, form.result.buffer.base), FIRST_EXTERNAL)}
    steps, arena_nbytes = _place(form.steps, bases)
    used = literals if any(base == LITERALS for _, args in steps for base, _ in args) else b""
    program = Program(steps, arena_nbytes, len(bases), used)
    sources = tuple(base - FIRST_EXTERNAL for base in form.sources)
    return ConstantPart(sources, form.result.buffer.nbytes, program, (used, *map(_content, steps)))


def _content(step: Linked) -> Hashable:
    """All that the effect of a step depends on."""
    call, args = step
    return call.kernel.name, call.kernel.isa, call.params.tobytes(), tuple(args)


def _place(steps: Sequence[Step], bases: Mapping[int, int] | None = None) -> tuple[list[Linked], int]:
    """The steps with their arguments in place, external bases renumbered, and the size of the arena."""
    offsets, arena_nbytes = plan_temporaries(steps)

    def place(buffer: Buffer) -> tuple[int, int]:
        base = buffer.base if bases is None or buffer.base < FIRST_EXTERNAL else bases[buffer.base]
        return base, offsets[buffer] if buffer.base == ARENA else buffer.offset

    linked = []
    for step in steps:
        places = [(*place(value.buffer), value.dtype.nbytes(value.offset)) for value in step.args]
        linked.append((step.call, [(base, start + offset) for base, start, offset in places]))
    return linked, arena_nbytes
