"""Arenas that all partitions of an engine lease from: the footprint is concurrency times the largest layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import StateError
from ..fork import Locked
from ..memory._arena import ArenaPool

if TYPE_CHECKING:
    from ..memory import Budget
    from ..memory._lease import Lease
    from ..typing import MemoryResource

__all__ = ["SharedArenas"]


class SharedArenas(Locked):
    """Arenas of one size, which grows to that of the largest layout asked for; nothing is taken before one is leased.

    Ownership: the arenas; leased ones of a size that was outgrown are freed when they are released. Threads: safe.
    """

    def __init__(self, resource: MemoryResource, budget: Budget, name: str = "arenas shared by partitions") -> None:
        super().__init__()
        self._name = name
        self._resource = resource
        self._budget = budget
        self._pool = self._make(0)
        self._is_closed = False

    def _make(self, nbytes: int) -> ArenaPool:
        return ArenaPool(self._resource, nbytes, alignment=64, budget=self._budget, name=self._name)

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

    def shrink(self, nbytes: int) -> None:
        """Make arenas of so many bytes from now on, if they are larger."""
        with self._lock:
            if nbytes < self._pool.nbytes and not self._is_closed:
                outgrown, self._pool = self._pool, self._make(nbytes)
                outgrown.close()

    def lease(self, nbytes: int = 0) -> Lease:
        """An arena of at least `nbytes` until it is released; its pool may be replaced, and so closed, meanwhile."""
        while True:
            pool = self._pool
            if pool.nbytes < nbytes:
                self.require(nbytes)
                pool = self._pool
            try:
                return pool.lease()
            except StateError:
                if self._pool is pool:
                    raise

    def close(self) -> None:
        """Free the arenas, leased ones when they are released. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._pool.close()
