"""Memory of the states of a session, which its forks share until one of them runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.fork import Locked
from graphpool.memory._arrays import ArrayAllocator
from graphpool.memory._check import check_request

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from graphpool.memory import Budget

    from .held_states import HeldState, HeldStates

__all__ = ["StateBuffers", "StateContent"]


@dataclass(frozen=True)
class StateContent:
    """What the states of a session are now, by input: shapes, and in which of two buffers each lies. Immutable."""

    shapes: Mapping[str, tuple[int, ...]]
    sides: Mapping[str, int]

    @property
    def is_empty(self) -> bool:
        """Whether no run was made: states that grow have no positions, others are zeros of any batch."""
        return not self.shapes


class StateBuffers(Locked):
    """One or two buffers for each state, of the capacity's size.

    A state that is appended to needs one; where a run writes the whole of it, it goes into the other.

    Parameters
    ----------
    states : HeldStates
    budget : Budget
    holder : str
        Who asks; named in errors.
    doubled : collection of str
        Inputs that have two buffers.

    Attributes
    ----------
    nbytes : int
        What the budget is charged. Unit: bytes.

    Notes
    -----
    Ownership: the buffers, until nobody refers to them. Threads: safe, but for what the one user writes.
    """

    def __init__(self, states: HeldStates, budget: Budget, holder: str, doubled: Collection[str]) -> None:
        super().__init__()
        self._states, self._budget, self._holder = states, budget, holder
        self._users: WeakSet[Any] = WeakSet()  # one alone may write
        self._allocator = ArrayAllocator(budget, holder)
        sizes = [state.nbytes for state in states.states]
        nbytes = sum(sizes) + sum(state.nbytes for state in states.states if state.input in doubled)
        check_request(nbytes, 1)
        self._allocator.reserve(nbytes)
        self._strides = {state.input: state.strides for state in states.states}
        self._sides: tuple[dict[str, Any], ...] = (
            {state.input: self._allocate(state) for state in states.states},
            {state.input: self._allocate(state) for state in states.states if state.input in doubled},
        )

    @property
    def nbytes(self) -> int:
        """What the budget is charged. Unit: bytes."""
        return self._allocator.nbytes

    def _allocate(self, state: HeldState) -> np.ndarray[Any, Any]:
        return self._allocator.empty((state.nbytes,), np.dtype(np.uint8))

    def double(self, state: HeldState) -> None:
        """Make the second buffer of a state, if it is not there.

        Raises
        ------
        OutOfMemoryError
            The budget has no room for it.
        """
        if state.input not in self._sides[1]:
            self._sides[1][state.input] = self._allocate(state)

    def missing_nbytes(self, state: HeldState) -> int:
        """What `double` would take. Unit: bytes."""
        return 0 if state.input in self._sides[1] else state.nbytes

    def view(self, state: HeldState, side: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """A state of this shape in one of its buffers."""
        return np.ndarray(shape, state.dtype.numpy, self._sides[side][state.input], strides=self._strides[state.input])

    def clear(self, states: HeldStates) -> None:
        """Let those of the states that do not grow be zeros."""
        for state in states.states:
            if not state.growing:
                self._sides[0][state.input].fill(0)

    # ---- who uses them

    def share(self, user: object) -> None:
        """Let one more session read them."""
        with self._lock:
            self._users.add(user)

    def leave(self, user: object) -> None:
        """One session less."""
        with self._lock:
            self._users.discard(user)

    def own(self, user: object, content: StateContent | None = None) -> StateBuffers:
        """Buffers that a user may write: these if nobody else reads them, else others, with the content if given.

        Raises
        ------
        OutOfMemoryError
            The budget has no room for them.
        """
        with self._lock:  # others wait, of whom the last is alone then
            if len(self._users) <= 1:
                return self
            made = StateBuffers(self._states, self._budget, self._holder, self._sides[1].keys())
            if content is not None and not content.is_empty:
                self._copy_to(made, content)
            made.share(user)
            self._users.discard(user)
            return made

    def _copy_to(self, other: StateBuffers, content: StateContent) -> None:
        for state in self._states.states:
            place = content.sides[state.input], content.shapes[state.input]
            other.view(state, *place)[...] = self.view(state, *place)
