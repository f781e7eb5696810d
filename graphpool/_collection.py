"""A pause of Python's garbage collector, for work whose objects nearly all stay, so that it would find nothing.

Loading a model of a hundred nodes makes ten thousand such objects, enough for a collection of the whole heap, which
takes as long as a fifth of the load and grows with what else the process holds.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["collection_paused", "settle_objects"]


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run the block without automatic collections in this process.

    Notes
    -----
    Blocks may be nested, and lie in any number of threads: the first one pauses the collector, the last one to end lets
    it go on, if it was on. Who turns it off meanwhile finds it on again afterwards; ``gc.collect`` works as ever.
    Threads: safe, also across ``fork``: a child collects at once. Cost: a microsecond.
    """
    block = object()
    try:
        _pause.enter(block)
        yield
    finally:
        _pause.leave(block)


def settle_objects() -> None:
    """Move all objects that the collector knows to its oldest generation, where they would come if they stay.

    After an import, say, which leaves tens of thousands: the next collection would look at each, for nothing. Cycles of
    garbage among them wait for a full collection. Nothing happens where somebody has frozen objects.

    Notes
    -----
    Threads: safe. Cost: a microsecond, however many there are.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()  # which moves them there


class _Pause:
    """The blocks that are running, and whether the collector was on before them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: set[object] = set()
        self._was_on = False

    def enter(self, block: object) -> None:
        with self._lock:
            if not self._blocks:
                self._was_on = gc.isenabled()
                gc.disable()
            self._blocks.add(block)

    def leave(self, block: object) -> None:
        with self._lock:
            if block in self._blocks:  # a forked child has forgotten those of its parent
                self._blocks.remove(block)
                self._resume()

    def _resume(self) -> None:
        if not self._blocks and self._was_on:
            gc.enable()

    def end_in_child(self) -> None:
        """Forget all blocks: the threads of the others do not exist in a forked child."""
        self._lock = threading.Lock()
        if self._blocks:
            self._blocks.clear()
            self._resume()


_pause = _Pause()
os.register_at_fork(after_in_child=_pause.end_in_child)
