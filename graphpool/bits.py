"""Sets of small numbers as bits of an int. Imports nothing of graphpool, so every package may use it."""

from __future__ import annotations

__all__ = ["set_bits"]


def set_bits(mask: int) -> list[int]:
    """Positions of the bits that are set, ascending; `mask` is at least 0. Cost: linear in their number."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
