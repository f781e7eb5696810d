"""Callbacks on eviction: run outside every lock, and none of them can stop another one or the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .._unraisable import report_unraisable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
