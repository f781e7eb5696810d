"""Pool and memory managers: Arm Compute Library's contract, on leases.

A group asks its memory manager, which joins two others: the lifetime manager knows how much is needed and where each
tensor lies; the pool manager has the arenas, and knows whose turn it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, StateError, brief, check_instance, explain

from ..fork import Locked
from ._budget import Budget
from .lifetime import LifetimeManager, MemoryPool

if TYPE_CHECKING:
    from typing import Self

    from graphpool.typing import MemoryResource

    from ._lease import Lease
    from ._stats import ArenaStats


class PoolManager(Locked):
    """Hands the arenas of one pool to executions, one each.

    Notes
    -----
    Ownership: the registered pool. Threads: safe; fork-safe. Cost: a warm `lock_pool` and `unlock_pool` take no lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pool: MemoryPool | None = None
        self._is_closed = False

    @property
    def pool(self) -> MemoryPool:
        """The registered pool.

        Raises
        ------
        StateError
            There is none.
        """
        pool = self._pool
        if pool is None:
            self._check_open()
            raise StateError(explain("no pool is registered", hint="populate or reserve_pools first"))
        return pool

    @property
    def num_pools(self) -> int:
        """Arenas in existence, each for one execution at a time."""
        if self._pool is None:
            return 0
        stats = self._pool.arenas.stats()
        return max(stats.arenas, stats.reserved)

    def register_pool(self, pool: MemoryPool) -> None:
        """Take over a pool.

        Parameters
        ----------
        pool : MemoryPool

        Raises
        ------
        InvalidArgumentError
            It is none.
        StateError
            One is registered already, or `close` was called.
        """
        check_instance("pool", pool, MemoryPool)
        with self._lock:
            self._check_open()
            if self._pool is not None:
                raise StateError(explain("a pool is registered already", hint="clear first"))
            self._pool = pool

    def ensure_pool(
        self, lifetimes: LifetimeManager, resource: MemoryResource, budget: Budget | None = None
    ) -> MemoryPool:
        """The registered pool, or a new one where none is, or where one that nobody uses has become too small.

        Parameters
        ----------
        lifetimes : LifetimeManager
            Knows how much is needed.
        resource : MemoryResource
            Where a new pool's arenas come from.
        budget : Budget, optional
            Charged for every arena of a new pool.

        Returns
        -------
        pool : MemoryPool

        Raises
        ------
        StateError
            The layout grew while arenas of the old size are reserved or leased, or `close` was called.
        """
        with self._lock:
            self._check_open()
            pool = self._pool
            if pool is not None and pool.blobs != lifetimes.info():
                if pool.arenas.stats().reserved:
                    raise StateError(explain("the layout grew while pools are reserved", hint="unreserve them first"))
                self.clear_pools()
                pool = None
            if pool is None:
                pool = self._pool = lifetimes.create_pool(resource, budget=budget)
            return pool

    def clear_pools(self) -> None:
        """Free every arena and forget the pool.

        Raises
        ------
        StateError
            An arena is leased; nothing is changed.
        """
        with self._lock:
            if self._pool is None:
                return
            stats = self._pool.arenas.stats()
            if stats.leased:
                raise StateError(explain("pools are occupied", accepted="no execution under way", got=stats.leased))
            self._pool.arenas.close()
            self._pool = None

    def stats(self) -> ArenaStats | None:
        """The arenas of the registered pool now; None while there is none.

        Returns
        -------
        ArenaStats or None
        """
        pool = self._pool
        return None if pool is None else pool.arenas.stats()

    def lock_pool(self, timeout_s: float | None = None) -> Lease:
        """An arena for one execution, waiting for one if need be.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait; by default the pool's own time. Unit: seconds.

        Returns
        -------
        lease : Lease

        Raises
        ------
        StateError
            There is no pool, or it is closed.
        OutOfMemoryError
            None came free in time, or memory is short and no lease is out to wait for.
        """
        return self.pool.arenas.lease(timeout_s)

    def unlock_pool(self, lease: Lease) -> None:
        """Give back what `lock_pool` gave.

        Parameters
        ----------
        lease : Lease

        Raises
        ------
        StateError
            It was given back already, or comes from another pool.
        """
        if self._pool is None or lease.pool is not self._pool.arenas:
            raise StateError(explain("the lease comes from another pool manager", got=lease))
        lease.release()

    def close(self) -> None:
        """Free idle arenas now and leased ones when they are released; there are no others from now on. Idempotent."""
        with self._lock:
            self._is_closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.arenas.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateError(explain("the pool manager is closed", hint="make another one"))


class MemoryManager(Locked):
    """A lifetime manager and a pool manager that belong together.

    Parameters
    ----------
    lifetime_manager : LifetimeManager
    pool_manager : PoolManager, optional
        A new one by default.
    budget : Budget, optional
        Charged for every arena.

    Raises
    ------
    InvalidArgumentError
        One of them is of another class.

    Notes
    -----
    Ownership: both managers. Threads: safe. Source: Arm Compute Library's IMemoryManager, as a behaviour.
    """

    def __init__(
        self,
        lifetime_manager: LifetimeManager,
        pool_manager: PoolManager | None = None,
        *,
        budget: Budget | None = None,
    ) -> None:
        check_instance("lifetime_manager", lifetime_manager, LifetimeManager)
        if pool_manager is not None:
            check_instance("pool_manager", pool_manager, PoolManager)
        if budget is not None:
            check_instance("budget", budget, Budget)
        super().__init__()
        self.lifetime_manager = lifetime_manager
        self.pool_manager = PoolManager() if pool_manager is None else pool_manager
        self.budget = budget

    def populate(self, resource: MemoryResource, num_pools: int = 1) -> None:
        """Allocate arenas for executions at once.

        Parameters
        ----------
        resource : MemoryResource
            Where they come from.
        num_pools : int, default=1
            For how many executions.

        Raises
        ------
        InvalidArgumentError
            `num_pools` is below 1.
        StateError
            A group is not finalised, or pools exist already.
        OutOfMemoryError
            The resource or the budget refused; nothing is kept.
        """
        if not isinstance(num_pools, int) or num_pools < 1:
            raise InvalidArgumentError(explain("num_pools", accepted="an int >= 1", got=brief(num_pools)))
        pool = self.lifetime_manager.create_pool(resource, max_arenas=self._limit(num_pools), budget=self.budget)
        try:
            if self.pool_manager.num_pools:
                raise StateError(explain("pools exist already", hint="clear first"))
            pool.arenas.reserve(num_pools)
            self.pool_manager.register_pool(pool)
        except BaseException:
            pool.arenas.close()
            raise

    def _limit(self, num_pools: int) -> int | None:
        """How many arenas a populated pool may have: callers beyond that wait."""
        return num_pools

    def clear(self) -> None:
        """Free every pool; raises `StateError` while one is occupied."""
        self.pool_manager.clear_pools()

    def stats(self) -> ArenaStats | None:
        """The arenas now; None while there is no pool.

        Returns
        -------
        ArenaStats or None
        """
        return self.pool_manager.stats()

    def close(self) -> None:
        """Free idle pools now and occupied ones when they are released; there are no others from now on. Idempotent."""
        self.pool_manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class MemoryManagerOnDemand(MemoryManager):
    """Pools exist from `populate` to `clear`; a caller that finds all of them occupied waits."""


class MemoryManagerCached(MemoryManager):
    """Pools outlive the objects that reserve them: made for a cached primitive, which owns the manager.

    An object that is created reserves, one that is destroyed unreserves; what was unreserved is there for the next. The
    primitive's eviction closes the manager: leased arenas finish, then everything is freed.

    Notes
    -----
    Source: a proposal to oneDNN on memory cached with primitives. There, a reservation moves some pool to a list; here
    it raises the number of arenas that stay in existence, and each execution takes whichever of them is free. So two
    reservations cannot take each other's pool, and returning too many raises.

    Examples
    --------
    >>> from graphpool.memory import HostResource, MemoryManagerCached, OffsetLifetimeManager
    >>> lifetimes = OffsetLifetimeManager()
    >>> lifetimes.register_group("gemm")
    >>> lifetimes.start_lifetime("packed")
    >>> lifetimes.end_lifetime("packed", 4096)
    >>> with MemoryManagerCached(lifetimes) as manager:
    ...     first = manager.reserve_pools(HostResource())
    ...     manager.unreserve_pools()
    ...     first, manager.reserve_pools(HostResource())
    (4096, 0)
    """

    def _limit(self, num_pools: int) -> int | None:
        return None

    def reserve_pools(self, resource: MemoryResource, num_pools: int = 1) -> int:
        """Reserve pools so that `num_pools` more executions at once allocate nothing.

        Pools that are free are reused before new ones are made.

        Parameters
        ----------
        resource : MemoryResource
            Source of the memory while the manager has no pool; kept alive by it.
        num_pools : int, default=1

        Returns
        -------
        nbytes : int
            Memory newly taken. Unit: bytes; 0 when free pools sufficed.

        Raises
        ------
        OutOfMemoryError
            The resource or the budget refused; nothing is reserved.
        StateError
            A group is not finalised, or the layout grew while pools of the old size are in use.
        """
        return self.pool_manager.ensure_pool(self.lifetime_manager, resource, self.budget).arenas.reserve(num_pools)

    def unreserve_pools(self, num_pools: int = 1) -> None:
        """Return reservations; the pools stay, free, until `trim` or `close`.

        Parameters
        ----------
        num_pools : int, default=1
            How many.

        Raises
        ------
        StateError
            Fewer are reserved; nothing is changed.
        """
        self.pool_manager.pool.arenas.unreserve(num_pools)

    def trim(self, idle_s: float = 0.0) -> int:
        """Free pools that are neither reserved nor leased.

        Parameters
        ----------
        idle_s : float, default=0.0
            Only those idle for at least so long. Unit: seconds.

        Returns
        -------
        nbytes : int
            What was freed. Unit: bytes.
        """
        return self.pool_manager.pool.arenas.trim(idle_s) if self.pool_manager.num_pools else 0
