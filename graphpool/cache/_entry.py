"""What a constant tensor cache hands out: outcomes and reservations."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ..errors import StateError, explain

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import TracebackType

    from ._handle import ConstantBuffer, ConstantHandle
    from ._hits import Entry
    from .constants import ConstantTensorCache

FullKey = tuple["Hashable", "Hashable"]
"""Backend id and backend key."""


class Outcome(Enum):
    """What a look-up found."""

    HIT = "hit"
    PRODUCE = "produce"
    DECLINED = "declined"


class Reservation:
    """The answer to a look-up: a constant, the right and duty to produce it, or the advice to do without.

    As a context manager it fails the production if the block ends without `fulfil`.

    Attributes
    ----------
    outcome : Outcome
        ``HIT``: `buffer` is the constant. ``PRODUCE``: its bytes are charged; call `fulfil` or `fail`, others wait for
        it. ``DECLINED``: it would not be kept; use a kernel that needs no such constant.
    buffer : ConstantBuffer or None
        The constant, after a hit and after `fulfil`; it lives as long as anyone refers to it.

    Notes
    -----
    Ownership: made by `ConstantTensorCache.lookup_or_reserve`. Threads: belongs to one thread.
    """

    def __init__(
        self,
        outcome: Outcome,
        *,
        buffer: ConstantBuffer | None = None,
        producing: tuple[ConstantTensorCache, Entry, ConstantHandle | None] | None = None,
    ) -> None:
        self.outcome = outcome
        self.buffer = buffer
        self._producing = producing

    def fulfil(self, buffer: ConstantBuffer) -> ConstantBuffer:
        """Hand over the constant, whose content is final from now on; returns it.

        Raises
        ------
        InvalidArgumentError
            No buffer, or larger than was reserved; the production has failed.
        StateError
            There is nothing to produce, or no longer.
        """
        cache, entry, handle = self._take()
        cache._fulfil(entry, handle, buffer)
        self.buffer = buffer
        return buffer

    def fail(self, error: BaseException) -> None:
        """Give up; those who wait get `error`, or, if it is no `Exception`, one of them produces instead."""
        cache, entry, _ = self._take()
        cache._fail(entry, error)

    def _take(self) -> tuple[ConstantTensorCache, Entry, ConstantHandle | None]:
        if self._producing is None:
            raise StateError(explain("there is nothing to produce", accepted="one fulfil or fail after PRODUCE"))
        producing, self._producing = self._producing, None
        return producing

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._producing is not None:
            self.fail(error or _abandoned())

    def __del__(self) -> None:
        if self._producing is not None:
            self.fail(_abandoned())


def _abandoned() -> StateError:
    return StateError(explain("the production of a constant was given up", hint="call fulfil or fail"))
