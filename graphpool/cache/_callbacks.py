"""Callbacks on eviction: run outside every lock, and none of them can stop another one or the cache."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Callbacks", "report_unraisable"]

K = TypeVar("K")
V = TypeVar("V")


class Callbacks(Generic[K, V]):
    """The functions to call with each (key, value) that leaves a cache. The tuple is replaced, never changed."""

    def __init__(self) -> None:
        self._functions: tuple[Callable[[K, V], object], ...] = ()

    def add(self, function: Callable[[K, V], object]) -> Callable[[], None]:
        """Call `function` from now on; returns what ends that."""
        self._functions = (*self._functions, function)
        return lambda: self._remove(function)

    def _remove(self, function: Callable[[K, V], object]) -> None:
        self._functions = tuple(f for f in self._functions if f is not function)

    def run(self, left: Iterable[tuple[K, V]]) -> None:
        """Call every function for every pair; an error is reported through `sys.unraisablehook`."""
        functions = self._functions
        for key, value in left:
            for function in functions:
                try:
                    function(key, value)
                except Exception as error:
                    report_unraisable(error, function)


def report_unraisable(error: Exception, function: Any) -> None:
    """Say that `function`, which was only told something, has failed."""
    report = SimpleNamespace(
        exc_type=type(error),
        exc_value=error,
        exc_traceback=error.__traceback__,
        err_msg="Exception ignored that a cache told something",
        object=function,
    )
    sys.unraisablehook(cast("sys.UnraisableHookArgs", report))
