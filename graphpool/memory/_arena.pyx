"""ArenaPool: arenas of one size, taken and given back without a lock when warm.

The pool makes and frees arenas, and lets callers wait; `_slots.pyx` has their states, `_wait_queue.pyx` who waits, and
`_lease.pyx` the right to one. `arenas` counts a slot before the slow allocation starts and until the memory is back, so
``max_arenas`` and the budget hold at every instant.
"""

import warnings

from libc.stdint cimport int64_t, uintptr_t

from graphpool._atomic cimport (
    gp_add, gp_add_within, gp_cas, gp_load, gp_raise_to, gp_store, gp_store_ptr, gp_sub_within)
from graphpool._finalizing cimport gp_is_finalizing
from graphpool.memory._gate cimport clock_ns, deadline_after, nanoseconds
from graphpool.memory._lease cimport Lease
from graphpool.memory._slots cimport (
    ANY, CREATING, FREE, LEASED, RETIRING, STATES, Chunk, Slot, Slots, next_slot, state_of)
from graphpool.memory._wait_queue cimport Waiter, WaitQueue

from graphpool._unraisable import report_unraisable
from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError, check_instance, explain
from graphpool.fork import reset_in_child
from graphpool.memory._budget import IDLE_ARENAS, Budget
from graphpool.memory._check import check_request, check_resource, not_held, out_of_memory
from graphpool.memory._stats import ArenaStats

cdef extern from "<pthread.h>" nogil:
    size_t pthread_self()  # a pointer on macOS: cast where it is used

cdef int64_t UNLIMITED = <int64_t>1 << 62


cdef class ArenaPool(Slots):
    """Arenas of one fixed size, reused by any number of threads.

    A warm pool gives and takes back an arena with one compare-and-swap. A cold one creates arenas through its
    resource, charging the budget first; when `max_arenas` exist, or memory is short while arenas are leased, callers
    wait in the order of their arrival. A pool is a `MemoryResource` too, so that others stack on it.

    Parameters
    ----------
    resource : MemoryResource
        Where arenas come from; kept alive by the pool.
    nbytes : int
        Size of every arena. Unit: bytes. Zero is allowed: leases then hold nothing.
    alignment : int, default=64
        Of every arena; a power of two. Unit: bytes.
    max_arenas : int, optional
        How many may exist at once; by default only memory limits them.
    budget : Budget, optional
        Charged for every arena from before its creation until after its memory is back. Under pressure it trims the
        idle arenas of all its pools.
    timeout_s : float, optional
        How long an acquire that names no time of its own may wait; None waits as long as there are leases to wait for.
    name : str, default="arena pool"
        Who asks the budget, in its errors.
    keeper : object, optional
        Whom the arenas are for: see `Budget.register`.

    Raises
    ------
    InvalidArgumentError
        A size, alignment, count or time is not usable.
    OutOfMemoryError
        `nbytes` is more than a process can address.

    Notes
    -----
    Ownership: the pool owns the arenas, a lease the right to use one. Threads: safe, and fork-safe: in a child the
    arenas that other threads had leased are free again. Cost: about 20 ns for a warm acquire and release.
    Source: RFC "primitive memory caching" for the use; the slots replace its lists and semaphores.

    Examples
    --------
    >>> from graphpool.memory import ArenaPool, HostResource
    >>> with ArenaPool(HostResource(), nbytes=4096) as pool, pool.lease() as lease:
    ...     lease.nbytes, lease.address % 64
    (4096, 0)
    """

    def __cinit__(self):
        self.queue = WaitQueue(self.gate)
        self.max_arenas = UNLIMITED
        self.timeout_ns = -1

    def __init__(
        self, resource, nbytes, *, alignment=64, max_arenas=None, budget=None, timeout_s=None, str name="arena pool",
        keeper=None,
    ):
        check_resource("resource", resource)
        check_request(nbytes, alignment)
        if max_arenas is not None and (not isinstance(max_arenas, int) or not 0 < max_arenas <= UNLIMITED):
            raise InvalidArgumentError(explain("max_arenas", accepted="an int >= 1, or None", got=repr(max_arenas)))
        if timeout_s is not None:
            self.timeout_ns = deadline_after(timeout_s, -1) - clock_ns()
        self.resource = resource
        self.nbytes = nbytes
        self.alignment = alignment
        if max_arenas is not None:
            self.max_arenas = max_arenas
        self.name = name
        if budget is not None:
            self.budget = check_instance("budget", budget, Budget)
            self.gate = budget.gate
            self.queue = WaitQueue(self.gate)
            budget.register(self, stage=IDLE_ARENAS, keeper=keeper)
        reset_in_child(self)

    def __del__(self):
        if self.arenas > 0 and not gp_load(&self.closed) and not gp_is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    # ---- the hot path ----

    cdef void *acquire(self) except NULL:
        cdef Slot *slot
        if self.nbytes == 0 and not gp_load(&self.closed):
            return <void *><uintptr_t>self.alignment    # nothing to point at: not NULL, aligned, never followed
        slot = self._take_in_turn()
        if slot == NULL:
            slot = self._acquire_slot(deadline_after(None, self.timeout_ns))
        return slot.address

    cdef void release(self, void *arena) noexcept nogil:
        if self.nbytes != 0 and not self.give_address(arena):
            gp_add(&self.faults, 1)

    cdef inline Slot *_take_in_turn(self) noexcept nogil:
        """A slot that is free, unless others queue for one or the pool is closed."""
        return NULL if gp_load(&self.queue.length) != 0 or gp_load(&self.closed) else self.take()

    # ---- waiting ----

    cdef Slot *_acquire_slot(self, int64_t deadline_ns) except NULL:
        """A leased slot: free, created, or waited for in turn."""
        cdef Waiter me
        self._check_open()
        self.queue.join(&me)
        try:
            return self._wait_for_slot(&me, deadline_ns)
        finally:
            self.queue.leave(&me)

    cdef Slot *_wait_for_slot(self, Waiter *me, int64_t deadline_ns) except NULL:
        cdef Slot *slot
        cdef int64_t epoch
        cdef bint has_waited = False, is_budgeted = False
        error = None
        while True:
            epoch = self.gate.now()     # before looking: whatever changes from here on ends the sleep below
            self._check_open()
            if self.queue.is_next(me):
                slot = self.take()
                if slot != NULL:
                    return slot
                if gp_add_within(&self.arenas, 1, self.max_arenas):
                    me.is_creating = True
                    try:
                        return self._create(&is_budgeted)
                    except OutOfMemoryError as failure:
                        if not self._may_get_memory_back(is_budgeted, epoch):
                            raise
                        error = failure
                    finally:
                        me.is_creating = False
            if not has_waited:
                gp_add(&self.waits, 1)
                has_waited = True
            if not self.gate.wait(epoch, deadline_ns):
                raise error or self._exhausted()

    cdef bint _may_get_memory_back(self, bint is_budgeted, int64_t epoch) except -1:
        """Whether a request that failed may succeed: what was leased then is leased still, or has come back since.

        If the budget had room and the resource refused, only what is leased now can change that. That something could
        be given up is no reason to wait: it was asked for, and nobody tells when it is given up.
        """
        has_arena = gp_load(&self.arenas) > gp_load(&self.retiring)
        if has_arena or self.budget is None:
            return has_arena
        room = self.budget.limit - self.nbytes
        if room < 0 or self.budget.pending > 0:
            return room >= 0
        return not is_budgeted and self.gate.now() != epoch and self.budget.in_use - self.budget.reclaimable <= room

    def _exhausted(self):
        n = gp_load(&self.arenas)
        return out_of_memory(
            self.nbytes, in_use=n * self.nbytes, limit=min(n, self.max_arenas) * self.nbytes, resource=repr(self),
            hint="no arena came back in time: raise max_arenas or the timeout, or release leases",
        )

    def _check_open(self):
        if gp_load(&self.closed):
            raise StateError(explain(f"{self!r} is closed", hint="acquire before close()"))

    # ---- making and freeing arenas; the caller has counted the new one in `arenas` ----

    cdef Slot *_create(self, bint *is_budgeted) except NULL:
        """A new arena, leased to the caller; says whether the budget had room for it."""
        cdef Slot *slot = NULL
        is_budgeted[0] = False
        try:
            slot = self.claim()
            if self.budget is not None:
                self.budget.charge(self.nbytes, holder=self.name)
                slot.is_charged = 1
                is_budgeted[0] = True
            address = self.resource.allocate(self.nbytes, self.alignment)
        except BaseException:
            if slot != NULL:
                self._forget(slot)
            else:
                gp_add(&self.arenas, -1)
            raise
        gp_add(&self.created, 1)
        gp_raise_to(&self.peak_arenas, gp_load(&self.arenas))
        gp_store_ptr(&slot.address, <void *><uintptr_t>address)
        gp_store(&slot.word, slot.word - CREATING + LEASED + STATES)
        return slot

    cdef int _forget(self, Slot *slot) except -1:
        """The slot has no memory any more: EMPTY, uncharged, uncounted."""
        cdef bint was_charged = slot.is_charged
        slot.is_charged = 0
        gp_store(&slot.word, slot.word - state_of(slot.word))
        gp_add(&self.arenas, -1)
        if was_charged:
            self.budget.uncharge(self.nbytes)
        return 0

    cdef int _free(self, Slot *slot) except -1:
        """RETIRING -> EMPTY, giving the memory back. The address goes first: the resource may reuse it at once.

        A resource that fails is reported and not raised: the arena is gone all the same, and others are to be freed.
        """
        cdef void *address = slot.address
        gp_store_ptr(&slot.address, NULL)
        try:
            self.resource.deallocate(<uintptr_t>address, self.nbytes, self.alignment)
        except Exception as error:
            report_unraisable(error, self.resource)
        finally:
            self._forget(slot)
        return 0

    cdef int64_t _retire(self, int64_t idle_before_ns, int64_t keep, bint takes_reserved=False) except -1:
        """Free idle arenas, longest idle first, while more than `keep` and those reserved stay. Returns how many."""
        cdef int64_t n = 0, word, left
        cdef Slot *oldest
        while True:
            oldest = self.longest_idle(idle_before_ns)
            if oldest == NULL:
                return n
            word = gp_load(&oldest.word)
            if state_of(word) != FREE or not gp_cas(&oldest.word, word, word - FREE + RETIRING):
                continue
            oldest.owner = <int64_t>pthread_self()
            # Announce, then look at the floor; `reserve` raises the floor, then looks at `retiring`: one of both sees.
            left = gp_load(&self.arenas) - gp_add(&self.retiring, 1)
            if left < max(keep, 0 if takes_reserved else gp_load(&self.floor)):
                gp_add(&self.retiring, -1)
                gp_store(&oldest.word, word)
                self.gate.notify()
                if not gp_load(&self.closed):
                    return n
                keep, takes_reserved = 0, True      # a reservation met `close`, which passes by what is not free
                continue
            try:
                self._free(oldest)
            finally:
                gp_add(&self.retiring, -1)
                self.gate.notify()
            n += 1

    cdef int free_idle(self) except -1:
        self._retire(UNLIMITED, 0, takes_reserved=True)     # `reserve` may have passed its check before
        return 0

    # ---- for Python ----

    def reserve(self, n=1):
        """Keep `n` more arenas in existence, creating those that are missing, so that `n` executions allocate nothing.

        Parameters
        ----------
        n : int, default=1
            Unit: arenas. They are shared by all users of the pool, and `trim` leaves them.

        Returns
        -------
        nbytes : int
            Memory newly taken from the resource. Unit: bytes; 0 when idle arenas sufficed.

        Raises
        ------
        InvalidArgumentError
            `n` is negative, or more than `max_arenas` would be reserved.
        OutOfMemoryError
            The resource or the budget refused; nothing is reserved.
        StateError
            The pool is closed.
        """
        cdef int64_t made = 0, epoch
        cdef bint is_budgeted
        self._check_open()
        if not isinstance(n, int) or n < 0 or not gp_add_within(&self.floor, n, self.max_arenas):
            raise InvalidArgumentError(
                explain("reserve", accepted=f"0 to {self.max_arenas} arenas in all", got=f"{n} more than {self.floor}")
            )
        if self.nbytes == 0:
            return 0
        cdef list fresh = []
        try:
            while made < n and gp_load(&self.arenas) - gp_load(&self.retiring) < gp_load(&self.floor):
                epoch = self.gate.enter()
                try:
                    if gp_add_within(&self.arenas, 1, self.max_arenas):
                        fresh.append(<uintptr_t>self._create(&is_budgeted))
                        made += 1
                    else:
                        # An arena that retires is still counted; its thread notifies when it is gone.
                        self.gate.wait(epoch, clock_ns() + 1_000_000)
                finally:
                    self.gate.leave()
        except BaseException:
            gp_add(&self.floor, -n)
            self._give_all(fresh)
            self._retire(UNLIMITED, max(gp_load(&self.arenas) - made, 0))
            self.gate.notify()
            raise
        self._give_all(fresh)
        return made * self.nbytes

    cdef bint reserve_warm(self) noexcept nogil:
        if gp_load(&self.closed) or not gp_add_within(&self.floor, 1, self.max_arenas):
            return False
        if self.nbytes == 0 or gp_load(&self.arenas) - gp_load(&self.retiring) >= gp_load(&self.floor):
            return True
        return gp_add(&self.floor, -1) < 0

    cdef bint unreserve_one(self) noexcept nogil:
        return gp_sub_within(&self.floor, 1)

    def _give_all(self, list slots):
        cdef uintptr_t slot
        for slot in slots:
            self.give(<Slot *>slot, (<Slot *>slot).word)

    def unreserve(self, n=1):
        """Take back some of the arenas that `reserve` keeps: they stay until `trim` or `close`.

        Parameters
        ----------
        n : int, default=1
            How many.

        Raises
        ------
        StateError
            Fewer are reserved; nothing is changed.
        """
        cdef int64_t floor
        while True:
            floor = gp_load(&self.floor)
            if not isinstance(n, int) or n < 0 or n > floor:
                raise StateError(explain("unreserve", accepted=f"0 to {floor} arenas", got=n), reserved=floor)
            if gp_cas(&self.floor, floor, floor - n):
                return

    def lease(self, timeout_s=None):
        """The right to one arena, until `Lease.release`.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait for an arena; by default the pool's own time.

        Raises
        ------
        OutOfMemoryError
            None came free in time, or memory is short and no lease is out to wait for.
        StateError
            The pool is closed.
        """
        cdef int64_t deadline = deadline_after(timeout_s, self.timeout_ns)
        cdef Lease lease = self.lease_free()
        if lease is None:
            self._check_open()
            lease = Lease.__new__(Lease)
            lease.hold(self, self._acquire_slot(deadline))
        return lease

    cdef Lease lease_free(self):
        cdef Slot *slot = NULL
        cdef Lease lease
        if self.nbytes != 0:
            slot = self._take_in_turn()
        if gp_load(&self.closed) if self.nbytes == 0 else slot == NULL:
            return None
        lease = Lease.__new__(Lease)
        lease.hold(self, slot)
        return lease

    def allocate(self, nbytes, alignment=64, stream=None):
        """Lease an arena by its address, so that other resources stack on the pool. Waits as `lease` does.

        Parameters
        ----------
        nbytes : int
            At most the size of an arena. Unit: bytes.
        alignment : int, default=64
            At most that of the arenas. Unit: bytes.
        stream : object, optional
            Ignored.

        Raises
        ------
        InvalidArgumentError
            No arena is large enough, or aligned so.
        OutOfMemoryError, StateError
            As `lease`.
        """
        check_request(nbytes, alignment)
        if nbytes > self.nbytes or alignment > self.alignment:
            raise InvalidArgumentError(
                explain(f"{self!r} has no arena for this", accepted=f"up to {self.nbytes} bytes at {self.alignment}",
                        got=f"{nbytes} bytes at {alignment}")
            )
        return <uintptr_t>self.acquire()

    def deallocate(self, address, nbytes, alignment=64, stream=None):
        """Give back what `allocate` returned.

        Parameters
        ----------
        address : int
        nbytes : int
            As it was asked for. Unit: bytes.
        alignment : int, default=64
        stream : object, optional
            Without effect.

        Raises
        ------
        StateError
            No arena is leased there.
        """
        is_address = 0 < address < 1 << 64 and nbytes <= self.nbytes
        if not is_address or (self.nbytes != 0 and not self.give_address(<void *><uintptr_t>address)):
            raise not_held("ArenaPool", address, nbytes)

    def trim(self, idle_s=0.0, now_s=None):
        """Give the memory of idle arenas back, longest idle first; reserved ones stay.

        Parameters
        ----------
        idle_s : float, default=0.0
            Only those idle for at least so long. Unit: seconds.
        now_s : float, optional
            The time at which they are looked at, as `time.monotonic` gives it; by default now. Unit: seconds.

        Returns
        -------
        nbytes : int
            Memory that went back to the resource. Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            A time is no number of at least 0.
        """
        cdef int64_t now = clock_ns() if now_s is None else nanoseconds(now_s, "now_s")
        return self._retire(now - nanoseconds(idle_s, "idle_s"), 0) * self.nbytes

    def reclaim(self, nbytes, *, bint takes_reserved=False):
        """Free idle arenas until enough is freed. For budgets.

        Parameters
        ----------
        nbytes : int
            What is wanted. Unit: bytes.
        takes_reserved : bool, default=False
            Whether arenas that were reserved go too.

        Returns
        -------
        freed : int
            Unit: bytes.
        """
        cdef int64_t keep = 0
        if self.nbytes > 0:
            keep = max(gp_load(&self.arenas) - (nbytes + self.nbytes - 1) // self.nbytes, 0)
        return self._retire(UNLIMITED, keep, takes_reserved) * self.nbytes

    @property
    def held(self):
        """Bytes charged to the budget."""
        return self.count(ANY, True) * self.nbytes

    @property
    def reclaimable(self):
        """Bytes of idle arenas that the budget can get back: those that are not reserved, unless others give them."""
        spare = gp_load(&self.arenas) - gp_load(&self.retiring) - gp_load(&self.floor)
        idle = self.count(1 << FREE, True)
        return (idle if self.gives_reserved else min(idle, max(spare, 0))) * self.nbytes

    @property
    def pending(self):
        """Bytes charged to the budget that are leased or being allocated now, and may come back. Unit: bytes."""
        return self.count(1 << LEASED | 1 << CREATING | 1 << RETIRING, True) * self.nbytes

    @property
    def idle_since(self):
        """Monotonic time since when the longest idle arena is idle. Unit: seconds; infinity when none is idle."""
        cdef Slot *oldest = self.longest_idle(UNLIMITED)
        return float("inf") if oldest == NULL else oldest.idle_since_ns * 1e-9

    def stats(self):
        """What the pool holds now: an `ArenaStats`."""
        return ArenaStats(
            arenas=gp_load(&self.arenas),
            free=self.count(1 << FREE, False),
            leased=self.count(1 << LEASED, False),
            reserved=gp_load(&self.floor),
            nbytes=gp_load(&self.arenas) * self.nbytes,
            peak_nbytes=gp_load(&self.peak_arenas) * self.nbytes,
            created=gp_load(&self.created),
            leases=self.count_leases(),
            waits=gp_load(&self.waits),
            faults=gp_load(&self.faults),
        )

    @property
    def is_closed(self):
        """Whether `close` was called."""
        return bool(gp_load(&self.closed))

    def close(self):
        """Free the idle arenas now and the leased ones when they are released; idempotent.

        Whoever waits, or asks from now on, gets a `StateError`. An arena that another thread is freeing is back, and no
        longer charged, when that thread is done.
        """
        gp_store(&self.closed, 1)
        gp_store(&self.floor, 0)
        self._retire(UNLIMITED, 0)
        self.gate.notify()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return f"<ArenaPool {gp_load(&self.arenas)} x {self.nbytes} bytes>"

    def _reset_in_child(self):
        """After a fork: other threads are gone, so what they leased is free, what they were making is not there."""
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t word, me = <int64_t>pthread_self()
        cdef Slot *slot = next_slot(&chunk, &i)
        self.gate.reset()
        self.queue.reset()
        self.retiring = 0
        while slot != NULL:
            word = slot.word
            if slot.owner != me and state_of(word) == LEASED:
                slot.word = word + STATES - LEASED + FREE
            elif slot.owner != me and state_of(word) in (CREATING, RETIRING):
                slot.address = NULL
                self._forget(slot)
            slot = next_slot(&chunk, &i)
