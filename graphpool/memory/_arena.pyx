"""ArenaPool: arenas of one size, taken and given back without a lock when warm; Lease: the right to one of them.

Each arena has a slot whose word holds a generation and a state:

    EMPTY -> CREATING -> LEASED <-> FREE -> RETIRING -> EMPTY

Every arrow is one compare-and-swap, and taking an arena raises its generation, so a stale token never matches and no
address is compared (no ABA). `arenas` counts a slot before the slow allocation starts and until the memory is back, so
``max_arenas`` and the budget hold at every instant. Slots are never freed before the pool is.
"""

import warnings

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from graphpool._finalizing cimport gp_is_finalizing
from graphpool._atomic cimport (
    gp_add, gp_add_within, gp_cas, gp_cas_ptr, gp_exchange, gp_load, gp_load_ptr, gp_raise_to, gp_store, gp_store_ptr,
    gp_sub_within)
from graphpool.memory._gate cimport Gate, clock_ns, coarse_clock_ns, deadline_after, pthread_mutex_t

from graphpool._unraisable import report_unraisable
from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError, explain
from graphpool.memory._budget import IDLE_ARENAS
from graphpool.memory._check import check_request, out_of_memory
from graphpool.fork import reset_in_child
from graphpool.memory._stats import ArenaStats

cdef extern from "<pthread.h>" nogil:
    unsigned long pthread_self()
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)

cdef enum:
    EMPTY = 0
    CREATING = 1
    FREE = 2
    LEASED = 3
    RETIRING = 4
    STATES = 8      # states per generation
    POISON = 0xFF   # a NaN in every float format

cdef int64_t UNLIMITED = <int64_t>1 << 62


cdef inline int state_of(int64_t word) noexcept nogil:
    return word % STATES


cdef inline Slot *next_slot(Chunk **chunk, int *i) noexcept nogil:
    """Iterate over the slots of a pool, lowest (warmest) first; NULL at the end."""
    if i[0] == SLOTS_PER_CHUNK:
        chunk[0] = <Chunk *>gp_load_ptr(&chunk[0].next)
        i[0] = 0
        if chunk[0] == NULL:
            return NULL
    i[0] += 1
    return &chunk[0].slots[i[0] - 1]


cdef class ArenaPool:
    """Arenas of one fixed size, reused by any number of threads.

    A warm pool gives and takes back an arena with one compare-and-swap. A cold one creates arenas through its
    resource, charging the budget first; when `max_arenas` exist, or memory is short while arenas are leased, callers
    wait in the order of their arrival.

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
    poison : bool, default=False
        Fill arenas with 0xFF when they are released, and count those that were written afterwards: for tests.

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
    Source: seed RFC "primitive memory caching" for the use; the slots replace its lists and semaphores.

    Examples
    --------
    >>> from graphpool.memory import HostResource
    >>> from graphpool.memory._arena import ArenaPool
    >>> with ArenaPool(HostResource(), nbytes=4096) as pool, pool.lease() as lease:
    ...     lease.nbytes, lease.address % 64
    (4096, 0)
    """

    def __cinit__(self):
        self.gate = Gate()
        self.max_arenas = UNLIMITED
        self.timeout_ns = -1

    def __init__(
        self, resource, nbytes, *, alignment=64, max_arenas=None, budget=None, timeout_s=None, bint poison=False,
        str name="arena pool",
    ):
        check_request(nbytes, alignment)
        if max_arenas is not None and (not isinstance(max_arenas, int) or max_arenas < 1):
            raise InvalidArgumentError(explain("max_arenas", accepted="an int >= 1, or None", got=repr(max_arenas)))
        if timeout_s is not None:
            self.timeout_ns = deadline_after(timeout_s, -1) - clock_ns()
        self.resource = resource
        self.nbytes = nbytes
        self.alignment = alignment
        if max_arenas is not None:
            self.max_arenas = max_arenas
        self.is_poisoned = poison
        self.name = name
        if budget is not None:
            self.budget = budget
            self.gate = budget.gate
            budget.register(self, stage=IDLE_ARENAS)
        reset_in_child(self)

    def __dealloc__(self):
        cdef void *chunk = self.first.next
        cdef void *following
        while chunk != NULL:
            following = (<Chunk *>chunk).next
            free(chunk)
            chunk = following

    def __del__(self):
        if self.arenas > 0 and not gp_load(&self.closed) and not gp_is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    # ---- the hot path ----

    cdef void *acquire_fast(self) noexcept nogil:
        cdef Slot *slot
        if self.nbytes == 0 and not gp_load(&self.closed):
            return <void *><uintptr_t>self.alignment    # nothing to point at: not NULL, aligned, never followed
        if gp_load(&self.queued) != 0 or gp_load(&self.closed):
            return NULL
        slot = self._take()
        return NULL if slot == NULL else slot.address

    cdef void *acquire(self) except NULL:
        cdef void *arena = self.acquire_fast()
        if arena != NULL:
            return arena
        return self._acquire_slot(deadline_after(None, self.timeout_ns)).address

    cdef void release(self, void *arena) noexcept nogil:
        cdef Slot *slot
        cdef int64_t word
        if self.nbytes == 0:
            return
        slot = self._find(arena)
        if slot != NULL:
            word = gp_load(&slot.word)
            if state_of(word) == LEASED and self._give(slot, word):
                return
        gp_add(&self.faults, 1)

    cdef Slot *_take(self) noexcept nogil:
        """FREE -> LEASED for the lowest free slot; NULL when none is free."""
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t word
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            word = gp_load(&slot.word)
            if state_of(word) == FREE and gp_cas(&slot.word, word, word + STATES - FREE + LEASED):
                slot.owner = pthread_self()
                if self.is_poisoned and not self._is_intact(slot):
                    gp_add(&self.faults, 1)
                return slot
            slot = next_slot(&chunk, &i)
        return NULL

    cdef Slot *_find(self, void *arena) noexcept nogil:
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL and gp_load_ptr(&slot.address) != arena:
            slot = next_slot(&chunk, &i)
        return slot

    cdef bint _give(self, Slot *slot, int64_t word) noexcept nogil:
        """LEASED -> FREE for the lease that `word` stands for; False for a stale one."""
        if gp_load(&slot.word) != word:
            return False
        if self.is_poisoned:
            memset(slot.address, POISON, self.nbytes)
        slot.idle_since_ns = coarse_clock_ns()
        if not gp_cas(&slot.word, word, word - LEASED + FREE):
            return False
        if gp_load(&self.closed):
            with gil:
                self._retire(UNLIMITED, 0, takes_reserved=True)     # `reserve` may have passed its check before
        self.gate.notify()
        return True

    cdef bint _is_intact(self, Slot *slot) noexcept nogil:
        """Whether a poisoned arena still holds what its release wrote."""
        cdef const unsigned char *bytes = <const unsigned char *>slot.address
        cdef int64_t i
        for i in range(self.nbytes):
            if bytes[i] != POISON:
                return False
        return True

    # ---- waiting ----

    cdef Slot *_acquire_slot(self, int64_t deadline_ns) except NULL:
        """A leased slot: free, created, or waited for in turn."""
        cdef Waiter me
        self._check_open()
        me.is_creating = False
        self._join(&me)
        try:
            return self._wait_for_slot(&me, deadline_ns)
        finally:
            self._leave(&me)

    cdef Slot *_wait_for_slot(self, Waiter *me, int64_t deadline_ns) except NULL:
        cdef Slot *slot
        cdef int64_t epoch
        cdef bint has_waited = False, is_budgeted = False
        error = None
        while True:
            epoch = self.gate.now()     # before looking: whatever changes from here on ends the sleep below
            self._check_open()
            if self._is_next(me):
                slot = self._take()
                if slot != NULL:
                    return slot
                if gp_add_within(&self.arenas, 1, self.max_arenas):
                    me.is_creating = True
                    try:
                        return self._create(&is_budgeted)
                    except OutOfMemoryError as failure:
                        if not self._may_get_memory_back(is_budgeted):
                            raise
                        error = failure
                    finally:
                        me.is_creating = False
            if not has_waited:
                gp_add(&self.waits, 1)
                has_waited = True
            if not self.gate.wait(epoch, deadline_ns):
                raise error or self._exhausted()

    cdef bint _is_next(self, Waiter *me) noexcept nogil:
        """Whether `me` waits longest. Those who create are passed: they look at nothing, and need no turn."""
        cdef Waiter *waiter
        pthread_mutex_lock(&self.gate.mutex)
        waiter = self.head
        while waiter != NULL and waiter != me and waiter.is_creating:
            waiter = waiter.next
        pthread_mutex_unlock(&self.gate.mutex)
        return waiter == me

    cdef void _join(self, Waiter *me) noexcept nogil:
        cdef Waiter **end = &self.head
        self.gate.enter()
        pthread_mutex_lock(&self.gate.mutex)
        while end[0] != NULL:
            end = &end[0].next
        me.next = NULL
        end[0] = me
        gp_add(&self.queued, 1)
        pthread_mutex_unlock(&self.gate.mutex)

    cdef void _leave(self, Waiter *me) noexcept nogil:
        """Out of the queue; the next one looks. Absent after a fork in a signal handler: then nothing is left to do."""
        cdef Waiter **end = &self.head
        pthread_mutex_lock(&self.gate.mutex)
        while end[0] != NULL and end[0] != me:
            end = &end[0].next
        if end[0] == me:
            end[0] = me.next
            gp_add(&self.queued, -1)
        pthread_mutex_unlock(&self.gate.mutex)
        self.gate.leave()
        self.gate.notify()

    cdef bint _may_get_memory_back(self, bint is_budgeted) except -1:
        """Whether a request that failed may succeed: what was leased then is leased still, or has come back since.

        If the budget had room and the resource refused, only what is leased now can change that.
        """
        has_arena = gp_load(&self.arenas) > gp_load(&self.retiring)
        if has_arena or self.budget is None:
            return has_arena
        room = self.budget.limit - self.nbytes
        if room < 0 or self.budget.pending > 0:
            return room >= 0
        return not is_budgeted and self.budget.in_use - self.budget.reclaimable <= room

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

    cdef Slot *_claim(self) except NULL:
        """EMPTY -> CREATING; adds a chunk of slots when all are taken."""
        cdef Chunk *chunk = &self.first
        cdef Chunk *last
        cdef int i = 0
        cdef int64_t word
        cdef void *fresh
        cdef Slot *slot
        while True:
            last = chunk
            slot = next_slot(&chunk, &i)
            if slot == NULL:
                fresh = calloc(1, sizeof(Chunk))
                if fresh == NULL:
                    raise MemoryError
                if not gp_cas_ptr(&last.next, NULL, fresh):
                    free(fresh)
                chunk, i = last, SLOTS_PER_CHUNK
                continue
            word = gp_load(&slot.word)
            if state_of(word) == EMPTY and gp_cas(&slot.word, word, word + CREATING):
                slot.owner = pthread_self()
                return slot

    cdef Slot *_create(self, bint *is_budgeted) except NULL:
        """A new arena, leased to the caller; says whether the budget had room for it."""
        cdef Slot *slot = NULL
        is_budgeted[0] = False
        try:
            slot = self._claim()
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
        cdef Chunk *chunk
        cdef Slot *slot
        cdef Slot *oldest
        cdef int i
        while True:
            chunk, i, oldest = &self.first, 0, NULL
            slot = next_slot(&chunk, &i)
            while slot != NULL:
                if state_of(gp_load(&slot.word)) == FREE and slot.idle_since_ns <= idle_before_ns:
                    if oldest == NULL or slot.idle_since_ns <= oldest.idle_since_ns:  # same tick: the coldest
                        oldest = slot
                slot = next_slot(&chunk, &i)
            if oldest == NULL:
                return n
            word = gp_load(&oldest.word)
            if state_of(word) != FREE or not gp_cas(&oldest.word, word, word - FREE + RETIRING):
                continue
            oldest.owner = pthread_self()
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

    cdef int64_t _count(self, int state, bint is_charged) noexcept nogil:
        """Slots in a state (only those whose bytes are charged, if asked)."""
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t n = 0
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            if state_of(gp_load(&slot.word)) == state and (slot.is_charged != 0 or not is_charged):
                n += 1
            slot = next_slot(&chunk, &i)
        return n

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
            self._give(<Slot *>slot, (<Slot *>slot).word)

    def unreserve(self, n=1):
        """Take back `n` of the arenas that `reserve` keeps: they stay until `trim` or `close`.

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
        cdef Lease lease = Lease.__new__(Lease)
        cdef int64_t deadline = deadline_after(timeout_s, self.timeout_ns)
        lease.pool = self
        if self.nbytes == 0:
            self._check_open()
        else:
            if gp_load(&self.queued) == 0 and not gp_load(&self.closed):
                lease.slot = self._take()
            if lease.slot == NULL:
                lease.slot = self._acquire_slot(deadline)
            lease.word = gp_load(&lease.slot.word)
        lease.live = 1
        return lease

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
        """
        cdef int64_t now = clock_ns() if now_s is None else <int64_t>(now_s * 1e9)
        return self._retire(now - <int64_t>(idle_s * 1e9), 0) * self.nbytes

    def reclaim(self, nbytes, *, bint takes_reserved=False):
        """Free idle arenas until `nbytes` are freed, reserved ones too if told so; returns the bytes. For budgets."""
        cdef int64_t keep = 0
        if self.nbytes > 0:
            keep = max(gp_load(&self.arenas) - (nbytes + self.nbytes - 1) // self.nbytes, 0)
        return self._retire(UNLIMITED, keep, takes_reserved) * self.nbytes

    @property
    def held(self):
        """Bytes charged to the budget."""
        return sum([self._count(state, True) for state in (CREATING, FREE, LEASED, RETIRING)]) * self.nbytes

    @property
    def reclaimable(self):
        """Bytes of idle arenas that are not reserved."""
        spare = gp_load(&self.arenas) - gp_load(&self.retiring) - gp_load(&self.floor)
        return min(self._count(FREE, True), max(spare, 0)) * self.nbytes

    @property
    def pending(self):
        """Bytes charged to the budget that are leased or being allocated now, and may come back. Unit: bytes."""
        return (self._count(LEASED, True) + self._count(CREATING, True) + self._count(RETIRING, True)) * self.nbytes

    @property
    def idle_since(self):
        """Monotonic time since when the longest idle arena is idle. Unit: seconds; infinity when none is idle."""
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t oldest = UNLIMITED
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            if state_of(gp_load(&slot.word)) == FREE:
                oldest = min(oldest, slot.idle_since_ns)
            slot = next_slot(&chunk, &i)
        return float("inf") if oldest == UNLIMITED else oldest * 1e-9

    def stats(self):
        """What the pool holds now: an `ArenaStats`."""
        return ArenaStats(
            arenas=gp_load(&self.arenas),
            free=self._count(FREE, False),
            leased=self._count(LEASED, False),
            reserved=gp_load(&self.floor),
            nbytes=gp_load(&self.arenas) * self.nbytes,
            peak_nbytes=gp_load(&self.peak_arenas) * self.nbytes,
            created=gp_load(&self.created),
            leases=self._count_leases(),
            waits=gp_load(&self.waits),
            faults=gp_load(&self.faults),
        )

    def _count_leases(self):
        cdef Chunk *chunk = &self.first
        cdef int i = 0
        cdef int64_t n = 0
        cdef Slot *slot = next_slot(&chunk, &i)
        while slot != NULL:
            n += gp_load(&slot.word) // STATES
            slot = next_slot(&chunk, &i)
        return n

    @property
    def is_closed(self):
        """Whether `close` was called."""
        return bool(gp_load(&self.closed))

    def close(self):
        """Free the idle arenas now and the leased ones when they are released; idempotent.

        Whoever waits, or asks from now on, gets a `StateError`.
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
        cdef int64_t word, me = pthread_self()
        cdef Slot *slot = next_slot(&chunk, &i)
        self.gate.reset()
        self.head = NULL
        self.queued = self.retiring = 0
        while slot != NULL:
            word = slot.word
            if slot.owner != me and state_of(word) == LEASED:
                slot.word = word + STATES - LEASED + FREE
                if self.is_poisoned:
                    memset(slot.address, POISON, self.nbytes)
            elif slot.owner != me and state_of(word) in (CREATING, RETIRING):
                slot.address = NULL
                self._forget(slot)
            slot = next_slot(&chunk, &i)


cdef class Lease:
    """The right to one arena of a pool: unique, released once, from any thread.

    Attributes
    ----------
    pool : ArenaPool
        Kept alive by the lease.

    Notes
    -----
    Ownership: whoever holds the token; it cannot be copied or pickled. A lease that is collected while live releases
    its arena and warns (`ResourceWarning`). Threads: safe; of two releases one raises.
    """

    @property
    def address(self):
        """Address of the arena; not zero. Raises `StateError` after the release."""
        if not self._holds():
            raise self._stale()
        return self.pool.alignment if self.slot == NULL else <uintptr_t>self.slot.address

    @property
    def nbytes(self):
        """Size of the arena. Unit: bytes."""
        return self.pool.nbytes

    @property
    def is_live(self):
        """Whether the lease still holds its arena."""
        return bool(self._holds())

    def release(self):
        """Give the arena back.

        Raises
        ------
        StateError
            It was released already, or belongs to a thread that a fork left behind.
        """
        if not gp_exchange(&self.live, 0) or not self._return():
            raise self._stale()

    cdef bint _holds(self) noexcept nogil:
        return gp_load(&self.live) != 0 and (self.slot == NULL or gp_load(&self.slot.word) == self.word)

    cdef bint _return(self) noexcept nogil:
        return self.slot == NULL or self.pool._give(self.slot, self.word)

    def _stale(self):
        return StateError(
            explain("the lease holds no arena any more", accepted="one release", hint="it was released before"),
            nbytes=self.pool.nbytes,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.release()

    def __del__(self):
        if not gp_is_finalizing() and gp_exchange(&self.live, 0) and self._return():
            warnings.warn(f"a lease of {self.pool!r} was never released", ResourceWarning, stacklevel=1, source=self)

    def __reduce__(self):
        raise TypeError("a lease cannot be copied or pickled: it is the right to one arena")

    def __repr__(self):
        return f"<Lease of {self.pool!r}, {'live' if self._holds() else 'released'}>"
