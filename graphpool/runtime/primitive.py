"""What the primitive cache keeps: a program that knows no ids, and the managers of its scratch memory.

The idea of the seed "primitive memory caching" in one sentence: a Primitive owns a MemoryManagerCached, the LRU cache
owns the Primitive, and eviction closes it. Compiling a partition reserves a pool with the manager; closing the compiled
partition returns it to the free list, where the next user of the cached primitive finds it, so that a primitive which
is used again allocates nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from graphpool.memory import MemoryManagerCached, OffsetLifetimeManager

from ..memory._fork import Locked

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..memory import ArenaPool
    from ._program import Program
    from .constant_part import ConstantPart
    from .engine import Engine

__all__ = ["Primitive"]


class Primitive(Locked):
    """A compiled program that any number of compiled partitions share, with its scratch memory on each engine.

    Parameters
    ----------
    key : hashable
        Under which the cache knows it: the structure of what it computes, free of ids and addresses.
    program : Program
        Its external tensors are the inputs, then the outputs.
    implementations : sequence of str
        One name a step.
    step_ops : sequence of int
        Position, among the partition's ops, of the op that each step computes, or of the first of several.
    inplace_ports : sequence of (int, int)
        Positions of (input, output) that may share one buffer.
    constant_parts : sequence of ConstantPart, default=()
        Their results are the program's external tensors behind inputs and outputs.

    Attributes
    ----------
    nbytes : int
        Memory of the parameter blocks; scratch memory is the engine's. Unit: bytes.

    Notes
    -----
    Ownership: owns the program and, for each engine, a `MemoryManagerCached`. Threads: immutable but for the managers,
    which are guarded; safe. Source: seed "primitive memory caching".
    """

    def __init__(
        self,
        key: Hashable,
        program: Program,
        implementations: Sequence[str],
        step_ops: Sequence[int],
        inplace_ports: Sequence[tuple[int, int]],
        constant_parts: Sequence[ConstantPart] = (),
    ) -> None:
        super().__init__()
        self.key = key
        self.program = program
        self.implementations = tuple(implementations)
        self.step_ops = tuple(step_ops)
        self.inplace_ports = tuple(inplace_ports)
        self.constant_parts = tuple(constant_parts)
        programs = (program, *(part.program for part in self.constant_parts))
        self.nbytes = sum(call.params.nbytes for each in programs for call in each.calls)
        self._managers: WeakKeyDictionary[Engine, MemoryManagerCached] = WeakKeyDictionary()
        self._users = 0
        self._is_evicted = False

    @property
    def users(self) -> int:
        """Compiled partitions that use it now."""
        return self._users

    def acquire(self, engine: Engine) -> ArenaPool:
        """Note one more user and reserve a pool for it; the arenas of the engine.

        Raises
        ------
        OutOfMemoryError
            The engine has no memory for another pool; nothing is changed.
        """
        with self._lock:
            manager = self._managers.get(engine)
            if manager is None:
                manager = self._managers[engine] = self._make_manager(engine)
            manager.reserve_pools(engine.resource)
            self._users += 1
            return manager.pool_manager.pool.arenas

    def _make_manager(self, engine: Engine) -> MemoryManagerCached:
        lifetimes = OffsetLifetimeManager()
        lifetimes.register_group("program")
        lifetimes.start_lifetime("arena")
        lifetimes.end_lifetime("arena", self.program.arena_nbytes, 64)
        manager = MemoryManagerCached(lifetimes)
        engine.attach(manager)
        return manager

    def release(self, engine: Engine, *, keep: bool) -> None:
        """Note that a user has ended and return its pool.

        Parameters
        ----------
        engine : Engine
        keep : bool
            Whether the pool stays for the next user; False frees all memory that nobody uses.
        """
        with self._lock:
            self._users -= 1
            manager = self._managers.get(engine)
            if manager is not None and not engine.is_closed:
                manager.unreserve_pools()
            if self._users == 0 and (self._is_evicted or not keep):
                self._close_managers()

    def evict(self) -> None:
        """Leave the cache: free all memory now, or when the last user ends."""
        with self._lock:
            self._is_evicted = True
            if self._users == 0:
                self._close_managers()

    def _close_managers(self) -> None:
        managers, self._managers = dict(self._managers), WeakKeyDictionary()
        for manager in managers.values():
            manager.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # a primitive that no cache keeps goes with its last user; when the process ends, its memory goes anyway
        if not is_finalizing():
            self._close_managers()

    def stats(self) -> dict[str, Any]:
        """Users, and the statistics of the arenas on each engine."""
        with self._lock:
            arenas = {repr(engine): m.pool_manager.pool.arenas.stats() for engine, m in self._managers.items()}
            return {"users": self._users, "arenas": arenas}

    def __repr__(self) -> str:
        return f"Primitive({self.program!r}, {self._users} users)"
