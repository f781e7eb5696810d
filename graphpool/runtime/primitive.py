"""What the primitive cache keeps: a program that knows no ids, used by any number of partitions on any engine.

The idea of the RFC "primitive memory caching" in one sentence: a Primitive owns a MemoryManagerCached (one for each
engine, in its `PrimitiveShare`), the LRU cache owns the Primitive, and eviction closes it. Compiling a partition
reserves a pool with the manager; closing the compiled partition returns it to the free list, where the next user of the
cached primitive finds it, so that a primitive which is used again allocates nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from graphpool._dataclasses import dataclass
from graphpool.cache import compiled_partition_cache, primitive_cache

from ..fork import Locked, cached_property

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ..schedule import Schedule
    from ._program import Program
    from .constant_part import ConstantPart
    from .engine_primitives import EnginePrimitives
    from .scheduling import ScheduleOptions

    Buffers = tuple[tuple[int, int, tuple[int, ...]], ...]

__all__ = ["Primitive", "ProgramDetails", "primitive_of"]

_by_serial: WeakValueDictionary[int, Primitive] = WeakValueDictionary()


@dataclass(frozen=True)
class ProgramDetails:
    """What is known of a program's steps beyond what runs them; one entry a step, in issue order, where not said.

    `kinds` of ops and `signatures`, on which costs depend, are of the first op of several; `nodes` are numbers in the
    graph of `schedule`, by which `speedups` (on all threads) and `traffic` (bytes to and from main memory) go.
    `buffers` has the offset, size and steps of each temporary; `tensors` the one that each holds first, as the position
    of its op in the partition and its number among the outputs, None for working memory of kernels. `schedule` is None
    and `signature`, of all steps and their edges, empty where nobody asked for one. `sequential_nbytes` is what the
    arena would take if the steps ran one after another.
    """

    kinds: tuple[str, ...]
    signatures: tuple[str, ...]
    nodes: tuple[int, ...]
    buffers: Buffers
    tensors: tuple[tuple[int, int] | None, ...]
    options: ScheduleOptions
    schedule: Schedule | None
    speedups: tuple[float, ...]
    traffic: tuple[float, ...]
    signature: str
    sequential_nbytes: int


class Primitive(Locked):
    """A compiled program that any number of compiled partitions share, with its scratch memory on each engine.

    `key` is the structure of what it computes, free of ids and addresses, under which the cache knows it. The program's
    external tensors are the inputs, the outputs, then the results of `constant_parts`. `step_ops` has for each step the
    position of the op that it computes, or of the first of several; `inplace_ports` positions of (input, output) that
    may share one buffer. `nbytes` counts the program alone; `is_evicted` says that no cache keeps it: it goes with its
    last user.

    Ownership: owns the program; engines own the shares. Threads: immutable but for who uses it; safe. Source: RFC
    "primitive memory caching".
    """

    def __init__(
        self,
        key: Hashable,
        program: Program,
        implementations: Sequence[str],
        step_ops: Sequence[int],
        inplace_ports: Sequence[tuple[int, int]],
        details: ProgramDetails | Callable[[], ProgramDetails],
        constant_parts: Sequence[ConstantPart] = (),
    ) -> None:
        super().__init__()
        self.key = key
        self.program = program
        self.implementations = tuple(implementations)
        self.step_ops = tuple(step_ops)
        self.inplace_ports = tuple(inplace_ports)
        self._described = details
        self.constant_parts = tuple(constant_parts)
        self.nbytes = program.nbytes + sum(part.program.nbytes for part in self.constant_parts)
        self.is_evicted = False
        self._owners: WeakSet[EnginePrimitives] = WeakSet()
        self._forms: list[Hashable] = []
        self._others: dict[int, tuple[int, Callable[[], Buffers]]] = {}
        _by_serial[program.serial] = self

    @cached_property
    def details(self) -> ProgramDetails:
        """What is known of the steps, read when it is first asked for where the program was."""
        return self._described() if callable(self._described) else self._described

    def add_program(self, program: Program, buffers: Callable[[], Buffers]) -> None:
        """Let recordings find it by a program for other sizes, which has other buffers."""
        self._others[program.serial] = program.arena_nbytes, buffers

    def has_program(self, serial: int) -> bool:
        """Whether it has a program for other sizes of this number."""
        return serial in self._others

    def forget_program(self, program: Program) -> None:
        """Let recordings no longer find a program for other sizes, which is gone."""
        self._others.pop(program.serial, None)

    def buffers_of(self, serial: int) -> tuple[Buffers, int]:
        """Offset, size and steps of each temporary of a program, and the size of its arena. Unit: bytes."""
        found = self._others.get(serial)
        return (self.details.buffers, self.program.arena_nbytes) if found is None else (found[1](), found[0])

    @property
    def users(self) -> int:
        """Compiled partitions and models that use it now, on all engines."""
        return sum(share.users for owner in self._all_owners() if (share := owner.share_of(self)))

    def add_owner(self, owner: EnginePrimitives) -> None:
        """Remember an engine that has a share, to tell it of the eviction."""
        with self._lock:
            self._owners.add(owner)

    def add_form(self, key: Hashable) -> None:
        """Remember an entry of the compiled-partition cache that refers to it and leaves with it."""
        with self._lock:
            self._forms.append(key)
            is_evicted = self.is_evicted
        if is_evicted:
            compiled_partition_cache().remove(key)

    def _all_owners(self) -> list[EnginePrimitives]:
        with self._lock:
            return list(self._owners)

    def evict(self) -> None:
        """Leave the cache, with all entries that refer to it: free all memory now, or when the last user ends."""
        with self._lock:
            self.is_evicted = True
            forms, self._forms = self._forms, []
        for key in forms:
            compiled_partition_cache().remove(key)
        for owner in self._all_owners():
            owner.evict(self)

    def drop_if_unused(self) -> None:
        """Leave the cache if no engine has a share any more."""
        if not any(owner.share_of(self) for owner in self._all_owners()):
            primitive_cache().remove(self.key)

    def stats(self) -> dict[str, Any]:
        """Users, and the statistics of the arenas on each engine that uses or keeps it."""
        shares = [share for owner in self._all_owners() if (share := owner.share_of(self))]
        return {
            "users": sum(share.users for share in shares),
            "arenas": [share.arenas.stats() for share in shares if share.arenas is not None],
        }

    def __repr__(self) -> str:
        return f"Primitive({self.program!r}, {self.users} users)"


def primitive_of(serial: int) -> Primitive | None:
    """The primitive whose program has this serial number, while it lives."""
    found = _by_serial.get(serial)
    if found is None:  # a program for other sizes, of which no shape that is new should have to tell
        found = next((one for one in list(_by_serial.values()) if one.has_program(serial)), None)
    return found
