"""The compiled forms of a model: the least recently used one is given up first, and closed after its last run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from graphpool.errors import OutOfMemoryError, StateError, explain
from graphpool.fork import reset_in_child

from .resizable_form import SizedForm

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

__all__ = ["FormCache", "FormUse"]

Form = TypeVar("Form", bound=SizedForm)

_MOST_BORROWED = 16
"""Runs of one shape on a form whose decisions were taken for others; a compilation takes as long as several runs."""


@dataclass
class FormUse(Generic[Form]):
    """A form, the runs that use it now, and whether it is to be closed after the last of them."""

    executable: Form
    users: int = 0
    is_retired: bool = False
    hits: int = 0


class FormCache(Generic[Form]):
    """Up to `capacity` forms of a model by key; one is made at a time. Counters as in `ModelStats`.

    Ownership: owns the forms. Threads: safe, also in a forked child.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self._name, self._capacity = name, capacity
        self._entries: OrderedDict[Hashable, FormUse[Form]] = OrderedDict()
        self.runs = self.hits = self.misses = self.evictions = 0
        self.is_closed = False
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        """Fresh locks: in a forked child nobody is left who would release the old ones."""
        self._lock = threading.Lock()
        self._compiling = threading.Lock()

    def check_open(self) -> None:
        """Raise `StateError` after `close`."""
        if self.is_closed:
            raise StateError(explain(f"{self._name} is closed", hint="load the model again"))

    def enter(self, key: Hashable, make: Callable[[bool], Form]) -> FormUse[Form]:
        """The form of this key, made if need be; it stays open until `leave`.

        `make` takes whether each of its decisions must be the one that is fastest. A form of which that does not hold
        is replaced when it has been found often.
        """
        use = self._look_up(key)
        if use is None:
            with self._compiling:
                use = self._look_up(key) or self._add(key, make(False))
        elif use.hits == _MOST_BORROWED and use.executable.is_borrowed:
            with self._compiling, suppress(OutOfMemoryError):
                use = self._replace(key, use, make(True))
        return use

    def _replace(self, key: Hashable, old: FormUse[Form], executable: Form) -> FormUse[Form]:
        """The use of another form for a key, instead of one of the old."""
        with self._lock:
            use = FormUse(executable, users=1, is_retired=self.is_closed or self._entries.get(key) is not old)
            if not use.is_retired:
                self._entries[key] = use
        self.leave(old)
        if not use.is_retired:
            self._retire([old])
        return use

    def _look_up(self, key: Hashable) -> FormUse[Form] | None:
        with self._lock:
            self.check_open()
            use = self._entries.get(key)
            if use is not None:
                self._entries.move_to_end(key)
                self.hits += 1
                use.hits += 1
                use.users += 1
            return use

    def _add(self, key: Hashable, executable: Form) -> FormUse[Form]:
        use = FormUse(executable, users=1)
        retired = []
        with self._lock:
            self.misses += 1
            use.is_retired = self.is_closed
            if not self.is_closed:
                self._entries[key] = use
                while len(self._entries) > self._capacity:
                    retired.append(self._entries.popitem(last=False)[1])
                    self.evictions += 1
        self._retire(retired)
        return use

    def leave(self, use: FormUse[Form], runs: int = 0) -> None:
        """End a use, which so many runs were."""
        with self._lock:
            self.runs += runs
            use.users -= 1
            is_last = use.is_retired and use.users == 0
        if is_last:
            use.executable.close()

    def _retire(self, uses: Sequence[FormUse[Form]]) -> None:
        """Close forms now, or after the last run that uses them."""
        for use in uses:
            with self._lock:
                use.is_retired = True
                is_idle = use.users == 0
            if is_idle:
                use.executable.close()

    def forms(self) -> list[Form]:
        """Those that are kept, the one used last at the end."""
        with self._lock:
            return [use.executable for use in self._entries.values()]

    def clear(self, *, closes: bool = False) -> None:
        """Give up all forms; with `closes`, refuse further ones."""
        with self._lock:
            self.is_closed |= closes
            retired = list(self._entries.values())
            self._entries.clear()
        self._retire(retired)
