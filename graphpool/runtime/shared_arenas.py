"""Arenas that all partitions of an engine lease from: the footprint is concurrency times the largest layout."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import OutOfMemoryError, StateError, explain
from ..fork import Locked
from ..memory._arena import ArenaPool
from .inner_models import is_inner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..memory import Budget
    from ..memory._lease import Lease
    from ..typing import MemoryResource
    from .model_memory import ModelMemory

__all__ = ["SharedArenas"]


class SharedArenas(Locked):
    """Arenas of one size, which grows to that of the largest layout asked for; nothing is taken before one is leased.

    Where there is no memory for arenas so large, their size falls to what is asked for. `keeper` is the
    model whose arenas they are, see `Budget.register`. Ownership: the arenas;
    leased ones of a size that was outgrown are freed when they are released. Threads: safe.
    """

    def __init__(
        self,
        resource: MemoryResource,
        budget: Budget,
        name: str = "arenas shared by partitions",
        keeper: ModelMemory | None = None,
    ) -> None:
        super().__init__()
        self.keeper = keeper
        self._name = name
        self._resource = resource
        self._budget = budget
        self._pool = self._make(0)
        self._is_closed = False
        self._needs: dict[int, int] = {}  # how many users need arenas so large

    def _make(self, nbytes: int) -> ArenaPool:
        return ArenaPool(self._resource, nbytes, alignment=64, budget=self._budget, name=self._name, keeper=self.keeper)

    def require(self, nbytes: int) -> None:
        """Make arenas of at least `nbytes` from now on."""
        self._change(nbytes, lambda present: present < nbytes)

    def shrink(self, nbytes: int) -> None:
        """Make arenas of so many bytes from now on, if they are larger."""
        self._change(nbytes, lambda present: present > nbytes)

    def _change(self, nbytes: int, is_wanted: Callable[[int], bool]) -> None:
        with self._lock:
            outgrown = self._pool
            if self._is_closed or not is_wanted(outgrown.nbytes):
                return
            self._pool = self._make(nbytes)
        outgrown.close()  # outside the lock: the budget, to which memory goes back, may ask for the present size

    def current(self) -> ArenaPool:
        """The arenas of the present size."""
        return self._pool

    def lease(self, nbytes: int) -> Lease:
        """An arena of at least `nbytes` until it is released; its pool may be replaced, and so closed, meanwhile."""
        while True:
            pool = self._pool
            try:
                if pool.nbytes >= nbytes:
                    return pool.lease(timeout_s=0.0 if is_inner() else None)
                if self._is_closed:
                    raise StateError(explain(f"{self._name}: closed", hint="load the model or make the engine again"))
                self.require(nbytes)
            except StateError:
                if self._pool is pool:
                    raise
            except OutOfMemoryError:
                if pool.nbytes <= nbytes:
                    raise
                self.shrink(nbytes)

    def enter(self, nbytes: int = 0) -> None:
        """Count a user, who may need arenas so large."""
        with self._lock:
            self._needs[nbytes] = self._needs.get(nbytes, 0) + 1

    def leave(self, nbytes: int = 0) -> None:
        """One user less: arenas become as large as the others need at most; the last one closes them."""
        with self._lock:
            self._needs[nbytes] -= 1
            if not self._needs[nbytes]:
                del self._needs[nbytes]
            most = max(self._needs, default=None)
        if most is None:
            self.close()
        elif most < self._pool.nbytes:
            self.shrink(most)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the size while users change: the next one may need what the last one needed."""
        nbytes = self._pool.nbytes
        self.enter(nbytes)
        try:
            yield
        finally:
            self.leave(nbytes)

    def close(self) -> None:
        """Free the arenas, leased ones when they are released. Idempotent."""
        with self._lock:
            self._is_closed = True
        self._pool.close()
