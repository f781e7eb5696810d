"""The constants that one engine's budget is charged for: weights of models, and those in the constant tensor cache."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.cache import constant_tensor_cache
from graphpool.fork import Locked
from graphpool.memory import CONSTANTS_TRACE_DOMAIN, LimitingResource
from graphpool.memory._budget import CONSTANTS
from graphpool.memory._check import out_of_memory
from graphpool.memory.adaptors import TracedResource

from .constant_memory import content_key, memory_of
from .constant_part import held_nbytes, mapped_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable

    from graphpool.cache import ConstantTensorCache
    from graphpool.memory import Budget
    from graphpool.typing import MemoryResource

    from .allowed_memory import MemoryLimit

__all__ = ["EngineConstants"]


class EngineConstants(Locked):
    """Weights that models hold, each charged once however many of them hold it; cached constants, evicted at need.

    `resource` is for constants in the cache, which are a luxury: it gives what is free, and nobody has to give memory
    back. Ownership: keeps the weights that are held. Threads: safe.
    """

    def __init__(self, kind: str, index: int, source: MemoryResource, budget: Budget, limit: MemoryLimit) -> None:
        super().__init__()
        self._limit = limit
        self._device = kind, index
        self.resource = LimitingResource(TracedResource(source, CONSTANTS_TRACE_DOMAIN), budget, takes_spare=True)
        self._budget = budget
        self._weights: dict[Hashable, Any] = {}  # by `content_key`; they live on
        self._holders: defaultdict[Hashable, int] = defaultdict(int)
        self._charging = threading.RLock()
        self.kept_keys: Callable[[], Collection[Hashable]] = tuple  # of cached constants that nobody may evict now
        budget.register(self, stage=CONSTANTS)

    def _reset_in_child(self) -> None:
        super()._reset_in_child()
        self._charging = threading.RLock()

    def nbytes_of(self, weight: Any) -> int:
        """What the budget is charged for a weight, which lies in a mapped file perhaps. Unit: bytes."""
        if not self._limit.counts_host:
            return 0
        return held_nbytes(weight) + (mapped_nbytes(weight) if self._limit.counts_mapped else 0)

    def in_memory(self, weights: Iterable[Any]) -> list[Any]:
        """Those of the weights that the budget is charged for although they lie in no mapped file."""
        return [weight for weight in weights if held_nbytes(weight)] if self._limit.counts_host else []

    def hold(self, weights: Iterable[Any], *, holder: str) -> None:
        """Charge the budget for arrays, but for those that are held already.

        Raises
        ------
        OutOfMemoryError
            They do not fit; nothing is held.
        """
        distinct = {content_key(weight): weight for weight in weights}
        with self._charging:  # who comes second finds what is charged, not what may be refused yet
            missing = self._add(distinct)
            try:
                if missing:  # a limit that was lowered meanwhile refuses nothing at all, too
                    self._budget.charge(missing, holder=holder)
            except BaseException:
                self._budget.uncharge(self._forget(distinct) - missing)  # what others have let go of meanwhile
                raise

    def _add(self, distinct: dict[Hashable, Any]) -> int:
        """One holder more of each; the bytes of those that nobody else holds.

        A finaliser may strike between two lines and release others; so each line leaves the counts right.
        """
        with self._lock:
            for key in distinct:
                self._holders[key] += 1
            self._weights.update(distinct)
            return sum(self.nbytes_of(weight) for key, weight in distinct.items() if self._holders[key] == 1)

    def check_room(self, nbytes: int) -> None:
        """Raise `OutOfMemoryError` unless `resource` has so many bytes now, of which none are to be taken otherwise."""
        if not self._budget.try_charge_spare(nbytes):
            budget = self._budget
            raise out_of_memory(nbytes, in_use=budget.in_use, limit=budget.limit, resource="budget (spare)")
        self._budget.uncharge(nbytes)

    def missing_nbytes(self, weights: Iterable[Any]) -> int:
        """What `hold` would charge now. Unit: bytes."""
        with self._lock:
            distinct = {content_key(weight): weight for weight in weights}
            return sum(self.nbytes_of(weight) for key, weight in distinct.items() if key not in self._weights)

    def release(self, weights: Iterable[Any]) -> None:
        """Take back one `hold` of the same arrays."""
        self._budget.uncharge(self._forget({content_key(weight): weight for weight in weights}))

    def _forget(self, distinct: dict[Hashable, Any]) -> int:
        """One holder less of each; the bytes of those that nobody holds any more."""
        freed = 0
        with self._lock:
            for key, weight in distinct.items():
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key], self._weights[key]
                    freed += self.nbytes_of(weight)
        return freed

    # ---- for the budget

    @property
    def _cache(self) -> ConstantTensorCache:
        return constant_tensor_cache(*self._device)

    def reclaim(self, nbytes: int) -> int:
        """Evict cached constants of this engine, in the order of the cache's policy; returns the bytes freed."""
        return self._cache.reclaim(nbytes, resource=self.resource, but=self.kept_keys())

    @property
    def held(self) -> int:
        """Bytes charged for weights and for cached constants. Unit: bytes."""
        with self._lock:
            weights = sum(map(self.nbytes_of, self._weights.values()))
        return weights + self._cache.nbytes_of(self.resource)

    @property
    def mapped_nbytes(self) -> int:
        """What of that lies in mapped files. Unit: bytes."""
        with self._lock:
            return sum(map(mapped_nbytes, self._weights.values())) if self._limit.counts_mapped else 0

    def blocks(self) -> list[tuple[int, int]]:
        """Address and size of the weights in memory."""
        with self._lock:
            arrays = [memory_of(weight) for weight in self._weights.values() if held_nbytes(weight)]
        return [
            (array.__array_interface__["data"][0], array.nbytes) for array in arrays if isinstance(array, np.ndarray)
        ]

    @property
    def reclaimable(self) -> int:
        """Bytes of cached constants that nobody is using. Unit: bytes."""
        kept = self.kept_keys()
        return sum(nbytes for key, nbytes in self.idle().items() if key not in kept)

    def idle(self) -> dict[Hashable, int]:
        """The cached constants of this engine that nobody is using: key -> size in bytes."""
        return self._cache.idle(self.resource)

    def unbound(self) -> set[Hashable]:
        """Keys of the cached constants of this engine that nothing compiled knows any more."""
        return self._cache.unbound(self.resource)

    def evict(self, key: Hashable) -> int:
        """Evict a cached constant of this engine, unless somebody is using it; returns the bytes freed."""
        return self._cache.evict_idle(key, self.resource)

    # ---- life

    def close(self) -> None:
        """Evict the cached constants whose memory comes from the engine, but for those that other engines use.

        Those, and what an execution is using, stay charged to the engine's budget until their users end.
        """
        self._cache.retire(self.resource)
