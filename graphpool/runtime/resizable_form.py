"""What is compiled for one set of shapes, and may make others like it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from graphpool.errors import StateError, explain
from graphpool.fork import Locked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    from graphpool._size_program import SizeValues

    from .variable_form import VariableForm

__all__ = ["ResizableForm", "SharesFirst"]


class SharesFirst:
    """Base of what is made for other sizes from a first one: what it does not have of its own is found there.

    So nothing is copied, which takes 30 microseconds where caches hold other data.

    Attributes
    ----------
    _first : object or None
        None for the first itself.
    """

    _first: Self | None

    if not TYPE_CHECKING:  # where attributes are known

        def __getattr__(self, name: str) -> Any:
            """An attribute of the first."""
            first = self.__dict__.get("_first")
            if first is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(first, name)


class ResizableForm(Locked, SharesFirst):
    """Base of forms that share all but their programs with the first, which was compiled for sizes that may vary.

    Subclasses make one for other sizes in `_resized`, and give back what is one form's in `_free_own`, and what all
    share in the first's `_free_shared`, after the last of them. Threads: safe, also in a forked child.

    Attributes
    ----------
    is_borrowed : bool
        Whether a decision of it would be faster otherwise.
    is_planned : bool
        Whether it is for declared shapes, and stays.
    own_nbytes : int
        Memory of its programs. Unit: bytes.
    """

    is_planned = False
    own_nbytes = 0

    def __init__(self, variable: VariableForm | None) -> None:
        super().__init__()
        self._variable = variable
        self._first = None
        self._users = 1
        self._is_closed = False
        self.is_borrowed = False

    def resized(self, shapes: Mapping[Any, Any], exactly: bool = True) -> Self | None:
        """The form for other shapes of the inputs, without compilation; None if a decision would come out otherwise.

        Decisions that only say what is faster count if `exactly`. It shares all but the programs with this one, which
        is closed after the last of them.

        Raises
        ------
        OutOfMemoryError
            The engine's budget has no room for its programs and arena.
        """
        variable = self._variable
        values = None if variable is None else variable.values(shapes, exactly)
        if variable is None or values is None or not self._enter():
            return None
        found = None
        try:
            found = self._resized(variable, values, exactly)
        finally:
            if found is None:
                self._leave()
        return found

    def refusal(self, shapes: Mapping[Any, Any]) -> str:
        """Why `resized` gives no form for these shapes, for people."""
        return "fixed sizes" if self._variable is None else self._variable.refusal(shapes)

    def serve_alone(self) -> None:
        """Be used for the sizes of the compilation, and make no others: that takes least."""
        raise NotImplementedError

    def check_run(self) -> None:
        """Raise `OutOfMemoryError` where the engine's budget can never hold what a run takes, its results included."""

    def _become(self, first: Self, is_borrowed: bool) -> None:
        """Be one for other sizes, of the first, which counts it already."""
        self._variable, self._first, self._is_closed, self.is_borrowed = None, first, False, is_borrowed

    @property
    def first(self) -> Self:
        """The one that it shares all but the programs with; itself if it is the first."""
        return self if self._first is None else self._first

    @property
    def is_resized(self) -> bool:
        """Whether it is one for other shapes, made without compilation."""
        return self._first is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block in which nothing is given back that forms for other shapes share; StateError if it was."""
        if not self._enter():
            raise StateError(explain("the form is closed"))
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> bool:
        """Count a form for other shapes; False once nothing is left that it could share."""
        with self._lock:
            self._users += not self._is_closed
            return not self._is_closed

    def close(self) -> None:
        """Give all memory back. No run may be going on. Idempotent."""
        first = self.first
        with first._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._free_own()
        first._leave()

    def _leave(self) -> None:
        """One user less of what forms for other shapes share."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._free_shared()

    def _resized(self, variable: VariableForm, values: SizeValues, exactly: bool) -> Self | None:
        raise NotImplementedError

    def _free_own(self) -> None:
        raise NotImplementedError

    def _free_shared(self) -> None:
        raise NotImplementedError
