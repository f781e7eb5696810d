"""What a fork does to a cache: its lock is held across the fork, so that the child finds no half-made change."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["guard_fork"]


class _Guarded(Protocol):
    def _before_fork(self) -> None: ...

    def _after_fork_in_parent(self) -> None: ...

    def _after_fork_in_child(self) -> None: ...


_live: WeakSet[_Guarded] = WeakSet()
_held: list[_Guarded] = []


def guard_fork(cache: _Guarded) -> None:
    """Call the three hooks of `cache`, which is held weakly, around every fork from now on."""
    _live.add(cache)


def _before() -> None:
    # No cache takes another one's lock while it holds its own, so the order of taking them does not matter.
    for cache in list(_live):
        cache._before_fork()
        _held.append(cache)


def _in_parent() -> None:
    while _held:
        _held.pop()._after_fork_in_parent()


def _in_child() -> None:
    while _held:
        _held.pop()._after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
