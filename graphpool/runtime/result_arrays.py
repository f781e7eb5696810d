"""Arrays for results, in memory that earlier results have left."""

from __future__ import annotations

import sys
from math import prod
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from graphpool.errors import OutOfMemoryError
from graphpool.fork import Locked
from graphpool.memory._arrays import ArrayAllocator
from graphpool.memory._budget import IDLE_ARENAS

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from graphpool.memory import Budget
    from graphpool.memory._budget import Keeper

    Wanted = tuple[Hashable, tuple[int, ...], np.dtype[Any]]

__all__ = ["ResultArrays"]

_LEAST_NBYTES = 2**16
"""What the C heap keeps by itself. Larger blocks go back to the system, and their pages come zeroed, one fault each."""


_SLACK = 8
"""A key whose arrays grow gets room for an eighth more: each word that a model generates makes its caches longer."""


def _references(arrays: list[Any], number: int) -> int:
    return sys.getrefcount(arrays[number])


_ALONE = _references([object()], 0)
"""References to what only the list holds, however this interpreter counts those of a call."""

_COUNTS = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a count of references is exact: without a GIL other threads keep parts of it."""


class ResultArrays(Locked):
    """Hands out dense arrays; memory that nobody can reach any more goes to the next array of its key that fits.

    What is handed out refers to the memory's owner, which stays here, as every view of it and every buffer over it
    does: memory is free when nobody but this object refers to its owner.

    Parameters
    ----------
    budget : Budget
        Charged for every array until its memory is free, and for what is kept here, which it may ask back.
    holder : str
        Who asks; named in errors.
    grows : bool, default=True
        Whether arrays of a key that grow get room for more.
    keeper : object, optional
        Whom they are for: see `Budget.register`.

    Notes
    -----
    Ownership: memory belongs to whoever holds a view; here it is kept between runs, as much for each key as the largest
    of its arrays so far takes. Threads: safe. Cost: a microsecond; a fresh array of 1.5 MB costs 400 page faults more.
    """

    def __init__(self, budget: Budget, holder: str, grows: bool = True, keeper: Keeper | None = None) -> None:
        super().__init__()
        self._owners: dict[Hashable, list[np.ndarray[Any, Any]]] = {}
        self._largest: dict[Hashable, int] = {}
        self._grows = grows
        self._budget, self.holder = budget, holder
        self._allocators: WeakSet[ArrayAllocator] = WeakSet()
        self.idle_since = monotonic()
        budget.register(self, stage=IDLE_ARENAS, keeper=keeper)

    def allocator(self) -> ArrayAllocator:
        """What one run at a time reserves and makes arrays with."""
        made = ArrayAllocator(self._budget, self.holder)
        with self._lock:
            self._allocators.add(made)
        return made

    def take(
        self, wanted: Mapping[int, Wanted], arrays: ArrayAllocator, fresh: dict[int, Any], most: int, nbytes: int
    ) -> None:
        """Put arrays into `fresh` that share no memory with any that somebody holds; their content is undefined.

        Parameters
        ----------
        wanted : mapping of int to (key, shape, dtype)
            Arrays of one key take one another's place.
        arrays : ArrayAllocator
            One of `allocator`.
        fresh : dict of int to ndarray
        most : int
            Arrays of a key to keep: two for each thread that runs, whose variable holds the last result until the next
            is there.
        nbytes : int
            What the run needs with all of them: what is not taken from here is reserved at once. Unit: bytes.

        Raises
        ------
        OutOfMemoryError
            The budget or the system has no memory for it.
        """
        rooms: dict[int, int] = {}
        spare = 0
        for number, (key, shape, dtype) in wanted.items():
            size = prod(shape) * dtype.itemsize
            found, room = self._look_up(key, size, most)
            if found is None:
                rooms[number] = room
                spare += room - size
            else:
                fresh[number] = np.ndarray(shape, dtype, found)
                nbytes -= size
        try:
            arrays.reserve(nbytes + spare)
        except OutOfMemoryError:
            if not spare:
                raise
            arrays.reserve(nbytes)
            spare = 0
        for number, room in rooms.items():
            key, shape, dtype = wanted[number]
            fresh[number] = self._make(key, shape, dtype, room if spare else 0, arrays)

    def _look_up(self, key: Hashable, nbytes: int, most: int) -> tuple[np.ndarray[Any, Any] | None, int]:
        """Memory that is free, or how much to make."""
        if not _COUNTS or nbytes < _LEAST_NBYTES:
            return None, nbytes
        with self._lock:
            self.idle_since = monotonic()
            owners = self._owners.setdefault(key, [])
            for number in range(len(owners)):
                if nbytes <= owners[number].nbytes <= 2 * nbytes and _references(owners, number) == _ALONE:
                    return owners[number], nbytes
            is_growing = self._grows and any(owner.nbytes < nbytes for owner in owners)
            del owners[: max(len(owners) - most + 1, 0)]
            room = nbytes + nbytes // _SLACK if is_growing else nbytes
            self._largest[key] = max(room, self._largest.get(key, 0))
            self._drop_idle(owners, self._largest[key] - room)
            return None, room

    def _drop_idle(self, owners: list[np.ndarray[Any, Any]], most_nbytes: int) -> None:
        """Free arrays that nobody uses, the oldest first, until they take so much at most. The lock is held."""
        idle = [number for number in range(len(owners)) if _references(owners, number) == _ALONE]
        held = sum(owners[number].nbytes for number in idle)
        for count, number in enumerate(idle):
            if held > most_nbytes:
                held -= owners.pop(number - count).nbytes

    def _make(
        self, key: Hashable, shape: tuple[int, ...], dtype: np.dtype[Any], room: int, arrays: ArrayAllocator
    ) -> np.ndarray[Any, Any]:
        size = prod(shape) * dtype.itemsize
        if not _COUNTS or size < _LEAST_NBYTES:
            return arrays.empty(shape, dtype)
        owner = arrays.empty((max(room, size),), np.dtype(np.uint8))
        with self._lock:
            self._owners.setdefault(key, []).append(owner)
        return np.ndarray(shape, dtype, owner)

    def clear(self) -> int:
        """Keep nothing, and return the bytes that nobody uses; what somebody holds stays his."""
        with self._lock:
            freed = self.reclaim(self.held)
            self._owners.clear()
            self._largest.clear()
        return freed

    # ---- for the budget

    @property
    def held(self) -> int:
        """Memory that is kept and that nobody uses. Unit: bytes."""
        with self._lock:
            return sum(
                owners[number].nbytes
                for owners in self._owners.values()
                for number in range(len(owners))
                if _references(owners, number) == _ALONE
            )

    def blocks(self) -> list[tuple[int, int]]:
        """Address and size of large arrays."""
        with self._lock:
            owners = [owner for found in self._owners.values() for owner in found]
        return [(owner.__array_interface__["data"][0], owner.nbytes) for owner in owners]

    @property
    def used(self) -> int:
        """Memory that somebody uses. Unit: bytes."""
        with self._lock:
            return max(sum(allocator.nbytes for allocator in self._allocators) - self.held, 0)

    @property
    def pending(self) -> int:
        """What runs have reserved and give back at their end. Unit: bytes."""
        with self._lock:
            return sum(allocator.reserved for allocator in self._allocators)

    @property
    def reclaimable(self) -> int:
        """What `reclaim` could free now. Unit: bytes."""
        return self.held

    def reclaim(self, nbytes: int) -> int:
        """Free memory that nobody uses, until so many bytes are free; returns them."""
        freed = 0
        with self._lock:
            for owners in self._owners.values():
                for number in reversed(range(len(owners))):
                    if freed < nbytes and _references(owners, number) == _ALONE:
                        freed += owners.pop(number).nbytes
        return freed

    def trim(self, idle_s: float = 0.0, now_s: float | None = None) -> int:
        """Free what nobody uses, if no array was asked for so long; returns the bytes."""
        is_idle = (monotonic() if now_s is None else now_s) - self.idle_since >= idle_s
        return self.reclaim(self.held) if is_idle else 0
