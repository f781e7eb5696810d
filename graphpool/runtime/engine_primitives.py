"""The primitives that one engine uses or keeps for the next user, and what its budget is charged for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import StateError, explain
from graphpool.fork import Locked
from graphpool.memory._budget import IDLE_PRIMITIVES

from ._share import IdleBytes, PrimitiveShare

if TYPE_CHECKING:
    from graphpool.memory import Budget
    from graphpool.typing import MemoryResource

    from .primitive import Primitive

__all__ = ["EnginePrimitives"]


class EnginePrimitives(Locked):
    """One share for each primitive in use or idle on an engine.

    The budget is charged for a primitive, once, from its first use until it is evicted; under pressure it gets idle
    ones back. Arenas come from `source`, and their pools charge themselves. Threads: safe; memory is asked for and
    given back outside every lock.
    """

    def __init__(self, source: MemoryResource, budget: Budget) -> None:
        super().__init__()
        self.source = source
        self.budget = budget
        self.idle = IdleBytes()
        self._shares: dict[Primitive, PrimitiveShare] = {}
        self._is_closed = False
        budget.register(self, stage=IDLE_PRIMITIVES)

    def acquire(self, primitive: Primitive, *, reserves: bool) -> PrimitiveShare:
        """A share with one user more, whose pool is reserved if it wants one; end it with `PrimitiveShare.leave`.

        Raises
        ------
        OutOfMemoryError
            The budget has no room for the primitive, or for another arena.
        StateError
            The engine is closed.
        """
        while True:
            share = self._shares.get(primitive) or self._open(primitive)
            try:
                if share.enter(reserves):
                    return share
            except StateError as error:  # its pools are closed
                raise (_closed() if self._is_closed else error) from error.__cause__

    def missing_nbytes(self, primitive: Primitive) -> int:
        """What another user of the primitive adds to what is charged, arenas apart. Unit: bytes."""
        return 0 if primitive in self._shares else primitive.nbytes

    def _open(self, primitive: Primitive) -> PrimitiveShare:
        self.budget.charge(primitive.nbytes, holder=repr(primitive))
        share = PrimitiveShare(primitive, self)
        with self._lock:
            kept = share if self._is_closed else self._shares.setdefault(primitive, share)
            is_closed = self._is_closed
        if kept is not share or is_closed:
            share.try_end()
            self.budget.uncharge(primitive.nbytes)
        if is_closed:
            raise _closed()
        primitive.add_owner(self)
        return kept

    def end(self, share: PrimitiveShare) -> int:
        """Give back what a share without users holds; returns the bytes that the budget was uncharged."""
        if not share.try_end():
            return 0
        with self._lock:
            is_held = self._shares.pop(share.primitive, None) is share
        before = self.budget.in_use
        share.manager.close()
        if is_held:
            self.budget.uncharge(share.primitive.nbytes)
        return max(before - self.budget.in_use, 0)

    def evict(self, primitive: Primitive) -> None:
        """The primitive has left the cache: end its share now, or when its last user leaves."""
        share = self._shares.get(primitive)
        if share is not None:
            self.end(share)

    # ---- for the budget

    def _all(self) -> list[PrimitiveShare]:
        """The shares, the longest idle first."""
        with self._lock:
            return sorted(self._shares.values(), key=lambda share: share.idle_since)

    def reclaim(self, nbytes: int) -> int:
        """Evict primitives without users, then free idle reserved arenas, until `nbytes` are freed."""
        freed = 0
        for share in self._all():
            if freed >= nbytes:
                return freed
            if share.users == 0:
                freed += self.end(share)
                share.primitive.drop_if_unused()
        for share in self._all():
            if freed < nbytes and share.arenas is not None:
                freed += share.arenas.reclaim(nbytes - freed, takes_reserved=True)
        return freed

    @property
    def held(self) -> int:
        """Bytes charged for primitives; their arenas are charged by their pools. Unit: bytes."""
        return sum(share.primitive.nbytes for share in self._all())

    @property
    def reclaimable(self) -> int:
        """What `reclaim` would free of primitives; their pools count the arenas. Unit: bytes."""
        return 0 if self._is_closed else int(self.idle)

    def share_of(self, primitive: Primitive) -> PrimitiveShare | None:
        """The share of a primitive, or None where the engine has none."""
        return self._shares.get(primitive)

    # ---- life

    def close(self) -> None:
        """Give everything back; leased arenas when they are released. Idempotent."""
        with self._lock:
            self._is_closed = True
            shares = list(self._shares.values())
            self._shares.clear()
        for share in shares:
            share.manager.close()
            self.budget.uncharge(share.primitive.nbytes)


def _closed() -> StateError:
    return StateError(explain("the engine is closed", hint="create another engine"))
