"""What the primitive cache keeps: a program that knows no ids, used by any number of partitions on any engine.

The idea of the seed "primitive memory caching" in one sentence: a Primitive owns a MemoryManagerCached (one for each
engine, in its `PrimitiveShare`), the LRU cache owns the Primitive, and eviction closes it. Compiling a partition
reserves a pool with the manager; closing the compiled partition returns it to the free list, where the next user of the
cached primitive finds it, so that a primitive which is used again allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from graphpool.cache import compiled_partition_cache, primitive_cache

from ..fork import Locked

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ..schedule import Schedule
    from ._program import Program
    from .constant_part import ConstantPart
    from .engine_primitives import EnginePrimitives
    from .scheduling import ScheduleOptions

__all__ = ["Primitive", "ProgramDetails", "primitive_of"]

_by_serial: WeakValueDictionary[int, Primitive] = WeakValueDictionary()


@dataclass(frozen=True)
class ProgramDetails:
    """What is known of a program's steps beyond what runs them; one entry a step, in issue order, where not said.

    Attributes
    ----------
    kinds : tuple of str
        Kind of the op that each step computes, or of the first of several.
    signatures : tuple of str
        What the cost of each step depends on.
    nodes : tuple of int
        Number of each step in the graph of `schedule`.
    buffers : tuple of (int, int, tuple of int)
        Of each temporary the offset, the size and the steps that touch it, ascending. Unit: bytes.
    options : ScheduleOptions
        What was asked for.
    schedule : Schedule or None
        How the steps were placed; None when nobody asked.
    speedups : tuple of float
        By number in that graph, how many times faster a step was taken to be on all threads.
    traffic : tuple of float
        By number likewise, the bytes that a step is taken to move to and from main memory.
    signature : str
        Of all steps and their edges, for measurements of the whole; empty when nobody asked for a schedule.
    sequential_nbytes : int
        What the arena would take if the steps ran one after another. Unit: bytes.
    """

    kinds: tuple[str, ...]
    signatures: tuple[str, ...]
    nodes: tuple[int, ...]
    buffers: tuple[tuple[int, int, tuple[int, ...]], ...]
    options: ScheduleOptions
    schedule: Schedule | None
    speedups: tuple[float, ...]
    traffic: tuple[float, ...]
    signature: str
    sequential_nbytes: int


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
    details : ProgramDetails
    constant_parts : sequence of ConstantPart, default=()
        Their results are the program's external tensors behind inputs and outputs.

    Attributes
    ----------
    nbytes : int
        Memory of the program: parameter blocks, steps, literals; scratch memory is the engine's. Unit: bytes.
    is_evicted : bool
        Whether no cache keeps it: then it goes with its last user.

    Notes
    -----
    Ownership: owns the program; engines own the shares. Threads: immutable but for who uses it; safe.
    Source: seed "primitive memory caching".
    """

    def __init__(
        self,
        key: Hashable,
        program: Program,
        implementations: Sequence[str],
        step_ops: Sequence[int],
        inplace_ports: Sequence[tuple[int, int]],
        details: ProgramDetails,
        constant_parts: Sequence[ConstantPart] = (),
    ) -> None:
        super().__init__()
        self.key = key
        self.program = program
        self.implementations = tuple(implementations)
        self.step_ops = tuple(step_ops)
        self.inplace_ports = tuple(inplace_ports)
        self.details = details
        self.constant_parts = tuple(constant_parts)
        self.nbytes = program.nbytes + sum(part.program.nbytes for part in self.constant_parts)
        self.is_evicted = False
        self._owners: WeakSet[EnginePrimitives] = WeakSet()
        self._forms: list[Hashable] = []
        _by_serial[program.serial] = self

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
    return _by_serial.get(serial)
