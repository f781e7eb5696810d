"""StreamLease: memory of a device that knows who still uses it."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Self

from graphpool.errors import StateError, explain

from ...fork import Locked
from .device import open_device, stream_handle

if TYPE_CHECKING:
    from graphpool.typing import MemoryResource

__all__ = ["StreamLease"]


class StreamLease(Locked):
    """The right to memory of a device, which carries its stream.

    Work on its own stream needs no word. Whoever uses the memory on another stream lets that stream wait for this one
    first, and calls `used_on` behind the work. The release then waits, on the lease's stream, for the last of each: the
    memory serves nobody else before, and no thread waits. That a buffer is given back on the stream of its allocation
    while another stream still reads it is the mistake that this is for.

    Parameters
    ----------
    resource : MemoryResource
        A `CudaResource`, or adaptors on one; kept.
    nbytes : int
        Unit: bytes.
    stream : object
        In whose order the memory is there and is given back; kept.
    alignment : int, default=64
        A power of two. Unit: bytes.
    index : int, default=0
        Number of the device.

    Attributes
    ----------
    nbytes : int
        Unit: bytes.
    stream : object
        As it was given.

    Raises
    ------
    OutOfMemoryError, InvalidArgumentError, StateError
        As `CudaResource.allocate`.

    Notes
    -----
    Ownership: whoever holds the lease. One that is collected while live gives its memory back in the same order, and
    warns (`ResourceWarning`). Threads: safe; of two releases one raises. Cost: one event for each stream that has used
    it, made when it first does.
    """

    def __init__(
        self, resource: MemoryResource, nbytes: int, stream: object, *, alignment: int = 64, index: int = 0
    ) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.stream = stream
        self._resource, self._device, self._alignment = resource, open_device(index), alignment
        self._handle = stream_handle(stream)
        self._events: dict[int, int] = {}  # stream: event behind its last use
        self._address: int | None = resource.allocate(nbytes, alignment, self._handle)

    @property
    def address(self) -> int:
        """Device address. Raises `StateError` after the release."""
        address = self._address
        if address is None:
            raise self._stale()
        return address

    @property
    def is_live(self) -> bool:
        """Whether the lease still holds its memory."""
        return self._address is not None

    def used_on(self, stream: object) -> None:
        """Hold the memory until all work that is on `stream` by now has ended.

        Parameters
        ----------
        stream : object
            As of `CudaResource`.

        Raises
        ------
        StateError
            The lease was released.
        """
        handle = stream_handle(stream)
        with self._lock:
            if self._address is None:
                raise self._stale()
            if handle == self._handle:
                return
            if handle not in self._events:
                self._events[handle] = self._device.new_event()
            self._device.record(self._events[handle], handle)

    def release(self) -> None:
        """Give the memory back, behind everybody who has used it.

        Raises
        ------
        StateError
            It was released already.
        """
        with self._lock:
            address = self.address
            for event in self._events.values():
                self._device.wait(self._handle, event)
            self._resource.deallocate(address, self.nbytes, self._alignment, self._handle)
            self._address = None
            while self._events:
                self._device.destroy_event(self._events.popitem()[1])

    def _stale(self) -> StateError:
        return StateError(explain("the lease holds no memory any more", accepted="one release"), nbytes=self.nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None and not sys.is_finalizing():
            self.release()
            warnings.warn(f"{self!r} was never released", ResourceWarning, stacklevel=1, source=self)

    def __reduce__(self) -> str:
        raise TypeError("a lease cannot be copied or pickled: it is the right to memory")

    def __repr__(self) -> str:
        return f"<StreamLease of {self.nbytes} bytes, {'live' if self.is_live else 'released'}>"
