"""Lease: the only right to an arena that Python code has."""

import warnings

from libc.stdint cimport uintptr_t

from graphpool._atomic cimport gp_exchange, gp_load
from graphpool._finalizing cimport gp_is_finalizing
from graphpool.memory._slots cimport Slot, Slots

from graphpool.errors import StateError, explain


cdef class Lease:
    """The right to one arena of a pool: unique, released once, from any thread.

    Attributes
    ----------
    pool : ArenaPool
        Kept alive by the lease.
    nbytes : int
        Size of the arena. Unit: bytes.

    Notes
    -----
    Ownership: whoever holds the token; it cannot be copied or pickled. A lease that is collected while live releases
    its arena and warns (`ResourceWarning`). Threads: safe; of two releases one raises.
    """

    cdef void hold(self, Slots pool, Slot *slot) noexcept:
        self.pool, self.nbytes, self.slot = pool, pool.nbytes, slot
        if slot != NULL:
            self.word = gp_load(&slot.word)
        self.live = 1

    @property
    def address(self):
        """Address of the arena; not zero. Raises `StateError` after the release."""
        if not self._holds():
            raise self._stale()
        return self.pool.alignment if self.slot == NULL else <uintptr_t>self.slot.address

    @property
    def is_live(self):
        """Whether the lease still holds its arena."""
        return bool(self._holds())

    def release(self):
        """Give the arena back.

        Raises
        ------
        StateError
            It was released already, or belongs to a thread that a fork left behind.
        """
        if not gp_exchange(&self.live, 0) or not self._return():
            raise self._stale()

    cdef bint _holds(self) noexcept nogil:
        return gp_load(&self.live) != 0 and (self.slot == NULL or gp_load(&self.slot.word) == self.word)

    cdef bint _return(self) noexcept nogil:
        return self.slot == NULL or self.pool.give(self.slot, self.word)

    def _stale(self):
        return StateError(
            explain("the lease holds no arena any more", accepted="one release", hint="it was released before"),
            nbytes=self.nbytes,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.release()

    def __del__(self):
        if not gp_is_finalizing() and gp_exchange(&self.live, 0) and self._return():
            warnings.warn(f"a lease of {self.pool!r} was never released", ResourceWarning, stacklevel=1, source=self)

    def __reduce__(self):
        raise TypeError("a lease cannot be copied or pickled: it is the right to one arena")

    def __repr__(self):
        return f"<Lease of {self.pool!r}, {'live' if self._holds() else 'released'}>"
