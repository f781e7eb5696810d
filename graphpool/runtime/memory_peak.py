"""What a run takes at most, as one number that knows the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from graphpool.errors import StateError, explain

from .heap import trim_heap
from .mapped_reads import NO_READS, MappedReads

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["MemoryPeak", "within_limit"]

_FIRST_RUN_NBYTES, _THREAD_NBYTES = 2**21, 2**17
"""What comes with the first run, pages of the kernels' code and objects of the interpreter: 0.5 to 2.0 MB where it was
measured; and with each thread: its stack and its part of the C heap."""


def within_limit(nbytes: int, engine: Engine) -> tuple[int, bool]:
    """What of a sum runs can take, and whether they take it all: at a limit they give up what other forms keep."""
    limit = engine.memory_limit
    return (nbytes, True) if limit is None or nbytes <= limit else (limit, False)


class MemoryPeak(int):
    """The largest part of its engine's budget that a run of a model takes. Unit: bytes.

    Attributes
    ----------
    is_exact : bool
        Whether a run takes just that; else it is the most: contents decide, or it is the limit of the engine, at
        which runs give up programs of other shapes.
    reserved_nbytes : int
        What of the number runs reserve for host functions, which may write less of it. Unit: bytes.
    unbounded : tuple of str
        Nodes that the host runs, and loops, of which only a run tells how much they take, as where trips of a loop or
        the length of texts follow from contents. It is not in the numbers; the run is charged for it, and refused where
        it does not fit. Without such nodes no run takes more than what is told.
    objects_nbytes : int
        Objects of Python that the run makes at most, such as maps, and what the C heap may keep of arrays that host
        functions are done with: no budget counts them. Unit: bytes.
    """

    is_exact: bool = True
    reserved_nbytes: int = 0
    unbounded: tuple[str, ...] = ()
    objects_nbytes: int = 0
    _reads: MappedReads
    _engine: ref[Engine] | None
    _untouched_nbytes: int
    _fixed_nbytes: int | None

    def __new__(
        cls, nbytes: int, reads: MappedReads = NO_READS, engine: Engine | None = None, untouched_nbytes: int = 0
    ) -> MemoryPeak:
        """A number with facts about it."""
        found = super().__new__(cls, nbytes)
        found._describe(reads, engine, untouched_nbytes)
        return found

    def _describe(self, reads: MappedReads, engine: Engine | None, untouched_nbytes: int) -> None:
        self._reads, self._untouched_nbytes = reads, untouched_nbytes
        self._engine = None if engine is None else ref(engine)
        self._fixed_nbytes = None

    @property
    def mapped_nbytes(self) -> int:
        """What the run reads of weights in mapped files, beside the number itself. Unit: bytes.

        Whole pages, which the system takes away at need; of a table in which the run looks up rows what so many rows
        may bring in, the whole table at most. Where the budget counts weights in files, what goes beyond that.
        """
        return self._reads.nbytes

    @property
    def lookup_nbytes(self) -> int:
        """What of `mapped_nbytes` stands for rows of tables: how much it is depends on the rows. Unit: bytes."""
        return min(self._reads.rows_nbytes, self.mapped_nbytes)

    @property
    def fixed_nbytes(self) -> int:
        """What the process takes when this is first asked for, beside budget and mapped files that the run reads.

        With what the first run brings: code that it touches, objects, stacks of threads; with what is in memory of
        other mapped files; and with all shared memory that the process has mapped, of which the system takes nothing
        away. Unit: bytes.

        Raises `StateError` if the engine is gone by then, `UnsupportedError` where the system does not tell.
        """
        if self._fixed_nbytes is None:
            engine = None if self._engine is None else self._engine()
            if engine is None:
                raise StateError(explain("the engine of the prediction is gone", hint="ask while it is there"))
            trim_heap()  # runs take what is free there for their objects, or give it back
            report = engine.process_report()
            later_nbytes = _FIRST_RUN_NBYTES + engine.threads * _THREAD_NBYTES
            later_nbytes += report.shared_nbytes - report.parts["shared memory"]  # runs read all of it at most
            later_nbytes += max(report.parts["mapped files"] - self._reads.present_nbytes(), 0)
            self._fixed_nbytes = report.fixed_nbytes + later_nbytes
        return self._fixed_nbytes

    @property
    def untouched_nbytes(self) -> int:
        """What of the number itself stays out of memory: room in the arena for packing constants that are kept packed.

        Where the cache loses them runs use that room, and the constants are not in memory. Unit: bytes.
        """
        return self._untouched_nbytes

    @property
    def resident_nbytes(self) -> int:
        """What the process takes at most: counted, mapped, fixed, and objects, less what is untouched. Unit: bytes."""
        return self + self.mapped_nbytes + self.fixed_nbytes + self.objects_nbytes - self.untouched_nbytes

    @property
    def _plain_reads(self) -> MappedReads:
        """The reads without addresses, which mean nothing in another process."""
        return MappedReads(((0, self.mapped_nbytes - self.lookup_nbytes),), self.lookup_nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self), self._plain_reads), self._host_facts

    @property
    def _host_facts(self) -> dict[str, Any]:
        names = "is_exact", "reserved_nbytes", "unbounded", "objects_nbytes"
        return {name: getattr(self, name) for name in names}
