"""ConstantTensorCache: a bounded cache of constants in the form that kernels want, shared by a device's backends."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from ..errors import InvalidArgumentError, StateError, brief, check_hashable, explain
from ..fork import guard_fork
from ._bounded import BoundedCache, show_stats
from ._check import check_limit, check_nbytes
from ._entry import FullKey, Outcome, Reservation
from ._handle import ConstantBuffer, ConstantHandle
from ._hits import Entry, HitPath
from .policies import Item, PolicyGuard, UseRecorder, make_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

    from ..typing import MemoryResource
    from ._bounded import CacheStats
    from .policies import Policy, PolicySource

CALL_COST_S, BYTES_PER_S = 5e-6, 10e9
"""What making a constant is taken to cost if nothing is said: a call, and one pass of packing."""


class ConstantTensorCache(HitPath, BoundedCache[FullKey, ConstantBuffer]):
    """Constants of one device, each made once and shared, within a bound in bytes.

    Parameters
    ----------
    capacity_nbytes : int or str, optional
        Most bytes, those being produced included; 0 disables the cache, None sets no bound. Unit: bytes.
    policy : str, Policy or callable, default="no_evict"
        Who leaves when a newcomer does not fit, see `make_policy`. ``"no_evict"`` turns the newcomer away.
    name : str, default="constant tensor cache"
        Shown by ``repr``.

    Raises
    ------
    InvalidArgumentError
        Not a size, or an unknown policy.

    Notes
    -----
    Keys are (backend id, backend key), compared in full. Bytes are charged from the reservation on, before any memory
    is taken, so the bound holds at every instant for what is kept; an evicted buffer lives until its last user ends and
    is not counted any more. The policy learns of hits when it is next asked or told something else.
    Ownership: buffers are co-owned by the cache and their users. Threads: every method is safe at any moment, also
    across ``fork`` and without a GIL; nobody waits, produces, frees or calls back while a lock is held. Cost: a hit
    takes no lock that users of other constants take; a warm use through a `ConstantHandle` looks nothing up.
    Source: oneDNN's RFC on the capacity of the constant tensor cache.

    Examples
    --------
    >>> from graphpool.cache import ConstantBuffer, ConstantTensorCache
    >>> cache, data = ConstantTensorCache("1KiB"), bytearray(800)
    >>> def pack():
    ...     import numpy as np
    ...     return ConstantBuffer(np.frombuffer(data, np.uint8).ctypes.data, 800, owner=data)
    >>> cache.get_or_add("cpu", "weight 1", 800, pack)  # doctest: +ELLIPSIS
    <ConstantBuffer 800 bytes at 0x...>
    >>> cache.get_or_add("cpu", "weight 2", 800, pack) is None   # it would not be kept: nothing was packed
    True
    """

    def __init__(
        self,
        capacity_nbytes: int | str | None = None,
        *,
        policy: PolicySource | None = "no_evict",
        name: str = "constant tensor cache",
    ) -> None:
        HitPath.__init__(self)
        BoundedCache.__init__(self, name, capacity_nbytes)
        self._guard = PolicyGuard(make_policy(policy), self._entries)
        self._changes = 0
        self._retired: WeakSet[Any] = WeakSet()
        self._entries_of: dict[int, dict[FullKey, Entry]] = {}  # produced, by the id of their memory's resource
        guard_fork(self)

    @property
    def changes(self) -> int:
        """How often something has left or the bound or the policy was set: until then, what was declined stays so.

        Policies that learn may decide otherwise all the same; ask them now and then.
        """
        return self._changes

    @property
    def policy(self) -> Policy:
        """Who decides."""
        return self._guard.policy

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> list[FullKey]:
        """The (backend id, backend key) of every entry, those being produced included.

        Returns
        -------
        list of FullKey
        """
        with self._lock:
            return list(self._entries)

    # ---- look up and produce

    def _produce(
        self,
        full: FullKey,
        nbytes: int,
        producer: Callable[..., Any],
        resource: MemoryResource | None,
        cost: float | None,
        handle: ConstantHandle | None,
    ) -> ConstantBuffer | None:
        """What `get_or_add` does when the constant is not there."""
        with self.lookup_or_reserve(*full, nbytes, cost=cost, handle=handle) as reservation:
            if reservation.outcome is not Outcome.PRODUCE:
                return reservation.buffer
            if resource is None:
                return reservation.fulfil(producer())
            buffer = ConstantBuffer.allocate(resource, nbytes)
            producer(buffer)
            return reservation.fulfil(buffer)

    def lookup_or_reserve(
        self,
        backend_id: Hashable,
        key: Hashable,
        nbytes: int,
        *,
        cost: float | None = None,
        handle: ConstantHandle | None = None,
        uses: int = 1,
    ) -> Reservation:
        """Find the constant, or learn whether it is worth producing, before any of that work is done.

        Waits while another thread produces it.

        Parameters
        ----------
        backend_id, key, nbytes, cost, handle
            As for `get_or_add`, and so are the errors.
        uses : int, default=1
            How often the caller has needed the constant since it last asked, for the policy.

        Returns
        -------
        reservation : Reservation
        """
        full = (backend_id, key)
        found = self.find(full, nbytes, handle)
        if found is not None:
            return Reservation(Outcome.HIT, buffer=found)
        item = Item(full, nbytes, CALL_COST_S + nbytes / BYTES_PER_S if cost is None else cost, uses)
        while True:
            with self._lock:
                entry = self._entries.get(full)
                if entry is None:
                    reserved, left = self._reserve(full, item)
                    break
            landed, buffer = entry.flight.wait()
            if landed:
                self._count_landed(entry, handle)
                return Reservation(Outcome.HIT, buffer=buffer)
        if reserved is None:
            return Reservation(Outcome.DECLINED)
        reservation = Reservation(Outcome.PRODUCE, producing=(self, reserved, handle))
        self._let_go(left)  # if a callback is interrupted, the reservation dies and wakes those who wait
        return reservation

    def _count_landed(self, entry: Entry, handle: ConstantHandle | None) -> None:
        """Count a hit that waited; the entry may have left meanwhile, then the buffer is good all the same."""
        with self._lock:
            if self._entries.get(entry.full) is entry:
                self.count_hit(entry, handle)
            else:
                self._hits += 1

    def _reserve(self, full: FullKey, item: Item) -> tuple[Entry | None, list[Entry]]:
        """Make room and charge, or decline. Under the lock."""
        self._misses += 1
        if self._record is not None:
            self._record.note(full, item)
        victims = self._room(item)
        if victims is None:
            self._declined += 1
            return None, []
        left = self._pop_all(victims)
        entry = Entry(full, item)
        self._entries[full] = entry
        self._nbytes += item.nbytes
        return entry, left

    def _room(self, item: Item) -> list[Entry] | None:
        """Whom to evict for a newcomer; None declines it. Under the lock."""
        limit = self._capacity_nbytes
        if item.nbytes == 0 or (limit is not None and item.nbytes > limit):
            return None
        if limit is None or self._nbytes + item.nbytes <= limit:
            return []
        self._tell_uses()
        return self._guard.choose(item, self._nbytes + item.nbytes - limit)

    def _fulfil(self, entry: Entry, handle: ConstantHandle | None, buffer: ConstantBuffer) -> None:
        """End a production with a buffer."""
        try:
            _check_product(buffer, entry.item.nbytes)
        except InvalidArgumentError as error:
            self._fail(entry, error)
            raise
        buffer.freeze()
        try:
            with self._lock:
                is_kept = self._entries.get(entry.full) is entry
                if is_kept:
                    self._tell_hits()
                    entry.keep(buffer)
                    self._entries_of.setdefault(id(buffer.resource), {})[entry.full] = entry
                    self._guard.tell(self.policy.on_insert, entry.item)
                    if handle is not None and self._record is None:
                        entry.attach(handle)
                else:
                    self._evictions += 1
        finally:
            entry.flight.land(buffer)  # also if the policy is interrupted: others wait
        if not is_kept:
            self._tell([(entry.full, buffer)])

    def _fail(self, entry: Entry, error: BaseException) -> None:
        """End a production with an error."""
        with self._lock:
            if self._entries.get(entry.full) is entry:
                self._pop(entry)
        entry.flight.fail(error)

    # ---- leave

    def _pop(self, entry: Entry) -> bool:
        """Take an entry off the books; if it is being produced, its producer finds that it is not kept.

        False if it is gone: a finaliser, or the policy, has taken it off in the middle.
        """
        entry.leave()
        self._tell_hits()
        self._tell_hits_of(entry)
        if self._entries.pop(entry.full, None) is None:
            return False
        self._nbytes -= entry.item.nbytes
        self._changes += 1
        if entry.buffer is not None:
            self._evictions += 1
            self._leave_resource(entry, entry.buffer.resource)
            self._guard.tell(self.policy.on_remove, entry.full)
        return True

    def _leave_resource(self, entry: Entry, resource: MemoryResource | None) -> None:
        """Take an entry out of those of its resource, which it kept alive. Under the lock."""
        entries = self._entries_of.get(id(resource), {})
        entries.pop(entry.full, None)  # not there if a signal's handler raised when it was to be entered
        if not entries:
            self._entries_of.pop(id(resource), None)

    def _produced(self, resource: MemoryResource | None) -> list[Entry]:
        """The entries whose memory comes from `resource`, which have been produced. Under the lock."""
        return list(self._entries_of.get(id(resource), {}).values())

    def _pop_all(self, entries: Iterable[Entry]) -> list[Entry]:
        """Take entries off; those that were there. Under the lock."""
        return [entry for entry in entries if self._pop(entry)]

    def _let_go(self, left: list[Entry]) -> None:
        """Tell handles and callbacks of entries that have left. Outside the lock."""
        for entry in left:
            for handle in entry.live_handles():
                handle.evict()
        self._tell([(entry.full, entry.buffer) for entry in left if entry.buffer is not None])

    @contextmanager
    def _evicting(self) -> Iterator[list[Entry]]:
        """Hold the lock; what the block pops into the list is told of afterwards, outside the lock."""
        left: list[Entry] = []
        with self._lock:
            yield left
        self._let_go(left)

    def _pop_until(self, nbytes: int, candidates: list[Entry]) -> list[Entry]:
        """Take off candidates, in order, until at most `nbytes` are charged. Under the lock."""
        left = []
        for entry in candidates:
            if self._nbytes <= nbytes:
                break
            if self._entries.get(entry.full) is entry and self._pop(entry):
                left.append(entry)
        return left

    def _by_policy(self) -> list[Entry]:
        """The entries that are not being produced, as the policy would evict them. Under the lock."""
        self._tell_uses()
        return self._guard.order()

    def resize(self, capacity_nbytes: int | str | None) -> None:
        """Set another bound without a flush: entries leave, in the policy's order, only until it holds.

        Productions under way that no longer fit go on, and their constants are not kept.

        Parameters
        ----------
        capacity_nbytes : int, str or None
            Unit: bytes; 0 disables the cache, None sets no bound.

        Raises
        ------
        InvalidArgumentError
            Not a size; nothing is changed.
        """
        limit = check_limit(capacity_nbytes)
        with self._evicting() as left:
            if limit is not None:
                left += self._pop_until(limit, [*self._by_policy(), *self._entries.values()])
            self._capacity_nbytes = limit
            self._changes += 1

    def set_capacity(self, capacity_nbytes: int | str | None, *, policy: PolicySource | None = None) -> None:
        """Set another bound, and a policy if one is given, and flush.

        Parameters
        ----------
        capacity_nbytes : int, str or None
            Unit: bytes; 0 disables the cache, None sets no bound.
        policy : str, Policy or callable, optional
            By default the one that is in use.

        Raises
        ------
        InvalidArgumentError
            Not a size, or an unknown policy; nothing is changed.
        """
        limit = check_limit(capacity_nbytes)
        chosen = None if policy is None else make_policy(policy)
        with self._evicting() as left:
            left += self._pop_until(-1, list(self._entries.values()))
            self._capacity_nbytes = limit
            self._guard.policy = chosen or self.policy
            self._changes += 1

    def clear(self) -> dict[FullKey, int]:
        """Evict everything, whoever uses it. Productions under way go on, and their constants are not kept.

        Returns
        -------
        left : dict of key to int
            The (backend id, backend key) of what has left, those being produced included, and its size. Unit: bytes.
        """
        with self._evicting() as left:
            left += self._pop_until(-1, list(self._entries.values()))
        return {entry.full: entry.item.nbytes for entry in left}

    def remove_if_exist(self, backend_id: Hashable, key: Hashable) -> bool:
        """Evict one entry, or let go of its production.

        Parameters
        ----------
        backend_id : hashable
            The first part of the key.
        key : hashable
            The second.

        Returns
        -------
        is_removed : bool
            Whether there was one.

        Raises
        ------
        InvalidArgumentError
            A part of the key has no hash.
        """
        check_hashable("key", (backend_id, key))
        with self._evicting() as left:
            entry = self._entries.get((backend_id, key))
            left += [] if entry is None else self._pop_all([entry])
        return bool(left)

    def remove_if_unused(self, backend_id: Hashable, key: Hashable, *, last: ConstantHandle | None = None) -> bool:
        """Evict one entry that no handle is bound to.

        Parameters
        ----------
        backend_id : hashable
            The first part of the key.
        key : hashable
            The second.
        last : ConstantHandle, optional
            A handle whose user ends: from now on it is not bound, and so in nobody's way.

        Returns
        -------
        is_removed : bool
            Whether there was one.

        Raises
        ------
        InvalidArgumentError
            A part of the key has no hash.
        """
        check_hashable("key", (backend_id, key))
        with self._evicting() as left:
            entry = self._entries.get((backend_id, key))
            if entry is not None and entry.buffer is not None:
                entry.detach(last)  # in one step with the look at others: of two users that end at once one is the last
                if not entry.live_handles():
                    left += self._pop_all([entry])
        if last is not None:
            last.evict()
        return bool(left)

    def retire(self, resource: MemoryResource) -> None:
        """Evict the entries of a resource whose engine ends, but for those that others use.

        Such an entry, which a handle of another resource is bound to, goes when that one is retired too, or as others.

        Parameters
        ----------
        resource : MemoryResource
            The engine's.
        """
        with self._evicting() as left:
            self._retired.add(resource)
            over = [entry for retired in self._retired for entry in self._produced(retired)]
            left += self._pop_all(entry for entry in over if _is_for_none_but(resource, entry))

    def reclaim(self, nbytes: int, *, resource: MemoryResource | None = None, but: Collection[Hashable] = ()) -> int:
        """Evict, in the policy's order, what no handle is using, until enough is given up.

        Parameters
        ----------
        nbytes : int
            What is wanted. Unit: bytes.
        resource : MemoryResource, optional
            Only constants whose memory comes from there; by default from anywhere.
        but : collection of hashable, default=()
            Keys, both parts of each, of constants that stay.

        Returns
        -------
        freed : int
            What was given up: less if there is no more. Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            `nbytes` is no size.
        """
        check_nbytes(nbytes)
        with self._evicting() as left:
            candidates = [entry for entry in self._idle(resource) if entry.full not in but]
            left += self._pop_until(max(self._nbytes - nbytes, 0), candidates)
        return sum(entry.item.nbytes for entry in left)

    def evict_idle(self, key: Hashable, resource: MemoryResource) -> int:
        """Evict one entry if its memory is of a resource and no handle is using it.

        Parameters
        ----------
        key : tuple
            Both parts: the backend's id, and its key.
        resource : MemoryResource
            Where the memory has to come from.

        Returns
        -------
        nbytes : int
            What was given up; 0 if nothing. Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            A part of the key has no hash.
        """
        check_hashable("key", key)
        with self._evicting() as left:
            entry = self._entries.get(cast("FullKey", key))
            left += [] if entry is None or not (_is_of(entry, resource) and _is_idle(entry)) else self._pop_all([entry])
        return sum(entry.item.nbytes for entry in left)

    def _idle(self, resource: MemoryResource | None) -> list[Entry]:
        """What no handle is using, of one resource or of all, in the policy's order. Under the lock."""
        return [entry for entry in self._by_policy() if _is_of(entry, resource) and _is_idle(entry)]

    def idle(self, resource: MemoryResource) -> dict[Hashable, int]:
        """The constants that no handle is using and whose memory comes from a resource.

        Parameters
        ----------
        resource : MemoryResource

        Returns
        -------
        nbytes : dict
            Key, both parts of it -> size. Unit: bytes.
        """
        with self._lock:
            return {entry.full: entry.item.nbytes for entry in self._produced(resource) if _is_idle(entry)}

    def unbound(self, resource: MemoryResource) -> set[Hashable]:
        """The constants that no handle is bound to and whose memory comes from a resource.

        Parameters
        ----------
        resource : MemoryResource

        Returns
        -------
        keys : set
            Keys, both parts of each.
        """
        with self._lock:
            return {entry.full for entry in self._produced(resource) if not entry.live_handles()}

    def nbytes_of(self, resource: MemoryResource) -> int:
        """Size of the constants whose memory comes from a resource.

        Parameters
        ----------
        resource : MemoryResource

        Returns
        -------
        nbytes : int
            Unit: bytes.
        """
        with self._lock:
            return sum(entry.item.nbytes for entry in self._produced(resource))

    # ---- tell and observe

    def _tell_uses(self) -> None:
        """Tell the policy of hits, and of the uses through handles, which the cache did not see. Under the lock."""
        self._tell_hits()
        for entry in list(self._entries.values()):
            count = entry.take_uses()
            if count:
                self._guard.tell(self.policy.on_hit, entry.full, count)

    @contextmanager
    def record(self) -> Iterator[list[Item]]:
        """Record every use of a constant while the block runs, in order, as a trace for `replay`.

        Executions look constants up each time meanwhile, since a use through a handle would not be seen. What the
        cache declines is noted when it is asked, not at every execution, so record without a bound.

        Yields
        ------
        trace : list of Item
            It grows; keys are numbers in the order of first use.

        Raises
        ------
        StateError
            A recording is going on already.
        """
        with self._lock:
            if self._record is not None:
                raise StateError(explain("the cache is being recorded already", hint="end that recording first"))
            self._record = recorder = UseRecorder()
            bound = [handle for entry in self._entries.values() for handle in entry.live_handles()]
        for handle in bound:
            handle.evict()
        try:
            yield recorder.trace
        finally:
            with self._lock:
                self._record = None

    def stats(self) -> CacheStats:
        """The counters now; uses through handles are not lookups and are not counted.

        Returns
        -------
        CacheStats
        """
        with self._lock:
            self._tell_hits()
            return self._stats(hits=self._hits, entries=len(self._entries))

    def __repr__(self) -> str:
        bound = "" if self._capacity_nbytes is None else f" of {self._capacity_nbytes}"
        return f"<{self.name}: {len(self)} entries, {self._nbytes}{bound} bytes, {self.policy.name}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return show_stats(self.name, self.stats())

    # ---- fork

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()
        for entry in list(self._entries.values()):
            if entry.buffer is None and not entry.flight.survive_fork():
                self._pop(entry)


def _is_of(entry: Entry, resource: MemoryResource | None) -> bool:
    return resource is None or (entry.buffer is not None and entry.buffer.resource is resource)


def _is_idle(entry: Entry) -> bool:
    """Whether it is there, and no handle is using it."""
    return entry.buffer is not None and not any(handle.users for handle in entry.live_handles())


def _is_for_none_but(resource: MemoryResource, entry: Entry) -> bool:
    return not any(handle.resource not in (None, resource) for handle in entry.live_handles())


def _check_product(buffer: object, nbytes: int) -> None:
    if not isinstance(buffer, ConstantBuffer):
        raise InvalidArgumentError(explain("the producer's result", accepted="a ConstantBuffer", got=brief(buffer)))
    if buffer.nbytes > nbytes:
        raise InvalidArgumentError(
            explain("the constant is larger than reserved", accepted=f"up to {nbytes} bytes", got=buffer.nbytes)
        )
