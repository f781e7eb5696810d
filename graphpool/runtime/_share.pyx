"""What one engine has of a primitive: its users there, and the pool that they reserve."""

cimport cython
from libc.stdint cimport int64_t

from graphpool.memory._arena cimport ArenaPool
from graphpool._atomic cimport gp_add, gp_cas, gp_load
from graphpool.memory._gate cimport clock_ns

from graphpool.memory import MemoryManagerCached, OffsetLifetimeManager

cdef int64_t ENDED = -1


cdef class IdleBytes:
    """Sum over the shares of an engine that have no users, kept as users come and go. Threads: safe."""

    def __int__(self):
        return max(gp_load(&self.nbytes), 0)


cdef class PrimitiveShare:
    """The users of a primitive on one engine, and its `MemoryManagerCached` there.

    `owner`, whose budget is charged for the primitive as long as the share lasts, is an `EnginePrimitives`. `arenas` is
    None until a user has reserved one; `idle_since` the monotonic time at which the last user left.

    Ownership: the manager. Threads: safe. A user enters by one atomic step unless the share has ended, and it ends only
    while it has no users, so that whoever entered may use the arenas until it leaves. Source: RFC "primitive memory
    caching".
    """

    def __init__(self, primitive, owner):
        self.primitive = primitive
        self.owner = owner
        lifetimes = OffsetLifetimeManager()
        lifetimes.register_group("program")
        lifetimes.start_lifetime("arena")
        lifetimes.end_lifetime("arena", primitive.program.arena_nbytes, 64)
        self.manager = MemoryManagerCached(lifetimes, budget=owner.budget)
        self.idle_since = clock_ns() * 1e-9
        self.idle, self.nbytes = owner.idle, primitive.nbytes
        gp_add(&self.idle.nbytes, self.nbytes)

    @property
    def users(self):
        return max(gp_load(&self.count), 0)

    cdef bint _count_in(self) noexcept:
        cdef int64_t users = gp_load(&self.count)
        while users != ENDED and not gp_cas(&self.count, users, users + 1):
            users = gp_load(&self.count)
        if users == 0:
            gp_add(&self.idle.nbytes, -self.nbytes)
        return users != ENDED

    cdef bint _reserve_warm(self) noexcept:
        cdef ArenaPool arenas
        with cython.critical_section(self):
            arenas = self.arenas
        return arenas is not None and arenas.reserve_warm()

    cdef bint enter_warm(self, bint reserves) except -1:
        if not self._count_in():
            return False
        if not reserves or self._reserve_warm():
            return True
        self._count_out()
        return False

    def enter(self, bint reserves):
        """Count a user and, if it wants one, reserve a pool for it; False if the share has ended.

        Raises
        ------
        OutOfMemoryError
            The engine has no memory for another pool; no user is counted.
        """
        if not self._count_in():
            return False
        if not reserves or self._reserve_warm():
            return True
        try:
            self.manager.reserve_pools(self.owner.source)
            arenas = self.manager.pool_manager.pool.arenas
            (<ArenaPool?>arenas).gives_reserved = True      # see `EnginePrimitives.reclaim`
            with cython.critical_section(self):
                self.arenas = arenas
        except BaseException:
            self._count_out()
            raise
        return True

    cdef int _count_out(self) except -1:
        """One user less, also one that entered in vain: whoever tried to end the share meanwhile left that to it."""
        if gp_add(&self.count, -1) == 0:
            gp_add(&self.idle.nbytes, self.nbytes)
            if self.primitive.is_evicted:
                self.owner.end(self)
        return 0

    cpdef int leave(self, bint reserved) except -1:
        """One user less, and its reservation; the owner ends the share if the primitive has left the cache."""
        if reserved:
            self.arenas.unreserve_one()     # of a closed pool nothing is reserved any more
        self.idle_since = clock_ns() * 1e-9
        return self._count_out()

    def try_end(self):
        """Let nobody enter from now on, if nobody is in; True for the caller that brought this about."""
        if not gp_cas(&self.count, 0, ENDED):
            return False
        gp_add(&self.idle.nbytes, -self.nbytes)
        return True
