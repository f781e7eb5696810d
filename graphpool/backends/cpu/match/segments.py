"""Elementwise regions of any length and width as programs of the engine, which has few registers and arguments."""

from __future__ import annotations

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
    read of each tensor that is computed before and read behind it. Cost: linear in the ops' ports.
    """
    if 0 < sum([len(op.inputs) + len(op.outputs) for op in ops]) <= MOST_HELD:
        return [list(ops)]
    last_read = {tensor.id: number for number, op in enumerate(ops) for tensor in op.inputs}
    parts: list[list[Op]] = [[]]
    held: set[int] = set()
    nread = 0
    for number, op in enumerate(ops):
        ports = {tensor.id for tensor in (*op.inputs, *op.outputs)}
        held |= ports
        if len(held) > MOST_HELD or nread + len(held) > MOST_ARGS:
            parts.append([])
            held, nread = ports.copy(), 0
        parts[-1].append(op)
        nread += len(op.inputs)
        held.difference_update([tensor for tensor in ports if last_read.get(tensor, -1) <= number])
    return [part for part in parts if part]
