"""The compiled forms of a model: the least recently used one is given up first, and closed after its last run."""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t

import threading
from contextlib import contextmanager, suppress

from graphpool.errors import OutOfMemoryError, StateError, explain
from graphpool.fork import reset_in_child

cdef enum:
    MOST_BORROWED = 16  # runs of one shape on a form whose decisions were taken for others; compiling takes as long


cdef class FormUse:
    """A form that runs use; see `FormCache.enter`."""


cdef FormUse _use_of(object executable, int64_t users, bint is_retired):
    cdef FormUse use = FormUse.__new__(FormUse)
    use.executable, use.users, use.is_retired = executable, users, is_retired
    return use


cdef class FormCache:
    """Up to `capacity` forms of a model by key; one is made at a time. Counters as in `ModelStats`.

    Ownership: owns the forms. Threads: safe, also in a forked child: what they share is changed in critical sections,
    in which nothing is called but `dict` and `list` on keys of numbers and bytes. Cost of a run: 0.2 microseconds.
    """

    def __init__(self, str name not None, int64_t capacity):
        self.name, self.capacity = name, capacity
        self.entries = {}
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self):
        """In a forked child nobody is left who would release the old lock."""
        self.compiling = threading.Lock()
        self.using = []

    def check_open(self):
        """Raise `StateError` after `close`."""
        if self.is_closed:
            raise StateError(explain(f"{self.name} is closed", hint="load the model again"))

    def exclusively(self, work):
        """What something returns that is done while no form is made, nor given up."""
        with self.in_use(), self.compiling:
            self.check_open()
            return work()

    @contextmanager
    def in_use(self):
        """Be busy on behalf of this thread: nothing is given up meanwhile."""
        self.using.append(PyThread_get_thread_ident())
        try:
            yield
        finally:
            self._end_use()

    # ---- forms

    cpdef FormUse enter(self, key, make, tuple given=()):
        """The form of this key, made if need be; it stays open until `leave`.

        `make` takes whether each of its decisions must be the one that is fastest, and what is `given`. A form of which
        that does not hold is replaced when it has been found often.
        """
        cdef FormUse use
        self.using.append(PyThread_get_thread_ident())
        try:
            use = self._look_up(key)
            if use is None:
                with self.compiling:
                    use = self._look_up(key) or self._add(key, make(False, *given))
            elif use.hits == MOST_BORROWED and use.executable.is_borrowed:
                with self.compiling, suppress(OutOfMemoryError):
                    use = self._replace(key, use, make(True, *given))
        except BaseException:
            self._end_use()
            raise
        return use

    def _end_use(self):
        with suppress(ValueError):  # in a child that was forked meanwhile
            self.using.remove(PyThread_get_thread_ident())

    cdef FormUse _look_up(self, object key):
        cdef FormUse use
        with cython.critical_section(self):
            if self.is_closed:
                self.check_open()
            use = <FormUse>self.entries.get(key)
            if use is not None:
                if use is not self.newest:
                    del self.entries[key]
                    self.entries[key] = self.newest = use
                self.hits += 1
                use.hits += 1
                use.users += 1
        return use

    cdef FormUse _take_out(self, object key):
        """Take an entry out. In the critical section."""
        cdef FormUse use = self.entries.pop(key)
        if use is self.newest:
            self.newest = None
        return use

    cdef FormUse _add(self, object key, object executable):
        cdef FormUse use
        cdef list retired = []
        with cython.critical_section(self):
            self.misses += 1
            use = _use_of(executable, 1, self.is_closed)
            if not self.is_closed:
                self.entries[key] = self.newest = use
                while len(self.entries) > self.capacity:
                    retired.append(self._take_out(next(iter(self.entries))))
                    self.evictions += 1
        self._retire(retired)
        return use

    cdef FormUse _replace(self, object key, FormUse old, object executable):
        """The use of another form for a key, instead of one of the old."""
        cdef FormUse use
        with cython.critical_section(self):
            use = _use_of(executable, 1, self.is_closed or self.entries.get(key) is not old)
            if not use.is_retired:
                self._take_out(key)
                self.entries[key] = self.newest = use
        self._leave(old, 0)
        if not use.is_retired:
            self._retire([old])
        return use

    cpdef leave(self, FormUse use, int64_t runs=0):
        """End a use, by the thread that has entered, which so many runs were that gave results."""
        try:
            self.using.remove(PyThread_get_thread_ident())
        except ValueError:  # in a child that was forked meanwhile
            pass
        self._leave(use, runs)

    cdef int _leave(self, FormUse use, int64_t runs) except -1:
        cdef bint is_last
        with cython.critical_section(self):
            self.runs += runs
            use.users -= 1
            is_last = use.is_retired and use.users == 0
        if is_last:
            use.executable.close()
        return 0

    cdef int _retire(self, list uses) except -1:
        """Close forms now, or after the last run that uses them."""
        cdef FormUse use
        cdef bint is_idle
        for use in uses:
            with cython.critical_section(self):
                use.is_retired = True
                is_idle = use.users == 0
            if is_idle:
                use.executable.close()
        return 0

    # ---- who is at work

    @property
    def is_busy(self):
        """Whether a form is in use or being made."""
        return bool(self.using)

    def is_used_by(self, thread):
        """Whether one is by this thread."""
        return thread in self.using

    def take_idle(self, others, keep):
        """All forms, and the `others` that they are made of, for the caller to close; None while the model is busy.

        `keep` is told of them while no form can be made.
        """
        cdef FormUse use
        if not self.compiling.acquire(blocking=False):
            return None
        try:
            with cython.critical_section(self):
                if self.using or self.is_closed:
                    return None
                kept = [use.executable for use in self.entries.values()]
                self.entries, self.newest = {}, None
            kept += others.take()
            keep(kept)
            return kept
        finally:
            self.compiling.release()

    # ---- for the budget: forms that others can be made of again in a fraction of a millisecond

    cdef list _uses(self):
        """(key, use) of each form, the one used longest ago first."""
        with cython.critical_section(self):
            return list(self.entries.items())

    @property
    def held(self):
        """Memory of their programs. Unit: bytes."""
        return sum([form.own_nbytes for form in self.forms() if form.is_resized])

    @property
    def reclaimable(self):
        """What `reclaim` could free now. Unit: bytes."""
        cdef FormUse use
        found = [use.executable for _, use in self._uses() if use.users == 0]
        return sum([form.own_nbytes for form in found if form.is_resized])

    def reclaim(self, nbytes):
        """Give up forms that nobody uses until so many bytes are free; returns them."""
        cdef FormUse use
        cdef list retired = []
        cdef int64_t freed = 0
        for key, use in self._uses():
            if freed < nbytes and use.executable.is_resized:
                with cython.critical_section(self):
                    if use.users == 0 and self.entries.get(key) is use:
                        retired.append(self._take_out(key))
                        self.evictions += 1
                if retired and retired[-1] is use:
                    freed += use.executable.own_nbytes
        self._retire(retired)
        return freed

    def forms(self):
        """Those that are kept, the one used last at the end."""
        cdef FormUse use
        return [use.executable for _, use in self._uses()]

    def clear(self, *, bint closes=False):
        """Give up all forms; with `closes`, refuse further ones. Whether they were refused already."""
        with cython.critical_section(self):
            was_closed, self.is_closed = self.is_closed, self.is_closed or closes
            retired, self.entries, self.newest = list(self.entries.values()), {}, None
        self._retire(retired)
        return was_closed
