"""Planning by conflicts instead of lifetimes: for programs whose steps run on several streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, explain

from ._greedy import place
from .planner import MAX_TOTAL, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence


def plan_conflicts(nbytes: Sequence[int], conflicts: Sequence[int], alignment: int = 64) -> tuple[tuple[int, ...], int]:
    """Offsets at which no two conflicting buffers share bytes, and the size of the arena. Unit: bytes.

    `conflicts` has for each buffer the others that must lie apart from it, as a bit set; symmetric. Cost: three greedy
    passes of O(n * placed), n * n / 8 bytes. Source: weighted interval colouring on any interference graph; orders as
    in `plan`: largest first, most bytes of neighbours first, as given.
    """
    if len(nbytes) != len(conflicts) or min(nbytes, default=0) < 0 or alignment < 1:
        accepted = "one size of at least 0 and one bit set a buffer, alignment of at least 1"
        got = f"{len(nbytes)} sizes, {len(conflicts)} bit sets, alignment {alignment}"
        raise InvalidArgumentError(explain("buffers", accepted=accepted, got=got))
    count = len(nbytes)
    sizes = np.array([-(-size // alignment) * alignment for size in nbytes], np.int64)
    width = -(-count // 8)
    rows = b"".join([mask.to_bytes(width, "little") for mask in conflicts])
    apart = np.frombuffer(rows, np.uint8).reshape(count, width)
    weights = sizes + [_total(sizes, row) for row in apart]
    numbers = np.arange(count)
    orders = [np.lexsort((numbers, -sizes)), np.lexsort((numbers, -sizes, -weights)), numbers]
    plans = [_place(sizes, apart, order) for order in orders]
    offsets = min(plans, key=lambda plan: _end(plan, nbytes))
    return tuple(offsets), _end(offsets, nbytes)


def _total(sizes: np.ndarray[Any, Any], row: np.ndarray[Any, Any]) -> int:
    """Bytes of the buffers whose bits are set."""
    return int(sizes[np.unpackbits(row, count=len(sizes), bitorder="little").view(bool)].sum())


def _place(sizes: np.ndarray[Any, Any], apart: np.ndarray[Any, Any], order: np.ndarray[Any, Any]) -> list[int]:
    """Each buffer in the smallest gap between its placed neighbours that holds it, else behind them."""
    offsets, ones, windows = np.empty_like(sizes), np.ones_like(sizes), np.empty((0, 3), np.int64)
    place(Problem(ones - 1, ones, sizes, ones, -ones, windows, apart), order, True, MAX_TOTAL, offsets)
    return [int(offset) for offset in offsets]


def _end(offsets: Sequence[int], nbytes: Sequence[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, nbytes, strict=True)), default=0)
