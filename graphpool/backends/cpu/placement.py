"""Which bytes a step's values take: temporaries in the arena, and what may lie in one place.

An elementwise step may write over an operand that it reads in the same order and that nobody reads afterwards: inside
the arena that is done here, for external tensors it is reported as in-place ports, which the caller may use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...memory import BufferInfo, plan
from ...runtime._program import ARENA, FIRST_EXTERNAL
from ...typing import PropertyType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.logical_tensor import LogicalTensor
    from .lowering import Buffer, Step

__all__ = ["find_inplace_ports", "plan_temporaries"]

ALIGNMENT = 64


def plan_temporaries(steps: Sequence[Step]) -> tuple[dict[Buffer, int], int]:
    """Offsets of the temporaries in the arena, and its size.

    Buffers that share bytes in place live as one, from the first use of the first to the last use of the last. The
    scratch of a step is a temporary of that step.
    """
    uses = _uses(steps)
    homes = _share(steps, uses)
    lives: dict[Buffer, tuple[int, int]] = {}
    for buffer, numbers in uses.items():
        home = homes[buffer]
        first, last = lives.get(home, (numbers[0], numbers[-1]))
        lives[home] = min(first, numbers[0]), max(last, numbers[-1])
    order = list(lives)
    placed = plan(
        [BufferInfo(k, lives[home][0], lives[home][1] + 1, home.nbytes) for k, home in enumerate(order)],
        alignment=ALIGNMENT,
    )
    offsets = {home: placed.offsets[k] for k, home in enumerate(order)}
    return {buffer: offsets[home] for buffer, home in homes.items()}, placed.nbytes


def _uses(steps: Sequence[Step]) -> dict[Buffer, list[int]]:
    """Numbers of the steps that touch each temporary, ascending."""
    uses: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        for value in step.args:
            if value.buffer.base == ARENA:
                uses.setdefault(value.buffer, []).append(number)
        if step.scratch is not None:
            uses[step.scratch] = [number]
    return uses


def _share(steps: Sequence[Step], uses: dict[Buffer, list[int]]) -> dict[Buffer, Buffer]:
    """Temporary -> the temporary whose bytes it takes over, or itself."""
    homes: dict[Buffer, Buffer] = {}
    for number, step in enumerate(steps):
        place = step.args[0].buffer if step.is_elementwise else None
        if place is not None and place.base == ARENA and uses[place][0] == number:
            for value in step.args[1:]:
                source = value.buffer
                dies_here = source.base == ARENA and uses[source][-1] == number
                if dies_here and source is not place and source.nbytes == place.nbytes and _is_aligned(step, source):
                    homes[place] = homes.get(source, source)
                    break
        for value in step.args:
            if value.buffer.base == ARENA:
                homes.setdefault(value.buffer, value.buffer)
        if step.scratch is not None:
            homes[step.scratch] = step.scratch
    return homes


def _is_aligned(step: Step, source: Buffer) -> bool:
    """Whether the elementwise step reads each element of `source` just where it writes one of its result."""
    place = step.args[0]
    return all(
        (value.dtype, value.shape, value.strides, value.offset)
        == (place.dtype, place.shape, place.strides, place.offset)
        for value in step.args[1:]
        if value.buffer is source
    )


def find_inplace_ports(
    steps: Sequence[Step], inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor]
) -> list[tuple[int, int]]:
    """Pairs of ports that may share a buffer: one elementwise step reads the input, last of all, and writes the output.

    Every port is in one pair at most. Cost: linear in the steps' arguments and in the ports.
    """
    last_use: dict[int, int] = {}
    first_write: dict[int, int] = {}
    buffers: dict[int, Buffer] = {}
    for number, step in enumerate(steps):
        for value in step.args:
            last_use[value.buffer.base] = number
            buffers[value.buffer.base] = value.buffer
            if value.buffer.base >= FIRST_EXTERNAL + len(inputs):
                first_write.setdefault(value.buffer.base, number)
    pairs: dict[int, int] = {}
    for j, output in enumerate(outputs, FIRST_EXTERNAL + len(inputs)):
        writer = first_write.get(j)
        if writer is None or not steps[writer].is_elementwise or steps[writer].args[0].buffer.base != j:
            continue
        candidates = [i for i in {v.buffer.base for v in steps[writer].args} if FIRST_EXTERNAL <= i < j]
        for i in sorted(candidates):
            source = inputs[i - FIRST_EXTERNAL] if i - FIRST_EXTERNAL < len(inputs) else None
            if source is None or source.id in pairs or source.property is PropertyType.CONSTANT:
                continue
            if last_use[i] == writer and _is_aligned(steps[writer], buffers[i]):
                pairs[source.id] = output.id
                break
    return list(pairs.items())
