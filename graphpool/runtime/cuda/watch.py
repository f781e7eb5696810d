"""What tells the host that kernels met an index outside its axis: words of page-locked memory that they write."""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from graphpool.fork import Locked
from graphpool.memory.cuda import PinnedResource
from graphpool.memory.cuda.device import check, driver

from ..outside_axis import outside_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.errors import InvalidArgumentError
    from graphpool.memory.cuda import CudaDevice

    from .gpu_partition import GpuPartition

__all__ = ["WORD_NBYTES", "Watch", "WatchWords"]

WORD_NBYTES = 4
_PAGE_NBYTES = 4096


class WatchWords(Locked):
    """Words for all programs of one engine, in pages that stay until `close`.

    Parameters
    ----------
    device : CudaDevice

    Notes
    -----
    Threads: safe. As all page-locked memory, not in the engine's budget.
    """

    def __init__(self, device: CudaDevice) -> None:
        super().__init__()
        self.device = device
        self._resource: PinnedResource | None = None
        self._pages: list[tuple[int, int]] = []
        self._spare: defaultdict[int, list[int]] = defaultdict(list)
        self._next = self._end = 0

    def take(self, count: int) -> int:
        """Address of so many words.

        Raises
        ------
        OutOfMemoryError
            The system has not so much memory that it can lock.
        """
        with self._lock:
            if self._spare[count]:
                return self._spare[count].pop()
            nbytes = count * WORD_NBYTES
            if self._next + nbytes > self._end:
                self._resource = self._resource or PinnedResource(self.device.index)
                room = -(-nbytes // _PAGE_NBYTES) * _PAGE_NBYTES
                self._next = self._resource.allocate(room, _PAGE_NBYTES)
                self._end = self._next + room
                self._pages.append((self._next, room))
            address, self._next = self._next, self._next + nbytes
            return address

    def give_back(self, address: int, count: int) -> None:
        """Take back what `take` gave, which no work writes any more."""
        with self._lock:
            self._spare[count].append(address)

    def close(self) -> None:
        """Give the pages back; all work of the engine is done, and none comes."""
        with self._lock:
            self._spare.clear()
            self._next = self._end = 0
            while self._pages and self._resource is not None:
                self._resource.deallocate(*self._pages.pop(), _PAGE_NBYTES)


class Watch:
    """The words of a program, one for each launch that looks at indices, for one run at a time.

    Parameters
    ----------
    compiled : GpuPartition
    words : WatchWords

    Notes
    -----
    Threads: one at a time. Reading costs no call of the driver.
    """

    def __init__(self, compiled: GpuPartition, words: WatchWords) -> None:
        self._compiled, self._owner, self._is_pending = compiled, words, False
        self._count = len(compiled.program.watched)
        self.address = words.take(self._count)
        self._words = (ctypes.c_int32 * self._count).from_address(self.address)
        self._clear()

    def _clear(self) -> None:
        ctypes.memset(self.address, 0, ctypes.sizeof(self._words))

    def _settle(self) -> None:
        """Wait for a run that nobody has ended, which a failure elsewhere cut short."""
        if self._is_pending:
            with self._owner.device.current():
                check(driver().cuCtxSynchronize(), "cuCtxSynchronize")
            self.end()

    def begin(self) -> None:
        """Before a run is given to a stream."""
        self._settle()
        self._is_pending = True

    def end(self) -> InvalidArgumentError | None:
        """When a run is done: the error of the first launch that met an index outside, if any did."""
        self._is_pending = False
        if not any(self._words):
            return None
        first = next(launch for launch, word in zip(self._compiled.program.watched, self._words, strict=True) if word)
        self._clear()
        return outside_axis(*self._compiled.op_of(first))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_words") and not is_finalizing():
            self._settle()
            self._owner.give_back(self.address, self._count)
