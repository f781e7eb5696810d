"""The queue of a GPU's stream: a CUDA stream, memory for temporaries, and what its work still uses."""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, explain
from graphpool.memory.cuda.device import check, driver, stream_handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.memory.cuda import CudaDevice
    from graphpool.typing import MemoryResource

    from .watch import Watch

__all__ = ["GpuMark", "GpuQueue"]

ALIGNMENT = 256
"""Of a stream's arena. Unit: bytes."""


class GpuMark:
    """An event of its own, destroyed with the mark; who waits for one that a `queue` gave hears what its work met."""

    def __init__(self, device: CudaDevice, stream: int, queue: GpuQueue | None = None) -> None:
        self._device, self.event, self._queue = device, device.new_event(), queue
        with device.current():
            self.move(stream)

    def move(self, stream: int) -> None:
        """Stand behind all work that was given so far; the device's context is current."""
        check(driver().cuEventRecord(self.event, stream), "cuEventRecord")

    def query(self) -> bool:
        """Whether all work before it is done; the device's context is current."""
        error = driver().cuEventQuery(self.event)[0]
        if error and error == driver().CUresult.CUDA_ERROR_NOT_READY:
            return False
        check((error,), "cuEventQuery")
        return True

    @property
    def is_done(self) -> bool:
        """Whether all work before it is done."""
        with self._device.current():
            return self.query()

    def wait(self) -> None:
        """Return when it is done."""
        with self._device.current():
            check(driver().cuEventSynchronize(self.event), "cuEventSynchronize")
        if self._queue is not None:
            self._queue.tell()

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
        self._held: deque[tuple[GpuMark, object, Watch | None]] = deque()
        self._met: InvalidArgumentError | None = None  # the first one that nobody was told of
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

    def hold(self, used: object, watch: Watch | None = None) -> None:
        """Keep objects until the work that was given so far is done, and look at what a program met then.

        Lets go of what is done; called under the lock, the device's context current.
        """
        self._let_go()
        if self._spare:
            mark = self._spare.pop()
            mark.move(self.handle)
        else:
            mark = GpuMark(self._device, self.handle)
        self._held.append((mark, used, watch))

    def _let_go(self) -> None:
        """Of what work used that is done; the device's context is current."""
        while self._held and self._held[0][0].query():
            mark, _, watch = self._held.popleft()
            self._spare.append(mark)
            if watch is not None:
                self._met = self._met or watch.end()

    def wait(self) -> None:
        """Return when all work given so far is done, and let go of what it used.

        Raises
        ------
        InvalidArgumentError
            Some of it met an index outside its axis, of which no other wait has told.
        """
        self._device.synchronize(self.handle)
        self.tell()

    def tell(self) -> None:
        """Raise what work that is done has met, once."""
        with self.lock, self._device.current():
            self._let_go()
            met, self._met = self._met, None
        if met is not None:
            raise met

    def check(self) -> None:
        """Raise what work that is done has met, as long as no wait has told of it."""
        with self.lock, self._device.current():
            self._let_go()
            if self._met is not None:
                raise type(self._met)(str(self._met), **self._met.fields)

    def record(self) -> GpuMark:
        """A mark behind all work given so far."""
        return GpuMark(self._device, self.handle, self)

    def wait_for(self, mark: GpuMark) -> None:
        """Let work given from now on start behind a mark."""
        self._device.wait(self.handle, mark.event)

    def close(self) -> None:
        """Wait, and give back the arena and the stream, unless that is the user's; then raise as `wait`."""
        with self.lock, self._device.current():
            self._is_closed = True
            self._device.synchronize(self.handle)
            self._let_go()
            self._held.clear()
            self._spare.clear()
            self._give_back_arena()
            self._device.synchronize(self.handle)
            if self._native is None:
                self._device.destroy_stream(self.handle)
        self.tell()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not getattr(self, "_is_closed", True) and not is_finalizing():
            with suppress(InvalidArgumentError):  # whose results nobody waited for
                self.close()

    def __repr__(self) -> str:
        return f"<GpuQueue of GPU {self._device.index}, arena of {self.arena_nbytes} bytes>"


def launch(stream: int, function: Any, blocks: int, threads: int, params: int) -> None:
    """Launch a kernel; `params` is the address of an array of addresses of its arguments."""
    result = driver().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, 0)
    check(result, "cuLaunchKernel")
