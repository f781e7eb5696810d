"""The limit that would do for a load that finds no room for the numbers that it computes."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, TypeVar

from graphpool.errors import OutOfMemoryError
from graphpool.memory._arrays import ArrayAllocator
from graphpool.memory._budget import Budget
from graphpool.memory._check import out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MOST_BEYOND_NBYTES", "LoadRoom", "load_charged", "refused_with"]

MOST_BEYOND_NBYTES = 8 << 20
"""What a load that is refused may take beyond the limit for a moment, to learn which limit would do. Unit: bytes."""

V = TypeVar("V")


def load_charged(budget: Budget, holder: str, function: Callable[..., V], *given: object) -> V:
    """What a function returns, whose arrays a budget is charged for meanwhile: constants are charged as such then.

    Raises as `ArrayAllocator.call`.
    """
    loading = ArrayAllocator(budget, holder)
    found: V = loading.call(function, *given)
    loading.hand_over()
    return found


class LoadRoom:
    """Charges for the arrays of a load, and tells where it is refused what all of it would have taken.

    Used once. A load that is refused goes on in a budget of its own, of `MOST_BEYOND_NBYTES`, until it is known what
    else is missing; if that is too little, the error is that of the first array that found no room.

    Parameters
    ----------
    budget : Budget
    holder : str
        Who asks; named in the error.
    """

    def __init__(self, budget: Budget, holder: str) -> None:
        self._budget, self._holder = budget, holder
        self._refused: OutOfMemoryError | None = None

    def call(self, function: Callable[..., V], *given: object) -> V:
        """As `load_charged`, but where it is refused and `refusing` is to say so."""
        try:
            return load_charged(self._budget, self._holder, function, *given)
        except OutOfMemoryError as error:
            if error.fields.get("smallest_limit") is None:
                raise
            refused = OutOfMemoryError(str(error), **error.fields)
        gc.collect()  # what has failed may hold arrays, in cycles and as long as its error is handled
        alone, kept_nbytes = Budget(MOST_BEYOND_NBYTES), self._budget.kept
        try:
            found = load_charged(alone, self._holder, function, *given)
        except OutOfMemoryError:
            raise refused from None
        self._refused = refused_with(refused, kept_nbytes + alone.peak)
        return found

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """For what is done with the result: raises `OutOfMemoryError` in the end, if the load was refused."""
        try:
            yield
        except OutOfMemoryError as error:
            if self.worse(error) is error:
                raise
            raise self._take() from error
        if self._refused is not None:
            raise self._take()

    def _take(self) -> OutOfMemoryError:
        """The error, which nothing that its traceback holds has any more: there is no cycle for the collector."""
        error, self._refused = self._refused, None
        assert error is not None
        return error

    def worse(self, error: OutOfMemoryError | None) -> OutOfMemoryError | None:
        """Of an error and that of the load the one that names the larger limit, or none; None if there is no error."""
        errors = [found for found in (error, self._refused) if found is not None]
        return max(errors, key=_limit_of) if errors else None


def _limit_of(error: OutOfMemoryError) -> float:
    least = error.fields.get("smallest_limit")
    return inf if least is None else least


def refused_with(error: OutOfMemoryError, smallest_limit: int) -> OutOfMemoryError:
    """The error with another limit that would do."""
    facts = error.fields
    return out_of_memory(
        facts["requested"], in_use=facts["in_use"], limit=facts["limit"], resource=facts["resource"],
        smallest_limit=smallest_limit, holdings=facts.get("holdings"),
    )  # fmt: skip
