"""BoundedCache: what the caches in memory share beside their entries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from graphpool._dataclasses import dataclass

from .._unraisable import report_unraisable
from ..errors import InvalidArgumentError, brief, explain
from ..log import memory_log
from ._check import check_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self


@dataclass(frozen=True)
class CacheStats:
    """Counters of a cache at one instant.

    Attributes
    ----------
    hits, misses : int
        Lookups that found a value (also after waiting for its producer), and those that did not.
    evictions : int
        Entries that have left, for whatever reason.
    declined : int
        Newcomers that were not kept, because they did not fit.
    entries, nbytes : int
        What is held and being produced now. Unit of `nbytes`: bytes.
    capacity : int or None
        Most entries; None is no bound.
    capacity_nbytes : int or None
        Most bytes; None is no bound. Unit: bytes.
    """

    hits: int
    misses: int
    evictions: int
    declined: int
    entries: int
    nbytes: int
    capacity: int | None
    capacity_nbytes: int | None

    def _repr_html_(self) -> str:
        """For notebooks."""
        return show_stats("CacheStats", self)


K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A bound in bytes (None for none), counters, callbacks, and a lock that is held across a fork.

    See `graphpool.fork.guard_fork`; `name` is shown by ``repr``. Raises InvalidArgumentError for what is no size.
    """

    _lock: Any

    def __init__(self, name: str, capacity_nbytes: int | str | None) -> None:
        self.name = name
        self._capacity_nbytes = check_limit(capacity_nbytes)
        self._lock = threading.RLock()
        self._nbytes = 0  # of entries and productions
        self._misses = self._evictions = self._declined = 0
        self._callbacks: tuple[Callable[[K, V], object], ...] = ()  # replaced, never changed

    def __copy__(self) -> Self:
        return self

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

        Parameters
        ----------
        callback : callable
            Called with the key and the value.

        Returns
        -------
        unsubscribe : callable

        Raises
        ------
        InvalidArgumentError
            It is not callable.
        """
        if not callable(callback):
            raise InvalidArgumentError(explain("callback", accepted="a callable(key, value)", got=brief(callback)))
        self._callbacks = (*self._callbacks, callback)

        def unsubscribe() -> None:
            self._callbacks = tuple(other for other in self._callbacks if other is not callback)

        return unsubscribe

    def _tell(self, left: Iterable[tuple[K, V]]) -> None:
        """Call every callback for every (key, value); an error is reported through `sys.unraisablehook`."""
        callbacks, is_logged = self._callbacks, memory_log.is_on()
        for key, value in left:
            if is_logged:
                nbytes = getattr(value, "nbytes", None)
                memory_log.info("%s gives up %s%s", self.name, _describe(key), f", {nbytes} bytes" if nbytes else "")
            for callback in callbacks:
                try:
                    callback(key, value)
                except Exception as error:
                    report_unraisable(error, callback)

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


def show_stats(title: str, stats: CacheStats) -> str:
    """Counters as a table for notebooks."""
    from ..drawing import describe_size
    from ..notebook import html_table

    bound = "no bound" if stats.capacity is None else f"{stats.capacity} at most"
    room = "no bound" if stats.capacity_nbytes is None else f"{describe_size(stats.capacity_nbytes)} at most"
    rows = {
        "entries": f"{stats.entries}, {bound}",
        "memory": f"{describe_size(stats.nbytes)}, {room}",
        "hits": f"{stats.hits} of {stats.hits + stats.misses}",
        "evictions": stats.evictions,
        "declined": stats.declined,
    }
    return html_table(title, rows)


def _describe(key: object) -> str:
    """The words of a key, and shapes behind them, without contents and parameters; the key itself if it has none."""
    return " ".join(_words(key)) if isinstance(key, tuple) and any(_words(key)) else brief(key)


def _words(key: tuple[object, ...]) -> Iterator[str]:
    for before, item in zip((None, *key), key, strict=False):
        if isinstance(item, str):
            yield item
        elif isinstance(item, tuple) and item:
            if isinstance(before, str) and all(type(number) is int for number in item):
                yield "x".join(map(str, item))
            else:
                yield from _words(item)
