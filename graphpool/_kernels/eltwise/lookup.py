"""Functions of one byte, by a table of their 256 values."""

from __future__ import annotations

from graphpool.errors import InvalidShapeError, explain

from ..core.call import KernelCall, pack

__all__ = ["byte_lookup"]

_BLOCK = 1 << 14
"""Bytes of a task: about 5 microseconds."""


def byte_lookup(n: int, isa: str | None = None) -> KernelCall:
    """A kernel for ``dst[i] = table[src[i]]``; arguments: src of n bytes, table of 256, dst, apart from src.

    Signed bytes are looked up by their bits. Cost: about a cycle for each byte.
    """
    if n < 0:
        raise InvalidShapeError(explain("number of bytes", accepted=">= 0", got=n))
    return pack("x8_lookup", {"n": n, "block": _BLOCK}, ntasks=-(-n // _BLOCK), isa=isa)
