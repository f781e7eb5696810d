"""Bytes of temporaries in use over the time of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Footprint:
    """How much of an arena holds something that is still needed.

    Attributes
    ----------
    times_ns : tuple of int
        When that changes, ascending, on the monotonic clock. Unit: nanoseconds.
    nbytes : tuple of int
        What is in use from each of these times on. Unit: bytes.
    arena_nbytes : int
        Size of the arena, the scratch of the kernels included. Unit: bytes.
    """

    times_ns: tuple[int, ...]
    nbytes: tuple[int, ...]
    arena_nbytes: int

    @property
    def peak_nbytes(self) -> int:
        """The most that was in use at once. Unit: bytes."""
        return max(self.nbytes, default=0)


def measure_footprint(
    buffers: Sequence[tuple[int, int, tuple[int, ...]]], times: Mapping[int, tuple[int, int]], arena_nbytes: int
) -> Footprint:
    """The footprint of a run by the start and end of its steps; `buffers` has (offset, size, steps) of temporaries."""
    lives: list[tuple[int, int, int, int]] = []
    for offset, nbytes, steps in buffers:
        spans = [times[step] for step in steps if step in times]
        if spans and nbytes:
            lives.append((min(s for s, _ in spans), max(e for _, e in spans), offset, offset + nbytes))
    moments = sorted({life[0] for life in lives} | {life[1] for life in lives})
    used = [_union((a, b) for start, end, a, b in lives if start <= moment < end) for moment in moments]
    return Footprint(tuple(moments), tuple(used), arena_nbytes)


def _union(spans: Iterable[tuple[int, int]]) -> int:
    """Bytes that are in one of the spans at least: what shares bytes in place counts once."""
    total = reached = 0
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total
