"""What is compiled for one set of shapes, and may make others like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from graphpool.fork import Locked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

__all__ = ["ResizableForm", "SizedForm"]


class SizedForm(Protocol):
    """A form as those see it that keep several."""

    @property
    def is_borrowed(self) -> bool:
        """Whether a decision of it would be faster otherwise."""
        ...

    def resized(self, shapes: Mapping[str, Any], exactly: bool = True) -> Self | None:
        """One for other shapes; None if a decision would come out otherwise."""
        ...

    def refusal(self, shapes: Mapping[str, Any]) -> str:
        """Why `resized` gives none, for people."""
        ...

    def close(self) -> None:
        """Give its memory back. Idempotent."""
        ...


class ResizableForm(Locked):
    """Base of forms that share all but their programs with the first, which was compiled.

    Subclasses give back what is one form's in `_free_own`, and what all share in the first's `_free_shared`, after the
    last of them. Threads: safe, also in a forked child.
    """

    def __init__(self) -> None:
        super().__init__()
        self._first: Self | None = None
        self._users = 1
        self._is_closed = False
        self.is_borrowed = False

    def _become(self, first: Self) -> None:
        """Be a form of its own, of a copy of the first, which counts it already."""
        super().__init__()
        self._first, self._is_closed = first, False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def _enter(self) -> bool:
        """Count a form for other shapes; False once nothing is left that it could share."""
        with self._lock:
            self._users += not self._is_closed
            return not self._is_closed

    def close(self) -> None:
        """Give all memory back. No run may be going on. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._free_own()
        (self if self._first is None else self._first)._leave()

    def _leave(self) -> None:
        """One user less of what forms for other shapes share."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._free_shared()

    def _free_own(self) -> None:
        raise NotImplementedError

    def _free_shared(self) -> None:
        raise NotImplementedError
