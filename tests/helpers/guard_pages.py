"""Memory between pages that nobody may touch: a read or write behind the end, or before the start, ends the process.

Allocations end where a page ends, up to their alignment; what alignment leaves behind them is filled and compared.
They hold bytes that are NaN in every type of floats, and are unmapped when they are given back.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from graphpool.memory import HostResource
from graphpool.runtime import temporaries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

PAGE = mmap.PAGESIZE
POISON = 0xFF
BEHIND = 0xA5
_PROT_NONE = 0
_PROT_BOTH = mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


class _Mapping:
    """Some bytes at the end of pages between two that are protected."""

    def __init__(self, nbytes: int, alignment: int, holes: Iterable[int] = ()) -> None:
        size = _whole_pages(nbytes + alignment)
        self._total = size + 2 * PAGE
        self._base = _libc.mmap(None, self._total, _PROT_BOTH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        assert self._base != ctypes.c_void_p(-1).value, "no memory"
        end = self._base + PAGE + size
        self.address = (end - nbytes) // alignment * alignment
        self._behind = end - self.address - nbytes
        ctypes.memset(self.address, POISON, nbytes)
        ctypes.memset(self.address + nbytes, BEHIND, self._behind)
        self._tail = self.address + nbytes
        for page in (self._base, end, *(self.address + hole for hole in holes)):
            assert _libc.mprotect(page, PAGE, _PROT_NONE) == 0

    def close(self) -> None:
        """Check what lies between the end and the page behind, and unmap."""
        tail = ctypes.string_at(self._tail, self._behind)
        _libc.munmap(self._base, self._total)
        assert tail == bytes([BEHIND]) * self._behind, "wrote behind the end"


class GuardedResource:
    """A resource that gives each allocation a mapping of its own.

    Parameters
    ----------
    spaced : SpacedPlans, optional
        Knows the arenas whose tensors lie between protected pages.
    """

    def __init__(self, spaced: SpacedPlans | None = None) -> None:
        self._spaced = spaced
        self._live: dict[int, tuple[_Mapping, int]] = {}

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        holes = () if self._spaced is None else self._spaced.holes.get(nbytes, ())
        if nbytes > 2**40:  # what refuses sizes that no machine has stays the host's
            return HostResource().allocate(nbytes, alignment)
        mapping = _Mapping(nbytes, alignment, holes)
        self._live[mapping.address] = mapping, nbytes
        return mapping.address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        mapping, given = self._live.pop(address)
        assert given == nbytes
        mapping.close()


def guarded_array(shape: Sequence[int], dtype: object) -> np.ndarray:
    """A poisoned array whose last element ends where a protected page begins."""
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    mapping = _Mapping(nbytes, dtype.alignment)
    memory = (ctypes.c_char * nbytes).from_address(mapping.address)
    weakref.finalize(memory, mapping.close)
    return np.ndarray(shape, dtype, memory)


def guarded_copy(array: np.ndarray) -> np.ndarray:
    """The array in guarded memory."""
    copy = guarded_array(array.shape, array.dtype)
    copy[...] = array
    return copy


class SpacedPlans:
    """Plans that share nothing: every buffer of an arena lies in pages of its own, with a protected one behind it.

    Attributes
    ----------
    holes : dict of int to list of int
        Size of an arena, which no two plans have in common -> offsets of its protected pages.
    """

    def __init__(self) -> None:
        self.holes: dict[int, list[int]] = {}

    def place(self, sizes: Sequence[int], alignment: int) -> tuple[list[int], int]:
        """Offsets of buffers of these sizes, and the size of the arena."""
        offsets, holes, end = [], [], 0
        for size in sizes:
            end += _whole_pages(size)
            offsets.append((end - size) // alignment * alignment)
            holes.append(end)
            end += PAGE
        nbytes = end + PAGE
        while nbytes in self.holes:
            nbytes += PAGE
        self.holes[nbytes] = holes
        return offsets, nbytes


def space_plans(monkeypatch: pytest.MonkeyPatch) -> SpacedPlans:
    """Put spaced plans in place of those of partitions, until the test ends."""
    plans = SpacedPlans()
    monkeypatch.setattr(
        temporaries.Temporaries, "_plan_in_order", lambda found, sizes: plans.place(sizes, temporaries.ALIGNMENT)
    )
    monkeypatch.setattr(
        temporaries, "_plan_apart", lambda sizes, numbers, schedule: plans.place(sizes, temporaries.ALIGNMENT)
    )
    return plans
