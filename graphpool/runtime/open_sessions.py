"""The open sessions of a model, by which it closes them and counts their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from graphpool.fork import Locked

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Sessions"]


class Sessions(Locked):
    """Sessions, held weakly. Threads: safe."""

    def __init__(self) -> None:
        super().__init__()
        self._items: WeakSet[Session] = WeakSet()

    def add(self, session: Session) -> None:
        """One more."""
        with self._lock:
            self._items.add(session)

    def _list(self) -> list[Session]:
        with self._lock:
            return list(self._items)

    @property
    def nbytes(self) -> int:
        """Memory of all their states, shared ones counted once. Unit: bytes."""
        found = {id(b): b.nbytes for b in [session.buffers for session in self._list()] if b is not None}
        return sum(found.values())

    def close(self) -> None:
        """Close all."""
        for session in self._list():
            session.close()
