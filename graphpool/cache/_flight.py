"""Single flight: one thread produces a value, the others wait for it, and nobody can wait for itself."""

from __future__ import annotations

import os
import threading
from typing import Any, Generic, TypeVar, cast

from ..errors import StateError, explain

V = TypeVar("V")

_waiting: dict[int, Flight[Any]] = {}
"""Which flight each waiting thread waits for, over all caches: the edges that `Flight._check_cycle` follows."""
_waiting_lock = threading.Lock()


class Flight(Generic[V]):
    """One production under way, of a key that errors name, for which the cache has charged `nbytes`.

    Ownership: the thread that makes it is its producer, and calls `land` or `fail` once. Threads: any may wait.
    """

    def __init__(self, key: object, nbytes: int) -> None:
        self.key = key
        self.nbytes = nbytes
        self.owner = threading.get_ident()
        self._gate = _closed_gate()
        self._has_ended = False
        self._value: V | None = None
        self._error: BaseException | None = None

    def land(self, value: V) -> None:
        """Hand the value to whoever waits."""
        self._value = value
        self._end()

    def fail(self, error: BaseException) -> None:
        """Hand the error to whoever waits."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._gate.release()

    def wait(self) -> tuple[bool, V]:
        """Sleep until the production has ended; returns whether it landed, and the value if so.

        It has not where the producer was interrupted (no `Exception`): another thread should then produce. Raises what
        the producer raised, and StateError where waiting would never end: this thread is the producer, or the producer
        waits, directly or through others, for something that this thread produces.
        """
        me = threading.get_ident()
        with _waiting_lock:
            self._check_cycle(me)
            _waiting[me] = self
        try:
            with self._gate:
                pass
        finally:
            with _waiting_lock:
                _waiting.pop(me, None)
        if isinstance(self._error, Exception):
            raise self._error
        return self._error is None, cast("V", self._value)

    def _check_cycle(self, me: int) -> None:
        """Raise if the chain of producers and what they wait for leads back to the thread `me`."""
        flight: Flight[Any] | None = self
        while flight is not None and not flight._has_ended:
            if flight.owner == me:
                raise StateError(
                    explain(
                        f"the producer of {self.key!r} asks for {self.key!r} itself",
                        accepted="producers that ask for other keys, without a circle",
                        hint="take the value out of the producer's own work instead",
                    ),
                    key=self.key,
                )
            flight = _waiting.get(flight.owner)

    def survive_fork(self) -> bool:
        """Make it usable in a forked child; whether its producer is the thread that lives on there."""
        self._gate = _closed_gate()
        return self.owner == threading.get_ident()


def _closed_gate() -> threading.Lock:
    """A lock that is held until a production ends. An Event takes ten times as long to make, and few have to wait."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def _reset_waiting() -> None:
    """Forget, in a forked child, the threads that do not exist there."""
    global _waiting_lock
    _waiting_lock = threading.Lock()
    _waiting.clear()


os.register_at_fork(after_in_child=_reset_waiting)
