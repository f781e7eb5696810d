"""What a fork does to caches: their locks are held across it, so that the child finds no half-made change."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet

__all__ = ["guard_fork", "reset_in_child"]


class _Resettable(Protocol):
    def _after_fork_in_child(self) -> None: ...


class _Guarded(_Resettable, Protocol):
    def _before_fork(self) -> None: ...

    def _after_fork_in_parent(self) -> None: ...


_guarded: WeakSet[_Guarded] = WeakSet()
_resettable: WeakSet[_Resettable] = WeakSet()
_lock = threading.RLock()  # of the two sets
_held: list[_Guarded] = []  # between the hooks of one fork


def guard_fork(cache: _Guarded) -> None:
    """Call the three hooks of `cache`, which is held weakly, around every fork from now on."""
    with _lock:
        _guarded.add(cache)


def reset_in_child(item: _Resettable) -> None:
    """Call the one hook of `item`, which is held weakly, in every child that is forked from now on."""
    with _lock:
        _resettable.add(item)


def _before() -> None:
    # No cache takes another one's lock while it holds its own, so the order of taking them does not matter.
    _lock.acquire()
    for cache in list(_guarded):
        cache._before_fork()
        _held.append(cache)


def _in_parent() -> None:
    while _held:
        _held.pop()._after_fork_in_parent()
    _lock.release()


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()
    while _held:
        _held.pop()._after_fork_in_child()
    for item in list(_resettable):
        item._after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
