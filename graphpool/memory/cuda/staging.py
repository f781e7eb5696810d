"""Page-locked host memory, and copies between host and device through it."""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import TYPE_CHECKING, Self

import numpy as np

from graphpool.errors import InvalidArgumentError, StateError, explain
from graphpool.typing import parse_nbytes

from ...fork import Locked
from .._check import check_request, not_held, out_of_memory
from .device import check, driver, open_device, stream_handle
from .live import Block, LiveRequests

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from graphpool.typing import MemoryResource

    from .device import CudaDevice

__all__ = ["HostStaging", "PinnedResource"]

PAGE_NBYTES = 4096


class PinnedResource(LiveRequests):
    """Page-locked memory of the host, which a device copies to and from while others work.

    Parameters
    ----------
    index : int, default=0
        Number of the device.

    Attributes
    ----------
    nbytes, count : int
        Live requests: the sum of their sizes in bytes, and how many.

    Raises
    ------
    UnsupportedError
        See `open_device`.

    Notes
    -----
    Ownership: the caller's, until `deallocate`. Threads: safe. A forked child cannot use it. Cost: both calls take
    long, and giving back waits for all work of the device: take it once, or let an `ArenaPool` keep it.
    """

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Return the address of `nbytes` bytes, for the host and the device alike.

        Parameters
        ----------
        nbytes : int
            Unit: bytes. Zero gives an address of its own.
        alignment : int, default=64
            A power of two. Unit: bytes.
        stream : object, optional
            Ignored: the memory is there on return.

        Returns
        -------
        address : int

        Raises
        ------
        InvalidArgumentError
            `nbytes` or `alignment` is not usable.
        OutOfMemoryError
            The system has not so much memory that it can lock.
        """
        check_request(nbytes, alignment)
        cuda = driver()
        taken = max(nbytes, 1) + max(alignment - 64, 0)
        with self.device.current():
            error, start = cuda.cuMemAllocHost(taken)
        if error == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            in_use = self.nbytes
            raise out_of_memory(nbytes, in_use=in_use, limit=in_use, resource="PinnedResource")
        check((error,), "cuMemAllocHost")
        address = (int(start) + alignment - 1) // alignment * alignment
        with self._lock:
            self._live[address] = Block(nbytes, int(start), taken)
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Take back what `allocate` returned, after all work of the device has ended.

        Raises
        ------
        StateError
            Not held: freed twice, another resource's, or another size. Nothing is freed.
        """
        with self._lock:
            held = self._live.get(address)
            if held is None or held.nbytes != nbytes:
                raise not_held("PinnedResource", address, nbytes)
            with self.device.current():
                check(driver().cuMemFreeHost(held.start), "cuMemFreeHost")
            del self._live[address]

    def __repr__(self) -> str:
        return f"<PinnedResource of GPU {self.device.index}, {self.count} live, {self.nbytes} bytes>"


class _Chunk:
    """A part of the page-locked memory, and the event behind the copy that uses it."""

    def __init__(self, device: CudaDevice, address: int) -> None:
        self.device, self.address = device, address
        self.event = device.new_event()

    def wait(self) -> None:
        """Wait until the chunk may be used again."""
        with self.device.current():
            check(driver().cuEventSynchronize(self.event), "cuEventSynchronize")


class HostStaging(Locked):
    """Copies between arrays of the host and a device through two chunks of page-locked memory.

    While the device copies one chunk, the host fills or empties the other; so copies of any size take a fixed amount of
    memory, and the host waits only for what it has to.

    Parameters
    ----------
    resource : MemoryResource
        A `PinnedResource`, or adaptors on one; kept.
    index : int, default=0
        Number of the device.
    chunk : int or str, default="1MiB"
        Size of each of the two chunks. Unit: bytes.

    Raises
    ------
    InvalidArgumentError
        `chunk` is no size, or below 1.
    OutOfMemoryError
        The resource has no room for two chunks.
    UnsupportedError
        See `open_device`.

    Notes
    -----
    Ownership: takes both chunks at once and gives them back in `close`. Threads: safe; one copy at a time.
    """

    def __init__(self, resource: MemoryResource, index: int = 0, *, chunk: int | str = "1MiB") -> None:
        super().__init__()
        self.chunk_nbytes = parse_nbytes(chunk)
        if self.chunk_nbytes < 1:
            raise InvalidArgumentError(explain("size of a chunk", accepted="at least 1 byte", got=chunk))
        self._device, self._resource = open_device(index), resource
        self._is_closed = True
        self._address = resource.allocate(2 * self.chunk_nbytes, PAGE_NBYTES)
        starts = (self._address, self._address + self.chunk_nbytes)
        self._chunks = [_Chunk(self._device, start) for start in starts]
        self._is_closed = False

    def upload(self, source: NDArray[np.generic], address: int, stream: object) -> None:
        """Copy an array to the device, in the order of a stream.

        Parameters
        ----------
        source : array
            C-contiguous, of any data type and shape. It may be changed as soon as the call returns.
        address : int
            Device address of ``source.nbytes`` bytes.
        stream : object
            As of `CudaResource`.

        Raises
        ------
        InvalidArgumentError
            The array has gaps.
        StateError
            The staging is closed.
        """
        host, handle = _bytes_of(source), stream_handle(stream)
        with self._lock:
            self._check_open()
            for chunk, start, nbytes in self._parts(host.nbytes):
                chunk.wait()
                ctypes.memmove(chunk.address, host.ctypes.data + start, nbytes)
                self._copy(address + start, chunk.address, nbytes, handle)
                self._device.record(chunk.event, handle)

    def download(self, address: int, target: NDArray[np.generic], stream: object) -> None:
        """Copy from the device into an array, behind all work of a stream; returns when the array is written.

        Parameters
        ----------
        address : int
            Device address of ``target.nbytes`` bytes.
        target : array
            C-contiguous and writable.
        stream : object
            As of `CudaResource`.

        Raises
        ------
        InvalidArgumentError
            The array has gaps or is read-only.
        StateError
            The staging is closed.
        """
        host, handle = _bytes_of(target), stream_handle(stream)
        if not host.flags.writeable:
            raise InvalidArgumentError(
                explain("target of a download", accepted="a writable array", got="a read-only one")
            )
        with self._lock:
            self._check_open()
            pending: tuple[_Chunk, int, int] | None = None
            for chunk, start, nbytes in self._parts(host.nbytes):
                chunk.wait()
                self._copy(chunk.address, address + start, nbytes, handle)
                self._device.record(chunk.event, handle)
                if pending is not None:
                    _empty(pending, host)
                pending = (chunk, start, nbytes)
            if pending is not None:
                _empty(pending, host)

    def _parts(self, nbytes: int) -> list[tuple[_Chunk, int, int]]:
        """(chunk, first byte, bytes) in turn."""
        starts = range(0, nbytes, self.chunk_nbytes)
        return [(self._chunks[i % 2], start, min(self.chunk_nbytes, nbytes - start)) for i, start in enumerate(starts)]

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._device.current():
            check(driver().cuMemcpyAsync(target, source, nbytes, stream), "cuMemcpyAsync")

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateError(explain("the staging memory is closed", accepted="copies before close()"))

    def close(self) -> None:
        """Wait for the last copies and give the memory back; idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for chunk in self._chunks:
                chunk.wait()
                self._device.destroy_event(chunk.event)
            self._resource.deallocate(self._address, 2 * self.chunk_nbytes, PAGE_NBYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and not sys.is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    def __repr__(self) -> str:
        return f"<HostStaging of GPU {self._device.index}, 2 chunks of {self.chunk_nbytes} bytes>"


def _bytes_of(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The bytes of an array without a copy."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise InvalidArgumentError(
            explain("array to copy", accepted="a C-contiguous NumPy array", got=type(array).__name__)
        )
    return array.reshape(-1).view(np.uint8)


def _empty(part: tuple[_Chunk, int, int], host: NDArray[np.uint8]) -> None:
    """Write what has arrived in a chunk into the array."""
    chunk, start, nbytes = part
    chunk.wait()
    ctypes.memmove(host.ctypes.data + start, chunk.address, nbytes)
