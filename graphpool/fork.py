"""What objects with locks do when the process forks. Imports nothing of graphpool, so every package may use it.

In a child one thread is left: a lock that another one held would stay held for ever, what it was changing half done.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload
from weakref import WeakSet, WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

V = TypeVar("V")


class _Resettable(Protocol):
    def _reset_in_child(self) -> None: ...


class _Guarded(_Resettable, Protocol):
    def _before_fork(self) -> None: ...

    def _after_fork_in_parent(self) -> None: ...


_guarded: WeakSet[_Guarded] = WeakSet()
_resettable: WeakValueDictionary[int, _Resettable] = WeakValueDictionary()  # by age
_ages = itertools.count()
_lock = threading.RLock()  # of all these
_held: list[_Guarded] = []  # between the hooks of one fork


def guard_fork(item: _Guarded) -> None:
    """Call the three hooks of `item`, which is held weakly, around every fork from now on.

    ``_before_fork`` takes its lock, so that the child finds no half-made change; ``_after_fork_in_parent`` and, in the
    child, ``_reset_in_child`` let go of it. While it holds that lock no thread may take another guarded one or register
    anything here.
    """
    with _lock:
        _guarded.add(item)


def reset_in_child(item: _Resettable) -> None:
    """Call ``item._reset_in_child()``, which is held weakly, in every child that is forked from now on.

    The oldest are called first: what an object uses is there before it, and usable when its turn comes.
    """
    with _lock:
        _resettable[next(_ages)] = item


class cached_property(Generic[V]):  # noqa: N801 - it is used as functools' is
    """A property that is computed when it is first read, by each of those who read it meanwhile.

    That of functools has, in Python 3.11, one lock for all objects, which a forked child would find held for ever.
    """

    def __init__(self, function: Callable[[Any], V]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        """Remember under which name the value is kept."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> V: ...

    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | V:
        """The value, which is an attribute of the object from now on."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


class Locked:
    """Base of what has a lock: re-entrant, since a finaliser may call in at any moment, and free in a child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()

    def __copy__(self) -> Self:
        """Itself: two of them would guard one state by two locks."""
        return self


def _before() -> None:
    _lock.acquire()
    for item in list(_guarded):
        item._before_fork()
        _held.append(item)


def _in_parent() -> None:
    while _held:
        _held.pop()._after_fork_in_parent()
    _lock.release()


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()
    while _held:
        _held.pop()._reset_in_child()
    for item in list(_resettable.values()):
        item._reset_in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
