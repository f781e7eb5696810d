"""Spans of compilations and runs, for whoever traces them, such as `graphpool.export.opentelemetry`.

While nobody does, a run pays one look at `opener`, and nothing is described.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from .errors import StateError, explain
from .fork import reset_in_child

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Note", "Opener", "close", "open_with", "span"]


class Note(Protocol):
    """Adds facts to the span that it came from; sizes are in bytes."""

    def __call__(self, **facts: str | int) -> object:
        """Add them."""
        ...


class Opener(Protocol):
    """Begins a span, which ends with its block; an error that leaves the block belongs to it."""

    def __call__(self, name: str, facts: dict[str, str | int]) -> AbstractContextManager[Note]:
        """The span as a context manager."""
        ...


def _ignore(**facts: str | int) -> None:
    """Nobody listens."""


opener: Opener | None = None
"""Set by `open_with` alone."""

_OFF: AbstractContextManager[Note] = nullcontext(_ignore)


class _Changing:
    """One thread at a time says who opens spans; the others read without a lock."""

    def __init__(self) -> None:
        self.lock: Any = threading.Lock()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self.lock = threading.Lock()


_changing = _Changing()


def span(name: str, **facts: str | int) -> AbstractContextManager[Note]:
    """A span around a block; within it, what the context manager gives adds facts."""
    now = opener
    return _OFF if now is None else now(name, facts)


def open_with(own: Opener) -> None:
    """Let spans be opened so from now on, until `close`.

    Raises
    ------
    StateError
        Another one does already.
    """
    global opener
    with _changing.lock:
        if opener is not None:
            raise StateError(explain("spans are exported already", hint="close the other instrumentation first"))
        opener = own


def close(own: Opener) -> None:
    """Open no more spans with this; those that are open end with their blocks. Idempotent."""
    global opener
    with _changing.lock:
        if opener == own:
            opener = None
