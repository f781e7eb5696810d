"""Arenas that all partitions of an engine lease from: the footprint is concurrency times the largest layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fork import Locked
from ..memory._arena import ArenaPool

if TYPE_CHECKING:
    from ..memory import Budget
    from ..typing import MemoryResource

__all__ = ["SharedArenas"]


class SharedArenas(Locked):
    """Arenas of one size, which grows to that of the largest layout asked for; nothing is taken before one is leased.

    Ownership: the arenas; leased ones of a size that was outgrown are freed when they are released. Threads: safe.
    """

    def __init__(self, resource: MemoryResource, budget: Budget) -> None:
        super().__init__()
        self._resource = resource
        self._budget = budget
        self._pool = self._make(0)
        self._is_closed = False

    def _make(self, nbytes: int) -> ArenaPool:
        return ArenaPool(self._resource, nbytes, budget=self._budget, name="arenas shared by partitions")

    def require(self, nbytes: int) -> None:
        """Make arenas of at least `nbytes` from now on."""
        with self._lock:
            if nbytes > self._pool.nbytes and not self._is_closed:
                outgrown, self._pool = self._pool, self._make(nbytes)
                outgrown.close()

    def current(self) -> ArenaPool:
        """The arenas of the present size."""
        with self._lock:
            return self._pool

    def close(self) -> None:
        """Free the arenas, leased ones when they are released. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._pool.close()
