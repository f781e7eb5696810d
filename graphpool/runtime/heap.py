"""The C library's heap, which keeps what was freed."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["trim_heap"]


def trim_heap() -> None:
    """Give the system back what is free of the heap, where the C library can: glibc keeps up to 64 MiB at its end.

    Threads: safe. Cost: 40 us, more where much is free.
    """
    _trimmer()(0)


@cache
def _trimmer() -> Callable[[int], Any]:
    trim: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim or (lambda pad: None)
