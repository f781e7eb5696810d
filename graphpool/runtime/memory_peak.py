"""What a run takes at most, as one number that knows the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from graphpool.errors import StateError, explain

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["MemoryPeak"]

_FIRST_RUN_NBYTES, _THREAD_NBYTES = 10 * 2**17, 2**17
"""What comes with the first run, pages of the kernels' code and objects of the interpreter: 0.5 to 1.3 MB where it was
measured; and with each thread: its stack and its part of the C heap."""


class MemoryPeak(int):
    """The largest part of its engine's budget that a run of a model takes. Unit: bytes.

    Attributes
    ----------
    mapped_nbytes : int
        What the run reads of weights in mapped files, beside the number itself: pages that the system takes away at
        need. 0 where the budget counts them. Unit: bytes.
    """

    mapped_nbytes: int
    _engine: ref[Engine] | None
    _fixed_nbytes: int | None

    def __new__(cls, nbytes: int, mapped_nbytes: int = 0, engine: Engine | None = None) -> MemoryPeak:
        """A number with facts about it."""
        found = super().__new__(cls, nbytes)
        found._describe(mapped_nbytes, engine)
        return found

    def _describe(self, mapped_nbytes: int, engine: Engine | None) -> None:
        self.mapped_nbytes = mapped_nbytes
        self._engine = None if engine is None else ref(engine)
        self._fixed_nbytes = None

    @property
    def fixed_nbytes(self) -> int:
        """What the process takes beside budget and mapped files when this is first asked for. Unit: bytes.

        With what the first run brings: code that it touches, objects, stacks of threads; and with all shared memory
        that the process has mapped, of which the system takes nothing away.

        Raises `StateError` if the engine is gone by then, `UnsupportedError` where the system does not tell.
        """
        if self._fixed_nbytes is None:
            engine = None if self._engine is None else self._engine()
            if engine is None:
                raise StateError(explain("the engine of the prediction is gone", hint="ask while it is there"))
            report = engine.process_report()
            later_nbytes = _FIRST_RUN_NBYTES + engine.threads * _THREAD_NBYTES
            later_nbytes += report.shared_nbytes - report.parts["shared memory"]  # runs read all of it at most
            self._fixed_nbytes = report.fixed_nbytes + later_nbytes
        return self._fixed_nbytes

    @property
    def resident_nbytes(self) -> int:
        """What the process takes at most: counted, mapped and fixed. Unit: bytes."""
        return self + self.mapped_nbytes + self.fixed_nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (int(self), self.mapped_nbytes)
