"""Dropout from a counter-based random generator (``eltwise/random.c``)."""

from __future__ import annotations

from graphpool.errors import InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.records import number

__all__ = ["dropout"]

_TASK = number("GP_DROPOUT_TASK")


def dropout(size: int, *, mask: bool = False, isa: str | None = None) -> KernelCall:
    """Zero elements at random and scale the others: dst = src / (1 - p) where u > p, else 0; mask: u > p.

    Arguments, contiguous: src, seed (s64 scalar), offset (s64 scalar), p (scalar), dst, which may be src, [mask] (u8).
    Element i draws u = word * 2^-32, word being number i % 4 of Philox4x32-10 with key (seed low, seed high) and
    counter (i // 4 low, i // 4 high, offset low, offset high), in halves of 32 bits: the same on every instruction set.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """
    if size < 0:
        raise InvalidShapeError(explain("size", accepted="at least 0", got=size))
    return pack("f32_dropout", {"size": size, "has_mask": mask}, ntasks=-(-size // _TASK), isa=isa)
