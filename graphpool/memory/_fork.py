"""What survives a fork: every object with locks or leases is told, in the child, that only one thread is left."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet

__all__ = ["Locked", "reset_in_child"]


class _Resettable(Protocol):
    def _reset_in_child(self) -> None: ...


_live: WeakSet[_Resettable] = WeakSet()


def reset_in_child(item: _Resettable) -> None:
    """Call ``item._reset_in_child()`` in every child that is forked from now on; `item` is held weakly."""
    _live.add(item)


class Locked:
    """Base of what has a lock: re-entrant, since a collected lease may call in at any moment, and free in a child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()


def _reset_all() -> None:
    for item in list(_live):
        item._reset_in_child()


os.register_at_fork(after_in_child=_reset_all)
