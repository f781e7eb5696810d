"""The compiled forms of a model: the least recently used one is given up first, and closed after its last run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from graphpool.errors import OutOfMemoryError, StateError, explain
from graphpool.fork import reset_in_child

from .resizable_form import ResizableForm

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from .variable_forms import VariableForms

__all__ = ["FormCache", "FormUse"]

Form = TypeVar("Form", bound=ResizableForm)

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
        self._using: list[int] = []  # threads that ask for a form or have one

    def check_open(self) -> None:
        """Raise `StateError` after `close`."""
        if self.is_closed:
            raise StateError(explain(f"{self._name} is closed", hint="load the model again"))

    def exclusively(self, work: Callable[[], None]) -> None:
        """Do something while no form is made, nor given up."""
        with self.in_use(), self._compiling:
            self.check_open()
            work()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Be busy on behalf of this thread: nothing is given up meanwhile."""
        self._using.append(threading.get_ident())
        try:
            yield
        finally:
            self._end_use()

    # ---- forms

    def enter(self, key: Hashable, make: Callable[[bool], Form]) -> FormUse[Form]:
        """The form of this key, made if need be; it stays open until `leave`.

        `make` takes whether each of its decisions must be the one that is fastest. A form of which that does not hold
        is replaced when it has been found often.
        """
        self._using.append(threading.get_ident())
        try:
            use = self._look_up(key)
            if use is None:
                with self._compiling:
                    use = self._look_up(key) or self._add(key, make(False))
            elif use.hits == _MOST_BORROWED and use.executable.is_borrowed:
                with self._compiling, suppress(OutOfMemoryError):
                    use = self._replace(key, use, make(True))
        except BaseException:
            self._end_use()
            raise
        return use

    def _end_use(self) -> None:
        with suppress(ValueError):  # in a child that was forked meanwhile
            self._using.remove(threading.get_ident())

    def _replace(self, key: Hashable, old: FormUse[Form], executable: Form) -> FormUse[Form]:
        """The use of another form for a key, instead of one of the old."""
        with self._lock:
            use = FormUse(executable, users=1, is_retired=self.is_closed or self._entries.get(key) is not old)
            if not use.is_retired:
                self._entries[key] = use
        self._leave(old)
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
        """End a use, by the thread that has entered, which so many runs were."""
        self._end_use()
        self._leave(use, runs)

    def _leave(self, use: FormUse[Form], runs: int = 0) -> None:
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

    # ---- who is at work

    @property
    def is_busy(self) -> bool:
        """Whether a form is in use or being made."""
        return bool(self._using)

    def is_used_by(self, thread: int) -> bool:
        """Whether one is by this thread."""
        return thread in self._using

    def take_idle(self, others: VariableForms[Form], keep: Callable[[list[Form]], None]) -> list[Form] | None:
        """All forms, and the `others` that they are made of, for the caller to close; None while the model is busy.

        `keep` is told of them while no form can be made.
        """
        if not self._compiling.acquire(blocking=False):
            return None
        try:
            with self._lock:
                if self.is_busy or self.is_closed:
                    return None
                kept = [use.executable for use in self._entries.values()]
                self._entries.clear()
            kept += others.take()
            keep(kept)
            return kept
        finally:
            self._compiling.release()

    # ---- for the budget: forms that others can be made of again in a fraction of a millisecond

    def _idle(self) -> list[Hashable]:
        """Keys of such forms that nobody uses, the least recently used first. The lock is held."""
        return [key for key, use in self._entries.items() if use.users == 0 and use.executable.is_resized]

    @property
    def held(self) -> int:
        """Memory of their programs. Unit: bytes."""
        return sum(form.own_nbytes for form in self.forms() if form.is_resized)

    @property
    def reclaimable(self) -> int:
        """What `reclaim` could free now. Unit: bytes."""
        with self._lock:
            return sum(self._entries[key].executable.own_nbytes for key in self._idle())

    def reclaim(self, nbytes: int) -> int:
        """Give up forms that nobody uses until so many bytes are free; returns them."""
        freed, retired = 0, []
        with self._lock:
            for key in self._idle():
                if freed < nbytes:
                    retired.append(self._entries.pop(key))
                    freed += retired[-1].executable.own_nbytes
            self.evictions += len(retired)
        self._retire(retired)
        return freed

    def forms(self) -> list[Form]:
        """Those that are kept, the one used last at the end."""
        with self._lock:
            return [use.executable for use in self._entries.values()]

    def clear(self, *, closes: bool = False) -> bool:
        """Give up all forms; with `closes`, refuse further ones. Whether they were refused already."""
        with self._lock:
            was_closed, self.is_closed = self.is_closed, self.is_closed or closes
            retired = list(self._entries.values())
            self._entries.clear()
        self._retire(retired)
        return was_closed
