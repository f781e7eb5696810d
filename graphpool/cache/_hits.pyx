"""What a look-up of a constant tensor cache does when the constant is there, compiled: no lock of the cache is taken.

A hit is counted in its entry, under the entry's own critical section, so that threads that use distinct constants do
not meet. The policy is told of hits before it is next asked or told anything else, in the order of the last hit of each
entry: recency is what it would be if it had been told at once.
"""

cimport cython
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from graphpool._atomic cimport gp_load
from graphpool.cache._handle cimport EVICTED, ConstantBuffer, ConstantHandle
from graphpool.cache._lookup cimport gpc_look_up

import threading
import weakref

from graphpool.cache._check import check_nbytes
from graphpool.cache._flight import Flight
from graphpool.errors import InvalidArgumentError, check_hashable, explain


@cython.final
cdef class Entry:
    """What the cache knows of a key. Changed under the cache's lock, but for its hits.

    Attributes
    ----------
    full : tuple
        Backend id and backend key.
    item : Item
    flight : Flight
        Of its production.
    buffer : ConstantBuffer or None
        None while it is produced.
    """

    cdef readonly tuple full
    cdef readonly object item
    cdef readonly object flight
    cdef readonly ConstantBuffer buffer
    cdef list handles           # weak references
    cdef int64_t hits           # look-ups that the policy was not told of
    cdef int64_t last_hit_ns
    cdef bint has_left

    def __init__(self, tuple full not None, item):
        self.full = full
        self.item = item
        self.flight = Flight(full, item.nbytes)
        self.handles = []

    def keep(self, ConstantBuffer buffer not None):
        """Have the constant from now on."""
        with cython.critical_section(self):
            self.buffer = buffer

    def leave(self):
        """Be found no more."""
        with cython.critical_section(self):
            self.has_left = True

    def attach(self, ConstantHandle handle not None):
        """Bind a handle, and tell it when the entry leaves."""
        if handle.bind(self.buffer):
            others = [other for other in self.live_handles() if other is not handle]
            self.handles = [weakref.ref(bound) for bound in (*others, handle)]

    def detach(self, ConstantHandle handle):
        """Tell a handle nothing any more: who had it bound has no use for it."""
        self.handles = [weakref.ref(other) for other in self.live_handles() if other is not handle]

    def live_handles(self):
        """The handles that were bound and still exist."""
        return [handle for handle in [ref() for ref in self.handles] if handle is not None]

    def take_uses(self):
        """Uses through handles since the last call."""
        return sum([handle.take_hits() for handle in self.live_handles()])

    cdef int64_t take_hits(self):
        """Look-ups since the last call."""
        cdef int64_t hits
        with cython.critical_section(self):
            hits, self.hits = self.hits, 0
        return hits


def _by_last_hit(Entry entry not None):
    return entry.last_hit_ns


cdef class HitPath:
    """Entries, what hits need of them, and the policy that is told of their uses.

    Notes
    -----
    Threads: safe; those that look up distinct constants share nothing but the table of entries, which they only read.
    Cost of a hit: one look-up in a dict and the time of day, together about a tenth of a microsecond.
    """

    cdef public object _lock
    cdef public object _guard   # PolicyGuard, set by who owns one
    cdef readonly dict _entries
    cdef public int64_t _hits   # those that the policy was told of, and of entries that have left
    cdef public object _record  # UseRecorder, or None
    cdef list touched           # entries that were hit since the policy was last told, each once

    def __init__(self):
        self._lock = threading.RLock()
        self._entries = {}
        self.touched = []

    def get_or_add(self, backend_id, key, nbytes, producer, *, resource=None, cost=None, ConstantHandle handle=None):
        """The constant; the first caller produces it, those who come meanwhile wait.

        Parameters
        ----------
        backend_id, key : hashable
            `key` holds everything that the bytes depend on: identity of the weight, layout, transform.
        nbytes : int
            Size of the constant. Unit: bytes.
        producer : callable
            ``producer() -> ConstantBuffer``; with `resource`, ``producer(buffer)`` fills a writable buffer that the
            cache has allocated there. It may use the cache for other keys.
        resource : MemoryResource, optional
            Where the cache allocates; kept alive by the buffer.
        cost : float, optional
            What producing costs, for the policy. Unit: seconds; by default estimated from `nbytes`.
        handle : ConstantHandle, optional
            Bound to the constant, for warm uses.

        Returns
        -------
        buffer : ConstantBuffer or None
            It lives as long as the caller refers to it, whatever happens to the entry. None if it would not be kept:
            nothing was produced, and a kernel that needs no such constant should run.

        Raises
        ------
        StateError
            The producer asks, directly or through other threads, for the key that it is to produce.
        InvalidArgumentError
            `nbytes` is not a size, a part of the key has no hash, the producer returned no buffer or a larger one, or
            `handle` is of another key.
        Exception
            What the producer, the resource or the policy raised; all who waited get it, and no entry is left.
        """
        cdef tuple full = (backend_id, key)
        buffer = self._find(full, nbytes, handle)
        return self._produce(full, nbytes, producer, resource, cost, handle) if buffer is None else buffer

    def find(self, tuple full not None, nbytes, ConstantHandle handle=None):
        """The constant if it is there, counted as a hit; else None.

        Parameters
        ----------
        full : tuple
            Backend id and backend key.
        nbytes : int
            Size of the constant. Unit: bytes.
        handle : ConstantHandle, optional
            Bound to the constant.

        Raises
        ------
        InvalidArgumentError
            `nbytes` is not a size, or `handle` is of another key.
        """
        return self._find(full, nbytes, handle)

    cdef object _find(self, tuple full, object nbytes, ConstantHandle handle):
        if type(nbytes) is not int or nbytes < 0:
            check_nbytes(nbytes)
        if handle is not None and handle.key != full:
            raise InvalidArgumentError(explain("handle of another entry", accepted=repr(full), got=repr(handle.key)))
        if self._record is not None or (handle is not None and gp_load(&handle.word) & EVICTED):
            return self._find_and_bind(full, handle)
        try:
            entry = gpc_look_up(self._entries, full)
        except TypeError:
            check_hashable("key", full)
            raise
        return None if entry is None else self._hit(<Entry>entry)

    def _find_and_bind(self, tuple full, ConstantHandle handle):
        """The same under the lock: uses are recorded in order, and no handle is bound to an entry that has left."""
        check_hashable("key", full)
        with self._lock:
            entry = gpc_look_up(self._entries, full)
            if entry is None or entry.buffer is None:
                return None
            self.count_hit(entry, handle)
            return entry.buffer

    def count_hit(self, Entry entry not None, ConstantHandle handle):
        """Count a hit of an entry that is in the cache; record it, or bind the handle. Under the lock.

        Parameters
        ----------
        entry : Entry
            In the cache.
        handle : ConstantHandle or None
            Is bound to the entry, where no uses are being recorded.
        """
        self._hit(entry)
        if self._record is not None:
            self._record.note(entry.full, entry.item._replace(uses=1))
        elif handle is not None and not handle.is_valid:
            entry.attach(handle)

    cdef ConstantBuffer _hit(self, Entry entry):
        """The constant, counting a hit; None while it is produced, and when it has left meanwhile."""
        cdef ConstantBuffer buffer
        cdef bint is_first = False
        cdef timespec now
        with cython.critical_section(entry):
            buffer = None if entry.has_left else entry.buffer
            if buffer is not None:
                clock_gettime(CLOCK_MONOTONIC, &now)
                entry.last_hit_ns = <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec
                is_first = entry.hits == 0
                entry.hits += 1
        if is_first:
            with cython.critical_section(entry, self):
                if not entry.has_left:      # else nobody would take it off the list, and it keeps its buffer
                    self.touched.append(entry)
        return buffer

    def _tell_hits(self):
        """Tell the policy of the hits since the last call. Under the lock."""
        if not self.touched:
            return
        with cython.critical_section(self):
            touched, self.touched = self.touched, []
        for entry in sorted(touched, key=_by_last_hit):
            self._tell_hits_of(entry)

    def _tell_hits_of(self, Entry entry not None):
        """Tell the policy of the hits of one entry, unless it has left. Under the lock."""
        cdef int64_t hits = entry.take_hits()
        self._hits += hits
        if hits and gpc_look_up(self._entries, entry.full) is entry:
            # not an equal key: dicts then compare no contents
            self._guard.tell(self._guard.policy.on_hit, entry.full, hits)
