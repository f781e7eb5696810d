"""Kernels of the counter-based random generator (``eltwise/random.c``): dropout, and the bare generator."""

from __future__ import annotations

from graphpool.errors import InvalidShapeError, explain

from ..core.call import KernelCall, pack

__all__ = ["dropout", "philox"]

_TASK = 4096


def dropout(size: int, *, mask: bool = False, isa: str | None = None) -> KernelCall:
    """Zero f32 elements at random and scale the others: dst = src / (1 - p) where u > p, else 0.

    Element i draws u = word * 2^-32, word being number i % 4 of Philox4x32-10 with key (seed low, seed high) and
    counter (i // 4 low, i // 4 high, offset low, offset high), in halves of 32 bits.

    Parameters
    ----------
    size : int
        Elements; src, dst and mask are contiguous.
    mask : bool, default=False
        Also write u > p as u8.
    isa : str, optional
        Instruction set; the best one by default. All give the same mask.

    Returns
    -------
    KernelCall
        Arguments: src, seed (s64 scalar), offset (s64 scalar), p (f32 scalar), dst, [mask]. Tasks: 4096 elements each.
        src and dst may be the same memory.

    Raises
    ------
    InvalidShapeError
        Negative size.

    Notes
    -----
    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """
    _check_count("size", size)
    return pack("f32_dropout", {"size": size, "has_mask": mask}, ntasks=-(-size // _TASK), isa=isa)


def philox(seed: int, count: int, *, isa: str | None = None) -> KernelCall:
    """The random words of `count` counters under the key `seed` (64 bits).

    Returns
    -------
    KernelCall
        Arguments: counters (u32, count x 4), words (u32, count x 4). Tasks: counters.

    Raises
    ------
    InvalidShapeError
        Negative count.
    """
    _check_count("count", count)
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    return pack("u32_philox", {"key": key}, ntasks=count, isa=isa)


def _check_count(name: str, value: int) -> None:
    if value < 0:
        raise InvalidShapeError(explain(name, accepted="at least 0", got=value))
