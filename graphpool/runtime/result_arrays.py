"""Arrays for results, in memory that earlier results have left."""

from __future__ import annotations

import os
import sys
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import OutOfMemoryError, explain
from graphpool.fork import Locked

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["ResultArrays", "empty_array"]

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


def empty_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array whose content is undefined; raises `OutOfMemoryError` where the system has no memory for it."""
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        raise OutOfMemoryError(
            explain("the system has no memory for a result", got=f"{dtype} {shape}"),
            requested=prod(shape) * dtype.itemsize, in_use=0, limit=limit, resource="system", smallest_limit=None,
        ) from error  # fmt: skip


class ResultArrays(Locked):
    """Hands out dense arrays; memory that nobody can reach any more goes to the next array of its key that fits.

    What is handed out refers to the memory's owner, which stays here, as every view of it and every buffer over it
    does: memory is free when nobody but this object refers to its owner.

    Notes
    -----
    Ownership: memory belongs to whoever holds a view; here it is kept between runs, as much for each key as `most` of
    its arrays take, and not counted. Threads: safe. Cost: a microsecond; a fresh array of 1.5 MB costs 400 page faults
    more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[Hashable, list[np.ndarray[Any, Any]]] = {}

    def take(self, key: Hashable, shape: tuple[int, ...], dtype: np.dtype[Any], most: int = 2) -> np.ndarray[Any, Any]:
        """An array that shares memory with no other that anybody holds; its content is undefined.

        Parameters
        ----------
        key : hashable
            Arrays of one key take one another's place.
        shape : tuple of int
        dtype : numpy.dtype
        most : int, default=2
            Arrays of the key to keep: two for each thread that runs, whose variable holds the last result until the
            next is there.

        Raises
        ------
        OutOfMemoryError
            The system has no memory for it.
        """
        nbytes = prod(shape) * dtype.itemsize
        if not _COUNTS or nbytes < _LEAST_NBYTES:
            return empty_array(shape, dtype)
        with self._lock:
            owners = self._owners.setdefault(key, [])
            for number in range(len(owners)):
                if nbytes <= owners[number].nbytes <= 2 * nbytes and _references(owners, number) == _ALONE:
                    return np.ndarray(shape, dtype, owners[number])
            is_growing = any(owner.nbytes < nbytes for owner in owners)
            del owners[: max(len(owners) - most + 1, 0)]
            room = nbytes + nbytes // _SLACK if is_growing else nbytes
            owners.append(empty_array((room,), np.dtype(np.uint8)))
            return np.ndarray(shape, dtype, owners[-1])

    def clear(self) -> None:
        """Keep nothing; what somebody holds stays his."""
        with self._lock:
            self._owners.clear()
