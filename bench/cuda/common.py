"""Times of what is given to a device, and tables of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Work(NamedTuple):
    """`give` gives one call to a device, `wait` returns when all of them are done."""

    give: Callable[[], object]
    wait: Callable[[], object]


def least_times(works: Sequence[Work], seconds: float, calls: int) -> list[float]:
    """The least time of a call of each of `works`, by the clock, run in turn for `seconds`. Unit: seconds.

    `calls` of them are given one after another and waited for once, so that the host's part does not count where it is
    shorter than the device's. The first round is not counted: kernels are compiled and loaded in it.
    """
    best, end, rounds = [math.inf] * len(works), time.monotonic() + seconds, 0
    while rounds < 2 or time.monotonic() < end:
        for number, work in enumerate(works):
            start = time.perf_counter()
            for _ in range(calls):
                work.give()
            work.wait()
            if rounds:
                best[number] = min(best[number], (time.perf_counter() - start) / calls)
        rounds += 1
    return best


def as_row(cells: Sequence[object]) -> str:
    """A row of a table; numbers with three digits."""
    return f"| {' | '.join(f'{cell:.3g}' if isinstance(cell, float) else str(cell) for cell in cells)} |"
