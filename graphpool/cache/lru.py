"""LruCache: bounded in entries and bytes, one producer a key, the least recently used entry goes first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar, cast

from ..errors import check_hashable
from ..fork import guard_fork
from ._bounded import BoundedCache, show_stats
from ._check import check_entries, check_limit, check_nbytes
from ._flight import Flight
from ._recency import Recency

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ._bounded import CacheStats
    from ._recency import Node

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
_NONE = object()


class LruCache(BoundedCache[K, V]):
    """A map of bounded size that forgets what was used longest ago.

    Parameters
    ----------
    capacity : int
        Most entries, those being produced included; 0 disables the cache. Unit: entries.
    capacity_nbytes : int or str, optional
        Most bytes, as charged by `get_or_create`; None sets no bound.
    name : str, default="cache"
        Shown by ``repr``.

    Raises
    ------
    InvalidArgumentError
        A capacity is no count or no size.

    Notes
    -----
    Ownership: the cache shares its values with whoever got them; it never closes one itself, see `on_evict`.
    Threads: safe, also across ``fork`` and without a GIL. Nobody waits, produces, or calls back while a lock is held.
    Keys are compared in full. Cost: a hit is one lock and one look-up; evicting an entry takes constant time.
    Source: oneDNN's primitive cache; other than there, shrinking trims in every case, bytes count, and no scan looks
    for the oldest entry.

    Examples
    --------
    >>> from graphpool.cache import LruCache
    >>> cache = LruCache(2)
    >>> [cache.get_or_create(n, lambda n=n: n * n) for n in (3, 4, 3, 5)]
    [9, 16, 9, 25]
    >>> cache.keys(), cache.stats().hits
    ([3, 5], 1)
    """

    def __init__(self, capacity: int, *, capacity_nbytes: int | str | None = None, name: str = "cache") -> None:
        super().__init__(name, capacity_nbytes)
        self._capacity = check_entries(capacity)
        self._entries: Recency[K, V] = Recency()
        self._flights: dict[K, Flight[V]] = {}
        self._flights_nbytes = 0
        self._landings = 0
        guard_fork(self)

    @property
    def capacity(self) -> int:
        """Most entries. Unit: entries."""
        return self._capacity

    def __len__(self) -> int:
        return len(self._entries) + len(self._flights)

    def __contains__(self, key: object) -> bool:
        """Whether there is a value now; no use of it is counted."""
        check_hashable("key", key)
        return key in self._entries

    def keys(self) -> list[K]:
        """The keys that have values now, the one used longest ago first.

        Returns
        -------
        list of hashable
        """
        return self._entries.by_age()

    def node(self, key: K) -> Node[K, V] | None:
        """What C code keeps to find the value again, and count the use, without a look-up.

        Parameters
        ----------
        key : hashable

        Returns
        -------
        node : Node or None
            None if there is no such entry. It knows when the entry has left.

        Raises
        ------
        InvalidArgumentError
            The key has no hash.
        """
        check_hashable("key", key)
        return self._entries.find(key)

    # ---- look up and produce

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as a use; waits for no producer.

        Parameters
        ----------
        key : hashable

        Returns
        -------
        value : object or None
            None if there is none.

        Raises
        ------
        InvalidArgumentError
            The key has no hash.
        """
        with self._lock:
            found = self._hit(key)
            self._misses += found is _NONE
            return None if found is _NONE else cast("V", found)

    def get_or_create(self, key: K, producer: Callable[[], V], *, nbytes: int = 0) -> V:
        """The value of `key`; the first caller produces it, those who come meanwhile wait for it.

        Parameters
        ----------
        key : hashable
        producer : callable
            Returns the value. It may use the cache for other keys.
        nbytes : int, default=0
            Charged from before the production until the entry leaves; others are evicted first if need be. Unit: bytes.

        Returns
        -------
        value : object
            Kept by the cache unless it cannot fit: then it is the caller's alone, and not shared with other threads.

        Raises
        ------
        StateError
            The producer asks, directly or through other threads, for the key that it is to produce.
        InvalidArgumentError
            `nbytes` is not a size, or the key has no hash.
        Exception
            What the producer raised; everyone who waited gets it, and no entry is left.
        """
        check_nbytes(nbytes)
        while True:
            with self._lock:
                found = self._hit(key)
                if found is not _NONE:
                    return cast("V", found)
                pending = self._flights.get(key)
                if pending is None:
                    flight, victims = self._reserve(key, nbytes)
                    break
            landed, value = pending.wait()
            if landed:
                with self._lock:
                    self._landings += 1
                return value
        return producer() if flight is None else self._produce(flight, key, producer, victims)

    def _hit(self, key: K) -> object:
        """The value, now the most recently used one, or `_NONE`. Under the lock."""
        try:
            node = self._entries.use(key)
        except TypeError:
            check_hashable("key", key)
            raise
        return _NONE if node is None else node.value

    def _reserve(self, key: K, nbytes: int) -> tuple[Flight[V] | None, list[tuple[K, V]]]:
        """Make room and charge; no flight if even an empty cache had no room. Under the lock."""
        self._misses += 1
        if not self._fits(len(self._flights) + 1, self._flights_nbytes + nbytes):
            self._declined += 1
            return None, []
        victims = self._shrink(1, nbytes)
        flight: Flight[V] = Flight(key, nbytes)
        self._flights[key] = flight
        self._nbytes += nbytes
        self._flights_nbytes += nbytes
        return flight, victims

    def _produce(self, flight: Flight[V], key: K, producer: Callable[[], V], victims: list[tuple[K, V]]) -> V:
        try:
            self._tell(victims)  # before the newcomer takes memory
            value = producer()
        except BaseException as error:
            with self._lock:
                self._detach(flight, key)
            flight.fail(error)
            raise
        with self._lock:
            is_kept = self._detach(flight, key)
            if is_kept:
                self._entries.put(key, value, flight.nbytes)
                self._nbytes += flight.nbytes
            else:
                self._evictions += 1
        flight.land(value)
        if not is_kept:
            self._tell([(key, value)])
        return value

    def _detach(self, flight: Flight[V], key: K) -> bool:
        """Take a flight off the books; False if a flush already has. Under the lock."""
        if self._flights.get(key) is not flight:
            return False
        del self._flights[key]
        self._nbytes -= flight.nbytes
        self._flights_nbytes -= flight.nbytes
        return True

    # ---- room

    def _fits(self, entries: int, nbytes: int) -> bool:
        limit = self._capacity_nbytes
        return entries <= self._capacity and (limit is None or nbytes <= limit)

    def _shrink(self, entries: int, nbytes: int) -> list[tuple[K, V]]:
        """Evict the oldest entries until `entries` and `nbytes` more fit, or none is left. Under the lock."""
        victims = []
        while (oldest := self._entries.first()) and not self._fits(len(self) + entries, self._nbytes + nbytes):
            victims.append(self._pop(oldest.key))
        return victims

    def _pop(self, key: K) -> tuple[K, V]:
        value, nbytes = cast("tuple[V, int]", self._entries.pop(key))
        self._nbytes -= nbytes
        self._evictions += 1
        return key, value

    def _shrink_flights(self) -> None:
        """Let go of productions under way, the oldest first, until the rest fits. Under the lock."""
        while self._flights and not self._fits(len(self), self._nbytes):
            key, flight = next(iter(self._flights.items()))
            self._detach(flight, key)

    def resize(self, capacity: int, *, nbytes: int | str | None = None) -> None:
        """Set other bounds, and evict the oldest entries until they hold.

        A production under way that no longer fits goes on, and its value is not kept.

        Parameters
        ----------
        capacity : int
            Unit: entries; 0 disables the cache.
        nbytes : int or str, optional
            Unit: bytes; None sets no bound.

        Raises
        ------
        InvalidArgumentError
            No count or no size; nothing is changed.
        """
        entries, limit = check_entries(capacity), check_limit(nbytes)
        with self._lock:
            self._capacity, self._capacity_nbytes = entries, limit
            victims = self._shrink(0, 0)
            self._shrink_flights()
        self._tell(victims)

    def recharge(self, key: K, value: V, nbytes: int) -> bool:
        """Correct what an entry is charged, once its true size is known or has changed.

        Others are evicted if need be, and the entry itself if even an empty cache had no room for it.

        Parameters
        ----------
        key : hashable
        value : object
            What the entry has to hold; otherwise nothing is done.
        nbytes : int
            The size. Unit: bytes.

        Returns
        -------
        is_kept : bool
            Whether the cache has that very entry now; what others have put in its place meanwhile is left alone.

        Raises
        ------
        InvalidArgumentError
            `nbytes` is no size.
        """
        check_nbytes(nbytes)
        with self._lock:
            node = self._entries.find(key)
            if node is None or node.value is not value:
                return False
            self._nbytes += nbytes - node.nbytes
            self._entries.charge(node, nbytes)
            is_alone = not self._fits(len(self._flights) + 1, self._flights_nbytes + nbytes)
            victims = [self._pop(key)] if is_alone else self._shrink(0, 0)
        self._tell(victims)
        return not is_alone

    def reclaim(self, nbytes: int) -> int:
        """Evict the oldest entries until enough is given up.

        Parameters
        ----------
        nbytes : int
            What is wanted. Unit: bytes.

        Returns
        -------
        freed : int
            What was given up: less if there are no more entries. Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            `nbytes` is no size.
        """
        check_nbytes(nbytes)
        victims, freed = [], 0
        with self._lock:
            while (oldest := self._entries.first()) and freed < nbytes:
                freed += oldest.nbytes
                victims.append(self._pop(oldest.key))
        self._tell(victims)
        return freed

    def remove(self, key: K) -> bool:
        """Evict one entry, or let go of its production.

        Parameters
        ----------
        key : hashable

        Returns
        -------
        is_removed : bool
            Whether there was one.

        Raises
        ------
        InvalidArgumentError
            The key has no hash.
        """
        check_hashable("key", key)
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return self._detach(flight, key)
            victims = [self._pop(key)] if key in self._entries else []
        self._tell(victims)
        return bool(victims)

    def clear(self) -> None:
        """Evict everything. Productions under way go on, and their values are not kept."""
        with self._lock:
            victims = [self._pop(key) for key in self._entries.by_age()]
            for key, flight in list(self._flights.items()):
                self._detach(flight, key)
        self._tell(victims)

    # ---- observe

    def stats(self) -> CacheStats:
        """The counters now.

        Returns
        -------
        CacheStats
        """
        with self._lock:
            hits = self._entries.hits + self._landings
            return self._stats(hits=hits, entries=len(self), capacity=self._capacity)

    def __repr__(self) -> str:
        bound = "" if self._capacity_nbytes is None else f" of {self._capacity_nbytes}"
        return f"<{self.name}: {len(self)} of {self._capacity} entries, {self._nbytes}{bound} bytes>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return show_stats(self.name, self.stats())

    # ---- fork

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()
        for key, flight in list(self._flights.items()):
            if not flight.survive_fork():
                self._detach(flight, key)
