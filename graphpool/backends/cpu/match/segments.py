"""Elementwise regions of any length and width as programs of the engine, which has few registers and arguments."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...._kernels.eltwise.eltwise import MAX_ARGS, N_REGISTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op

__all__ = ["split_region"]

MOST_HELD = N_REGISTERS - 3
"""Tensors that a program may hold at once: an op takes up to three registers for constants and steps in between."""

MOST_ARGS = MAX_ARGS - 12
"""Tensors that a program may read and write: the kernel in front of an epilogue has some, a last op adds a few."""


def split_region(ops: Sequence[Op]) -> list[list[Op]]:
    """The ops in order, cut where a program would hold or name too many tensors.

    A tensor is held from where it is computed or first read to where it is last read. A cut costs one write and one
    read of each tensor that is computed before and read behind it. Cost: linear in the ops' ports, at most
    `MOST_HELD` looked at for each.
    """
    if 0 < sum([len(op.inputs) + len(op.outputs) for op in ops]) <= MOST_HELD:
        return [list(ops)]
    uses = Counter(tensor.id for op in ops for tensor in op.inputs)
    parts: list[list[Op]] = [[]]
    held: set[int] = set()
    nread = 0
    for op in ops:
        ports = {tensor.id for tensor in (*op.inputs, *op.outputs)}
        if len(held | ports) > MOST_HELD or nread + len(held | ports) > MOST_ARGS:
            parts.append([])
            held, nread = set(), 0
        parts[-1].append(op)
        nread += len(op.inputs)
        uses.subtract(tensor.id for tensor in op.inputs)
        held = {tensor for tensor in held | ports if uses[tensor] > 0}
    return [part for part in parts if part]
