"""The boundary of the importer: what a file makes any of its steps raise leaves as an error of graphpool."""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import GraphpoolError, InvalidGraphError, OutOfMemoryError, UnsupportedError, explain

from .build import NotConvertible

if TYPE_CHECKING:
    from types import TracebackType

    from .node import Node

_PASSED = (GraphpoolError, NotConvertible, OSError, Warning)
"""What says itself what was wrong; files that cannot be opened are the caller's."""


class Boundary:
    """A context that turns whatever is raised inside into an error of graphpool: an item "cannot be" `what`.

    Errors of graphpool pass as they are, so boundaries nest and the innermost one names its place. Interrupts pass.
    Around a loop, `item` is set to what comes next.
    """

    __slots__ = ("_what", "item")

    def __init__(self, what: str, item: Node | str = "") -> None:
        self._what, self.item = what, item

    def __enter__(self) -> Boundary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, _PASSED):
            raise self._typed(error) from error

    def _typed(self, error: Exception) -> GraphpoolError:
        """The error of graphpool in place of another one."""
        item = self.item
        fields: dict[str, Any] = {} if isinstance(item, str) else {"node": item.label, "op_type": item.op_type}
        name = item if isinstance(item, str) else f"node {item.label!r} ({item.op_type})"
        what = f"{name} cannot be {self._what}"
        text = (str(error).strip().splitlines() or [""])[0]
        if isinstance(error, MemoryError):
            return _out_of_memory(error, explain(what, got=text or "no memory"), fields)
        got = "graphs nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {text}"
        refusal = UnsupportedError if isinstance(error, NotImplementedError) else InvalidGraphError
        return refusal(explain(what, got=got), **fields)


def _out_of_memory(error: MemoryError, message: str, fields: dict[str, Any]) -> OutOfMemoryError:
    """The error for an array that the system has no memory for; NumPy tells its shape and type."""
    requested = prod(getattr(error, "shape", (0,))) * np.dtype(getattr(error, "dtype", np.uint8)).itemsize
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    known = {"requested": requested, "in_use": 0, "limit": limit, "resource": "the importer", "smallest_limit": None}
    return OutOfMemoryError(message, **known, **fields)
