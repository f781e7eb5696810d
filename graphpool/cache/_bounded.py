"""BoundedCache: what the caches in memory share beside their entries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._unraisable import report_unraisable
from ..errors import InvalidArgumentError, explain
from ._check import check_limit
from ._stats import CacheStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A bound in bytes, counters, callbacks, and a lock that is held across a fork (`graphpool.fork.guard_fork`).

    Parameters
    ----------
    name : str
        Shown by ``repr``.
    capacity_nbytes : int, str or None
        Most bytes; None sets no bound.

    Raises
    ------
    InvalidArgumentError
        Not a size.
    """

    _lock: Any

    def __init__(self, name: str, capacity_nbytes: int | str | None) -> None:
        self.name = name
        self._capacity_nbytes = check_limit(capacity_nbytes)
        self._lock = threading.RLock()
        self._nbytes = 0  # of entries and productions
        self._misses = self._evictions = self._declined = 0
        self._callbacks: Callbacks[K, V] = Callbacks()

    @property
    def capacity_nbytes(self) -> int | None:
        """Most bytes, or None. Unit: bytes."""
        return self._capacity_nbytes

    @property
    def nbytes(self) -> int:
        """What entries and productions under way are charged; waits for nobody. Unit: bytes."""
        return self._nbytes

    def on_evict(self, callback: Callable[[K, V], object]) -> Callable[[], None]:
        """Call ``callback(key, value)`` once for each entry that leaves, for whatever reason.

        It runs outside every lock, in the thread that made the entry leave, before that thread produces a newcomer;
        handles of the entry are invalid by then. What it raises goes to `sys.unraisablehook`.

        Returns
        -------
        unsubscribe : callable
        """
        if not callable(callback):
            raise InvalidArgumentError(explain("callback", accepted="a callable(key, value)", got=repr(callback)))
        return self._callbacks.add(callback)

    def _stats(self, *, hits: int, entries: int, capacity: int | None = None) -> CacheStats:
        """The counters now. Under the lock."""
        return CacheStats(
            hits=hits,
            misses=self._misses,
            evictions=self._evictions,
            declined=self._declined,
            entries=entries,
            nbytes=self._nbytes,
            capacity=capacity,
            capacity_nbytes=self._capacity_nbytes,
        )

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork_in_parent(self) -> None:
        self._lock.release()


# ---- callbacks


class Callbacks(Generic[K, V]):
    """The functions to call with each (key, value) that leaves a cache. The tuple is replaced, never changed."""

    def __init__(self) -> None:
        self._functions: tuple[Callable[[K, V], object], ...] = ()

    def add(self, function: Callable[[K, V], object]) -> Callable[[], None]:
        """Call `function` from now on; returns what ends that."""
        self._functions = (*self._functions, function)
        return lambda: self._remove(function)

    def _remove(self, function: Callable[[K, V], object]) -> None:
        self._functions = tuple(f for f in self._functions if f is not function)

    def run(self, left: Iterable[tuple[K, V]]) -> None:
        """Call every function for every pair; an error is reported through `sys.unraisablehook`."""
        functions = self._functions
        for key, value in left:
            for function in functions:
                try:
                    function(key, value)
                except Exception as error:
                    report_unraisable(error, function)
