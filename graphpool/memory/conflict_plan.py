"""Planning by conflicts instead of lifetimes: for programs whose steps run on several streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.bits import set_bits
from graphpool.errors import InvalidArgumentError, explain

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["plan_conflicts"]


def plan_conflicts(nbytes: Sequence[int], conflicts: Sequence[int], alignment: int = 64) -> tuple[tuple[int, ...], int]:
    """Offsets at which no two conflicting buffers share bytes.

    Parameters
    ----------
    nbytes : sequence of int
        Size of each buffer. Unit: bytes.
    conflicts : sequence of int
        For each buffer the others that must lie apart from it, as a bit set; symmetric.
    alignment : int, default=64
        Of every offset. Unit: bytes.

    Returns
    -------
    offsets : tuple of int
        Of each buffer. Unit: bytes.
    nbytes : int
        Size of the arena. Unit: bytes.

    Raises
    ------
    InvalidArgumentError
        The sequences differ in length, a size is negative, or `alignment` is not positive.

    Notes
    -----
    Threads: safe, pure. Cost: three greedy passes of O(n * neighbours * log(neighbours)).
    Source: weighted interval colouring on any interference graph; orders as in `plan`: largest first, most bytes of
    neighbours first, as given.
    """
    if len(nbytes) != len(conflicts) or min(nbytes, default=0) < 0 or alignment < 1:
        accepted = "one size of at least 0 and one bit set a buffer, alignment of at least 1"
        got = f"{len(nbytes)} sizes, {len(conflicts)} bit sets, alignment {alignment}"
        raise InvalidArgumentError(explain("buffers", accepted=accepted, got=got))
    sizes = [-(-size // alignment) * alignment for size in nbytes]
    neighbours = [set_bits(mask) for mask in conflicts]
    weights = [sizes[i] + sum(sizes[j] for j in others) for i, others in enumerate(neighbours)]
    numbers = range(len(sizes))
    orders = [
        sorted(numbers, key=lambda i: (-sizes[i], i)),
        sorted(numbers, key=lambda i: (-weights[i], -sizes[i], i)),
        list(numbers),
    ]
    plans = [_place(sizes, neighbours, order) for order in orders]
    offsets = min(plans, key=lambda plan: _end(plan, nbytes))
    return tuple(offsets), _end(offsets, nbytes)


def _place(sizes: list[int], neighbours: list[list[int]], order: list[int]) -> list[int]:
    """Each buffer in the smallest gap between its placed neighbours that holds it, else behind them."""
    offsets = [-1] * len(sizes)
    for i in order:
        taken = sorted((offsets[j], sizes[j]) for j in neighbours[i] if offsets[j] >= 0)
        offsets[i] = _best_gap(taken, sizes[i])
    return offsets


def _best_gap(taken: list[tuple[int, int]], size: int) -> int:
    end, best, best_gap = 0, -1, 0
    for offset, length in taken:
        gap = offset - end
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = end, gap
        end = max(end, offset + length)
    return end if best < 0 else best


def _end(offsets: Sequence[int], nbytes: Sequence[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, nbytes, strict=True)), default=0)
