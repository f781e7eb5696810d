"""The queue of a GPU's stream: a CUDA stream, memory for temporaries, and what its work still uses."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, explain
from graphpool.memory.cuda.device import check, driver, stream_handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.memory.cuda import CudaDevice
    from graphpool.typing import MemoryResource

__all__ = ["GpuMark", "GpuQueue"]

ALIGNMENT = 256
"""Of a stream's arena. Unit: bytes."""


class GpuMark:
    """An event of its own, destroyed with the mark."""

    def __init__(self, device: CudaDevice, stream: int) -> None:
        self._device, self.event = device, device.new_event()
        self.move(stream)

    def move(self, stream: int) -> None:
        """Stand behind all work that was given so far."""
        self._device.record(self.event, stream)

    @property
    def is_done(self) -> bool:
        """Whether all work before it is done."""
        cuda = driver()
        with self._device.current():
            error = cuda.cuEventQuery(self.event)[0]
        if error == cuda.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check((error,), "cuEventQuery")
        return True

    def wait(self) -> None:
        """Return when it is done."""
        with self._device.current():
            check(driver().cuEventSynchronize(self.event), "cuEventSynchronize")

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "event") and not is_finalizing():
            self._device.destroy_event(self.event)


class GpuQueue:
    """Work of one CUDA stream.

    Its arena is as large as the largest program that ran on it: work of a stream is in order, so one serves all. What
    work uses is held until it is done, since memory of a tensor that dies meanwhile would go to others.

    Parameters
    ----------
    device : CudaDevice
    resource : MemoryResource
        Where the arena comes from; it takes streams.
    native : object
        The user's stream, which is kept, or None.

    Notes
    -----
    Ownership: what it has goes with the queue, if not at `close`; the user's stream stays.
    Threads: safe; `lock` is held while the launches of one execution are given, so that they follow one another.
    """

    team = None

    def __init__(self, device: CudaDevice, resource: MemoryResource, native: object) -> None:
        self._is_closed = True  # until there is something to close
        self._device, self._resource, self._native = device, resource, native
        self.handle = device.new_stream() if native is None else self._checked(native)
        self.lock = threading.RLock()
        self._arena, self.arena_nbytes = 0, 0
        self._held: deque[tuple[GpuMark, object]] = deque()
        self._spare: list[GpuMark] = []  # so that a warm run makes no event
        self._is_closed = False

    def _checked(self, native: object) -> int:
        """The handle of the user's stream, which has to be of this device."""
        handle = stream_handle(native)
        with self._device.current():
            found = check(driver().cuStreamGetDevice(handle), "cuStreamGetDevice")
        if int(found) != self._device.index:
            accepted = f"a stream of GPU {self._device.index}"
            raise InvalidArgumentError(explain("native stream", accepted=accepted, got=f"one of GPU {int(found)}"))
        return handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the handle."""
        return 0, self.handle

    def arena(self, nbytes: int) -> int:
        """Address of `nbytes` bytes for temporaries of work that is given next; called under the lock.

        Raises
        ------
        OutOfMemoryError
            There is no room; a smaller arena is given back all the same.
        """
        if nbytes > self.arena_nbytes:
            self._give_back_arena()
            self._arena = self._resource.allocate(nbytes, ALIGNMENT, self.handle)
            self.arena_nbytes = nbytes
        return self._arena

    def _give_back_arena(self) -> None:
        if self.arena_nbytes:
            self._resource.deallocate(self._arena, self.arena_nbytes, ALIGNMENT, self.handle)
            self._arena, self.arena_nbytes = 0, 0

    def hold(self, used: object) -> None:
        """Keep objects until the work that was given so far is done; lets go of what is done; called under the lock."""
        self._let_go()
        if self._spare:
            mark = self._spare.pop()
            mark.move(self.handle)
        else:
            mark = self.record()
        self._held.append((mark, used))

    def _let_go(self) -> None:
        """Of what work used that is done."""
        while self._held and self._held[0][0].is_done:
            self._spare.append(self._held.popleft()[0])

    def wait(self) -> None:
        """Return when all work given so far is done, and let go of what it used."""
        self._device.synchronize(self.handle)
        with self.lock:
            self._let_go()

    def record(self) -> GpuMark:
        """A mark behind all work given so far."""
        return GpuMark(self._device, self.handle)

    def wait_for(self, mark: GpuMark) -> None:
        """Let work given from now on start behind a mark."""
        self._device.wait(self.handle, mark.event)

    def close(self) -> None:
        """Wait, and give back the arena and the stream, unless that is the user's."""
        with self.lock:
            self._is_closed = True
            self._device.synchronize(self.handle)
            self._held.clear()
            self._spare.clear()
            self._give_back_arena()
            self._device.synchronize(self.handle)
            if self._native is None:
                self._device.destroy_stream(self.handle)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not getattr(self, "_is_closed", True) and not is_finalizing():
            self.close()

    def __repr__(self) -> str:
        return f"<GpuQueue of GPU {self._device.index}, arena of {self.arena_nbytes} bytes>"


def launch(stream: int, function: Any, blocks: int, threads: int, params: int) -> None:
    """Launch a kernel; `params` is the address of an array of addresses of its arguments."""
    result = driver().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, 0)
    check(result, "cuLaunchKernel")
