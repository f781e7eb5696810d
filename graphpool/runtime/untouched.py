"""What of an arena no run touches: room for packing constants, which runs do for those alone that the cache lacks."""

from __future__ import annotations

import mmap
from collections import defaultdict
from typing import TYPE_CHECKING

from ._program import FIRST_EXTERNAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ._compiled import CompiledPartition
    from .primitive import Buffers

    Span = tuple[int, int]

__all__ = ["touched_spans", "untouched_nbytes"]

_HUGE_NBYTES = 2**21
"""From this size on an arena is a mapping of its own that begins with a huge page, see `HostResource`."""


def touched_spans(compiled: CompiledPartition, buffers: Buffers, offset: int) -> Iterator[Span]:
    """Where a program writes temporaries, which have so much before them.

    Where a constant is not cached, runs touch more, but no more than the constant then does not take. Unit: bytes.
    """
    assert compiled.primitive is not None
    program, parts = compiled.primitive.program, compiled.primitive.constant_parts
    guards = [guard for *_, guard in program.describe()] if parts and compiled.has_cached_constants() else []
    first = FIRST_EXTERNAL + len(compiled.inputs) + len(compiled.outputs)
    spared: defaultdict[int, int] = defaultdict(int)
    for begin, nbytes, steps in sorted(buffers, key=lambda buffer: -buffer[1]):
        only = {guards[step] for step in steps} if guards else set()
        [guard] = only if len(only) == 1 else [None]
        if guard is not None and not guard[1] and spared[guard[0]] + nbytes <= parts[guard[0] - first].nbytes:
            spared[guard[0]] += nbytes
        else:
            yield offset + begin, offset + begin + nbytes


def untouched_nbytes(used_nbytes: int, touched: Iterable[Span], arena_nbytes: int) -> int:
    """What of so much of an arena stays out of memory where only these spans are written. Unit: bytes.

    Of one in the C heap, which begins anywhere in a page: that a prediction has trimmed.
    """
    margin = mmap.PAGESIZE if arena_nbytes < _HUGE_NBYTES else 0
    found, end = 0, 0
    for begin, last in [*sorted(touched), (used_nbytes, used_nbytes)]:
        found += max(_page(begin, arena_nbytes)[0] - margin - end, 0)
        end = max(end, _page(last - 1, arena_nbytes)[1] + margin)
    return found


def _page(place: int, arena_nbytes: int) -> Span:
    """Begin and end of the page of an arena in which a byte lies."""
    size = _HUGE_NBYTES if place < arena_nbytes // _HUGE_NBYTES * _HUGE_NBYTES else mmap.PAGESIZE
    return place // size * size, place // size * size + size
