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

V = TypeVar("V")
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
        self._begun = 0
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        """Fresh locks: in a forked child nobody is left who would release the old ones."""
        self._lock = threading.Lock()
        self._compiling = threading.Lock()
        self._turn = threading.Lock()  # of runs that found too little memory beside others
        self._changed = threading.Condition(self._lock)
        self._running: list[int] = []  # threads
        self._has_turn = False

    def check_open(self) -> None:
        """Raise `StateError` after `close`."""
        if self.is_closed:
            raise StateError(explain(f"{self._name} is closed", hint="load the model again"))

    def exclusively(self, work: Callable[[], None]) -> None:
        """Do something while no form is made."""
        with self._compiling:
            self.check_open()
            work()

    # ---- runs: one that finds too little memory beside others lets go of all, and goes on when it is alone

    def begin(self) -> int:
        """Count a run of this thread, once nobody needs to be alone; its number, 0 unless no other is going on."""
        with self._lock:
            while self._has_turn:
                self._changed.wait()
            return self._count_run()

    def _count_run(self) -> int:
        self._begun += 1
        self._running.append(threading.get_ident())
        return self._begun if len(self._running) == 1 else 0

    def end(self) -> None:
        """End a run of this thread."""
        with self._lock:
            with suppress(ValueError):  # in a child that was forked meanwhile
                self._running.remove(threading.get_ident())
            self._changed.notify_all()

    def may_fit_alone(self, number: int) -> bool:
        """Whether others were running beside a run of this thread, or began to, and may be waited for."""
        with self._lock:
            return number != self._begun and self._running.count(threading.get_ident()) == 1

    def run_alone(self, run: Callable[[], V]) -> V:
        """Run while no other run is going on, each caller in turn; no run of this thread may be."""
        with self._turn:
            with self._lock:
                self._has_turn = True
                try:
                    while self._running:
                        self._changed.wait()
                    self._count_run()
                except BaseException:
                    self._has_turn = False
                    self._changed.notify_all()
                    raise
            try:
                return run()
            finally:
                with self._lock:
                    self._has_turn = False
                self.end()

    # ---- forms

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
