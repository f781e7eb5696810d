"""Budget: one bound in bytes over everything that several pools and caches hold."""

import threading
import weakref

from libc.stdint cimport int64_t

from graphpool._atomic cimport gp_add, gp_add_within, gp_load, gp_raise_to, gp_store, gp_sub_within
from graphpool.memory._gate cimport Gate, clock_ns, deadline_after, nanoseconds

from graphpool.errors import InvalidArgumentError, StateError, explain
from graphpool.memory._check import MAX_NBYTES, check_request, out_of_memory
from graphpool.fork import reset_in_child
from graphpool.memory._stats import BudgetStats
from graphpool.typing import parse_nbytes

IDLE_ARENAS, IDLE_PRIMITIVES, CONSTANTS = 0, 1, 2
"""The stages of relief, in the order in which a budget asks for memory back."""

HOLDINGS = ("arenas", "compiled entries", "constants")
"""What holders of each stage hold; the rest, which nobody can give back but its user, is called ``tensors``."""

cdef int64_t UNLIMITED = <int64_t>1 << 62
cdef int64_t LOOK_PERIOD_NS = 100_000_000


cdef int64_t MOST_NBYTES = MAX_NBYTES


cdef int check_nbytes(nbytes) except -1:
    """As `check_request` of any alignment."""
    if type(nbytes) is not int or not 0 <= nbytes <= MOST_NBYTES:
        check_request(nbytes, 1)
    return 0


cdef bint _keeps(keeper) except -1:
    return keeper is not None and keeper.is_kept


cdef int64_t _parse_limit(limit) except -1:
    return UNLIMITED if limit is None else min(parse_nbytes(limit), UNLIMITED)


cdef class Budget:
    """A bound in bytes that holds at every instant, shared by pools and caches.

    A holder charges before it takes memory and uncharges after it gave it back. When a charge does not fit, the budget
    asks its registered holders for memory, stage by stage (idle arenas, idle primitives, constants; within a stage the
    longest idle first), then waits for what is in use, and then refuses.

    Parameters
    ----------
    limit : int, str or None, default=None
        Bytes, or a size such as ``"512MiB"``; None sets no bound and only counts.

    Attributes
    ----------
    limit, in_use, peak : int
        Unit: bytes.

    Raises
    ------
    InvalidArgumentError
        `limit` is not a size.

    Notes
    -----
    Ownership: holders are kept weakly. Threads: safe; a charge that fits is one compare-and-swap. Holders are asked
    without any lock held, in the thread that needs the memory.

    Examples
    --------
    >>> from graphpool.memory import Budget
    >>> budget = Budget("1KiB")
    >>> budget.charge(1000, holder="example")
    >>> budget.try_charge_spare(100), budget.in_use
    (False, 1000)
    """

    def __cinit__(self):
        self.gate = Gate()
        self._lock = threading.RLock()
        self._holders = []
        self._expectant = weakref.WeakSet()

    def __init__(self, limit=None):
        self._limit = _parse_limit(limit)
        reset_in_child(self)

    @property
    def limit(self):
        return gp_load(&self._limit)

    @property
    def in_use(self):
        return gp_load(&self._in_use)

    @property
    def peak(self):
        return gp_load(&self._peak)

    def reset_peak(self, nbytes=0):
        """Let `peak` begin again at what is in use now.

        For the peak of a block of code: reset it before, and behind it with the larger of both, so that whoever looks
        at the peak of the whole finds it. Charges that other threads make at the same moment may go unseen.

        Parameters
        ----------
        nbytes : int, default=0
            At what it begins at least. Unit: bytes.

        Returns
        -------
        peak : int
            What it was. Unit: bytes.
        """
        check_nbytes(nbytes)
        before = self.peak
        gp_store(&self._peak, max(nbytes, self.in_use))
        return before

    @property
    def pending(self):
        """Bytes in use now that their holders expect back by themselves (leased arenas). Unit: bytes."""
        return self._sum_of("pending")

    @property
    def reclaimable(self):
        """Bytes in use now that holders would give back under pressure. Unit: bytes."""
        return self._sum_of("reclaimable", but_kept=True)

    def _sum_of(self, name, but_kept=False):
        holders = [holder for _, holder, keeper in self._live_holders() if not (but_kept and _keeps(keeper))]
        return sum([getattr(holder, name, 0) for holder in holders])

    def holdings(self):
        """Bytes in use now by what holds them: each of `HOLDINGS`, and ``tensors``."""
        found = dict.fromkeys(HOLDINGS, 0)
        for stage, holder, _ in self._live_holders():
            found[HOLDINGS[stage]] += getattr(holder, "held", 0)
        found["tensors"] = max(self.in_use - sum(found.values()), 0)
        return found

    def blocks(self):
        """(address, size in bytes) of memory in use, as far as holders tell."""
        return [block for _, holder, _ in self._live_holders() for block in getattr(holder, "blocks", list)()]

    cdef bint _try_charge(self, int64_t nbytes) noexcept nogil:
        if not gp_add_within(&self._in_use, nbytes, gp_load(&self._limit)):
            return False
        gp_raise_to(&self._peak, gp_load(&self._in_use))
        return True

    cdef bint _try_uncharge(self, int64_t nbytes) noexcept nogil:
        if not gp_sub_within(&self._in_use, nbytes):
            return False
        self.gate.notify()
        return True

    def keep_room_for(self, expectant):
        """Let `try_charge_spare` leave free what something will need and does not hold now.

        Parameters
        ----------
        expectant : object
            Its attribute ``demand`` says how much, in bytes. Held weakly.
        """
        with self._lock:
            self._expectant.add(expectant)

    cdef int64_t _demand(self) except -1:
        with self._lock:
            expectants = list(self._expectant)
        return sum([expectant.demand for expectant in expectants])

    def try_charge_spare(self, nbytes):
        """Count bytes if they fit beside what others will need, see `keep_room_for`.

        Asks nobody but holders that can ``displace(nbytes)``: give back what is worth less than what is charged for.

        Parameters
        ----------
        nbytes : int
            Unit: bytes.

        Returns
        -------
        is_charged : bool
        """
        check_nbytes(nbytes)
        cdef int64_t limit = gp_load(&self._limit)
        cdef int64_t missing
        if limit == UNLIMITED:
            return self._try_charge(nbytes)
        limit -= self._demand()
        for _, holder, _ in [(0, None, None), *self._live_holders()]:
            missing = nbytes - (limit - gp_load(&self._in_use))
            if missing > 0 and hasattr(holder, "displace"):
                holder.displace(missing)
            if gp_add_within(&self._in_use, nbytes, limit):
                gp_raise_to(&self._peak, gp_load(&self._in_use))
                return True
        return False

    def charge(self, nbytes, *, holder="", timeout_s=0.0):
        """Count `nbytes` bytes, asking holders for memory and then waiting, if they do not fit.

        Parameters
        ----------
        nbytes : int
            Unit: bytes.
        holder : str, default=""
            Who asks; named in the error.
        timeout_s : float, default=0.0
            How long to wait for memory that is in use. Unit: seconds.

        Raises
        ------
        InvalidArgumentError
            A size or time is none.
        OutOfMemoryError
            They do not fit. Nothing is counted; what was reclaimed stays reclaimed.
        """
        check_nbytes(nbytes)
        cdef int64_t wait_ns = nanoseconds(timeout_s, "timeout_s")
        if self._try_charge(nbytes):
            return
        cdef int64_t deadline = clock_ns() + wait_ns
        cdef int64_t epoch = self.gate.enter()
        try:
            while True:
                epoch = self.gate.now()
                if self._try_charge(nbytes) or self._relieve(nbytes):
                    return
                if wait_ns == 0 or nbytes > self.limit or not self.gate.wait(epoch, deadline):
                    raise self._refuse(nbytes, holder, max(self.in_use - self.reclaimable, 0))
        finally:
            self.gate.leave()

    def check(self, nbytes, *, holder="", later_nbytes=0, bint awaits_leases=True):
        """Refuse what could not be charged even after holders gave back all they can and all leases ended.

        Nothing is charged or asked for: this tells before any work is done whether it can end well. Holders are looked
        at only where the bytes do not fit beside all that is in use.

        Parameters
        ----------
        nbytes : int
            Unit: bytes.
        holder : str, default=""
            Who asks; named in the error.
        later_nbytes : int, default=0
            What may be asked for beside them later on, and is not checked now. Unit: bytes.
        awaits_leases : bool, default=True
            Whether those that are out end before the bytes are needed; not those of whoever asks.

        Raises
        ------
        OutOfMemoryError
            Its `smallest_limit` is the least limit for both beside what is in use for good.
        """
        check_nbytes(nbytes)
        if self.in_use + nbytes <= self.limit:
            return
        kept = self.kept if awaits_leases else max(self.in_use - self.reclaimable, 0)
        if kept + nbytes > self.limit:
            raise self._refuse(nbytes, holder, kept + later_nbytes)

    @property
    def kept(self):
        """Bytes in use that neither pressure nor the end of all leases would give back. Unit: bytes."""
        return max(self.in_use - self.reclaimable - self.pending, 0)

    def _relieve(self, nbytes):
        """Ask holders in order until the charge fits; returns whether it was made."""
        cdef int64_t missing
        if nbytes > self.limit:
            return False
        gp_add(&self._reclaims, 1)
        for _, holder, keeper in self._live_holders():
            if keeper is not None:
                continue
            missing = nbytes - (gp_load(&self._limit) - gp_load(&self._in_use))
            if missing > 0:
                holder.reclaim(missing)
            if self._try_charge(nbytes):
                return True
        return False

    def _refuse(self, nbytes, holder, kept):
        gp_add(&self._refusals, 1)
        return out_of_memory(
            nbytes, in_use=self.in_use, limit=self.limit, resource=f"budget (asked by {holder or 'its user'})",
            smallest_limit=kept + nbytes, holdings=self.holdings(),
        )

    def wait_for_room(self, nbytes, *, timeout_s):
        """Wait until so many bytes would fit if holders gave back what they can, or until the time is over.

        Charges nothing, so that nobody is refused because others wait.

        Parameters
        ----------
        nbytes : int
            Unit: bytes.
        timeout_s : float
            How long to wait. Unit: seconds.
        """
        self.wait_until(lambda: self.in_use - self.reclaimable + nbytes <= self.limit, timeout_s=timeout_s)

    def wait_until(self, condition, *, timeout_s=None):
        """Wait until a condition is true, or until the time is over.

        It is looked at again when memory was given back, after `wake`, and ten times a second, since nobody tells when
        what is in use becomes reclaimable.

        Parameters
        ----------
        condition : callable
            Without arguments; gives a bool.
        timeout_s : float, optional
            How long to wait; by default for ever. Unit: seconds.

        Returns
        -------
        is_true : bool
        """
        cdef int64_t deadline = deadline_after(timeout_s, -1), until, epoch
        if condition():
            return True
        epoch = self.gate.enter()
        try:
            while True:
                epoch = self.gate.now()     # before looking: whatever changes from here on ends the sleep below
                if condition():
                    return True
                until = clock_ns()
                if 0 <= deadline <= until:
                    return False
                until += LOOK_PERIOD_NS
                self.gate.wait(epoch, until if deadline < 0 else min(deadline, until))
        finally:
            self.gate.leave()

    def wake(self):
        """Let all who wait look again."""
        self.gate.notify()

    def uncharge(self, nbytes):
        """Take bytes off the count, after their memory was given back; wakes whoever waits.

        Parameters
        ----------
        nbytes : int
            Unit: bytes.

        Raises
        ------
        StateError
            Less than that is counted; nothing is changed.
        """
        check_nbytes(nbytes)
        if not self._try_uncharge(nbytes):
            raise StateError(explain("uncharge", accepted=f"at most {self.in_use} bytes", got=nbytes))

    def resize(self, limit):
        """Set another limit, and ask holders for memory while more than that is in use.

        Parameters
        ----------
        limit : int, str or None
            Unit: bytes; None for no limit.

        Returns
        -------
        is_met : bool
            Whether `in_use` is within the new limit now. What is in use stays; nothing new is charged until it fits.

        Raises
        ------
        InvalidArgumentError
            Not a size; nothing is changed.
        """
        gp_store(&self._limit, _parse_limit(limit))
        self.reclaim(self.in_use - self.limit)
        self.gate.notify()
        return self.in_use <= self.limit

    def reclaim(self, nbytes):
        """Ask holders for memory as a charge that does not fit does.

        Parameters
        ----------
        nbytes : int
            How much is wanted. Unit: bytes.

        Returns
        -------
        nbytes : int
            How much less is in use than before. Unit: bytes.
        """
        cdef int64_t before = self.in_use
        for _, holder, keeper in self._live_holders():
            if keeper is None and before - self.in_use < nbytes:
                holder.reclaim(nbytes - (before - self.in_use))
        return max(before - self.in_use, 0)

    def register(self, holder, *, stage, keeper=None):
        """Ask `holder` for memory under pressure.

        Parameters
        ----------
        holder : object
            Has ``reclaim(nbytes) -> int``, which frees and uncharges what it can; optionally ``idle_since`` (seconds,
            monotonic), and in bytes ``held``, ``reclaimable`` (what `reclaim` could free now) and ``pending`` (what
            will come back by itself); of stage `IDLE_ARENAS` also ``trim(idle_s, now_s) -> int``. Held weakly.
        stage : int
            `IDLE_ARENAS`, `IDLE_PRIMITIVES` or `CONSTANTS`.
        keeper : object, optional
            Who the holder's memory is for. It is another holder's business to ask for it, in an order of its own; and
            none of it counts as reclaimable, nor is trimmed, while ``keeper.is_kept``. Held weakly.
        """
        if stage not in (IDLE_ARENAS, IDLE_PRIMITIVES, CONSTANTS):
            raise InvalidArgumentError(explain("stage of relief", accepted="0, 1 or 2", got=stage))
        with self._lock:
            self._holders = [entry for entry in self._holders if entry[1]() is not None]
            self._holders.append((stage, weakref.ref(holder), None if keeper is None else weakref.ref(keeper)))

    def trim(self, idle_s=0.0, now_s=None):
        """Let the pools registered as `IDLE_ARENAS` trim; see `ArenaPool.trim`.

        Parameters
        ----------
        idle_s : float, default=0.0
            Only arenas that were idle for at least so long. Unit: seconds.
        now_s : float, optional
            The time at which they are looked at, as `time.monotonic` gives it; by default now. Unit: seconds.

        Returns
        -------
        nbytes : int
            What was given back. Unit: bytes.
        """
        found = self._live_holders()
        pools = [holder for stage, holder, keeper in found if stage == IDLE_ARENAS and not _keeps(keeper)]
        return sum([pool.trim(idle_s, now_s) for pool in pools])

    def _live_holders(self):
        """(stage, holder, keeper) in the order of asking."""
        with self._lock:
            alive = [(stage, ref(), None if keeper is None else keeper()) for stage, ref, keeper in self._holders]
        alive = [entry for entry in alive if entry[1] is not None]
        return sorted(alive, key=lambda entry: (entry[0], getattr(entry[1], "idle_since", 0.0)))

    def stats(self):
        """The counters now: a `BudgetStats`."""
        return BudgetStats(
            limit=self.limit, in_use=self.in_use, peak=self.peak,
            reclaims=gp_load(&self._reclaims), refusals=gp_load(&self._refusals),
        )

    def _reset_in_child(self):
        self.gate.reset()
        self._lock = threading.RLock()

    def __repr__(self):
        return f"<Budget {self.in_use} of {self.limit} bytes>"
