"""HitPath: what a look-up of a constant tensor cache does when the constant is there, compiled."""

from libc.stdint cimport int64_t

from graphpool.cache._handle cimport ConstantHandle

import threading

from graphpool.cache._callbacks import report_unraisable
from graphpool.cache._check import check_nbytes
from graphpool.errors import InvalidArgumentError, explain


cdef class HitPath:
    """Entries under one lock, and the policy that is told of their uses.

    Notes
    -----
    Threads: `find` is safe at any moment; `count_hit` is called under the lock. Cost of a hit: the lock, one look-up
    and one call of the policy, together about a fifth of a microsecond.
    """

    cdef public object _lock
    cdef public object _policy
    cdef public dict _entries
    cdef public int64_t _hits
    cdef public list _record    # of uses in order, or None

    def __init__(self, policy):
        self._lock = threading.RLock()
        self._policy = policy
        self._entries = {}

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
            `nbytes` is not a size, the producer returned no buffer or a larger one, or `handle` is of another key.
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

    def count_hit(self, entry, buffer, ConstantHandle handle):
        """Count a hit, tell the policy, and bind the handle; the entry is in the cache. Under the lock."""
        self._count_hit(entry, buffer, handle)

    cdef object _find(self, tuple full, object nbytes, ConstantHandle handle):
        if type(nbytes) is not int or nbytes < 0:
            check_nbytes(nbytes)
        if handle is not None and handle.key != full:
            raise InvalidArgumentError(explain("handle of another entry", accepted=repr(full), got=repr(handle.key)))
        lock = self._lock
        lock.acquire()
        try:
            entry = self._entries.get(full)
            buffer = None if entry is None else entry.buffer
            if buffer is not None:
                self._count_hit(entry, buffer, handle)
            return buffer
        finally:
            lock.release()

    cdef int _count_hit(self, object entry, object buffer, ConstantHandle handle) except -1:
        self._hits += 1
        try:
            self._policy.on_hit(entry.full, 1)     # the key itself, not an equal one: dicts then compare no contents
        except Exception as error:
            report_unraisable(error, self._policy.on_hit)
        if self._record is not None:
            self._note(entry.full, entry.item._replace(uses=1))
        elif handle is not None and not handle.is_valid:
            entry.attach(handle, buffer)
        return 0
