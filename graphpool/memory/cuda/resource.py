"""CudaResource: memory of a GPU."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Self

from graphpool.errors import StateError, explain
from graphpool.typing import parse_nbytes

from .._check import check_request, not_held, out_of_memory
from .device import check, driver, stream_handle
from .live import Block, LiveRequests

if TYPE_CHECKING:
    from graphpool.errors import OutOfMemoryError

__all__ = ["CudaResource"]

POOL_ALIGNMENT = 256
"""What every allocation of a pool is aligned to. Unit: bytes."""

KEEP_ALL = 2**64 - 1


class CudaResource(LiveRequests):
    """Memory of one GPU, from a pool of its own.

    Parameters
    ----------
    index : int, default=0
        Number of the device.
    limit : int or str, optional
        Most bytes of live requests, with what alignment takes, at any instant; by default what the device has. The
        driver's pool takes memory in steps, 32 MiB on an H200, and may hold this rounded up to one.
    release_threshold : int or str, optional
        How many bytes the pool keeps when somebody waits for the device; by default all that it has, until `trim`.

    Attributes
    ----------
    device : CudaDevice
    nbytes, count : int
        Live requests: the sum of their sizes in bytes, and how many.
    reserved, reserved_peak : int
        What the pool holds of the device's memory, live or kept for later, now and at most. Unit: bytes.

    Raises
    ------
    UnsupportedError
        See `open_device`.

    Notes
    -----
    A stream is a `cuda.core.Stream`, an object with ``__cuda_stream__``, or a handle. Memory taken or given back with a
    stream is so in the order of that stream: no one waits. Without one it is there for everybody when `allocate`
    returns, and may be given back when all work that uses it has ended. Where several streams use it, a `StreamLease`
    finds the moment.

    Ownership: the caller's, until `deallocate`; the pool is the resource's, and outlives it where memory of it is live.
    Threads: safe. A forked child cannot use it. Cost: one call of the driver a request; none that waits for the
    device, but where no stream is named.

    Examples
    --------
    >>> from graphpool.memory.cuda import CudaResource
    >>> with CudaResource(limit="1GiB") as resource:  # doctest: +SKIP
    ...     address = resource.allocate(4096)
    ...     resource.deallocate(address, 4096)
    """

    def __init__(
        self, index: int = 0, *, limit: int | str | None = None, release_threshold: int | str | None = None
    ) -> None:
        super().__init__(index)
        self.limit = self.device.total_nbytes if limit is None else parse_nbytes(limit)
        self._taken = 0  # bytes of the pool, those for alignment too
        self._is_closed = True  # until there is something to close
        self._pool = self._new_pool()
        self._stream = self.device.new_stream()
        self._is_closed = False
        threshold = KEEP_ALL if release_threshold is None else parse_nbytes(release_threshold)
        self._set_attribute("RELEASE_THRESHOLD", threshold)

    def _new_pool(self) -> Any:
        from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

        with self.device.current():
            options = DeviceMemoryResourceOptions(max_size=min(self.limit, self.device.total_nbytes))
            return DeviceMemoryResource(Device(self.device.index), options)

    def blocks(self) -> list[tuple[int, int]]:
        """(address, size in bytes) of all live requests.

        Returns
        -------
        list of (int, int)
        """
        return [(address, block.nbytes) for address, block in self._live.copy().items()]

    @property
    def reserved(self) -> int:
        """Bytes that the pool holds of the device's memory."""
        return self._attribute("RESERVED_MEM_CURRENT")

    @property
    def reserved_peak(self) -> int:
        """The most that `reserved` was. Unit: bytes."""
        return self._attribute("RESERVED_MEM_HIGH")

    def _attribute(self, name: str) -> int:
        if self._pool.is_closed:
            return 0
        attribute = getattr(driver().CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
        return int(check(driver().cuMemPoolGetAttribute(self._pool.handle, attribute), "cuMemPoolGetAttribute"))

    def _set_attribute(self, name: str, value: int) -> None:
        cuda = driver()
        attribute = getattr(cuda.CUmemPool_attribute, f"CU_MEMPOOL_ATTR_{name}")
        result = cuda.cuMemPoolSetAttribute(self._pool.handle, attribute, cuda.cuuint64_t(value))
        check(result, "cuMemPoolSetAttribute")

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Return the device address of `nbytes` bytes.

        Parameters
        ----------
        nbytes : int
            Unit: bytes. Zero gives an address of its own.
        alignment : int, default=64
            A power of two; at least 256 is given. More takes as many bytes more. Unit: bytes.
        stream : object, optional
            In whose order the memory is there; without one it is there for everybody on return.

        Returns
        -------
        address : int
            Not zero; the content is undefined. The host may not follow it.

        Raises
        ------
        InvalidArgumentError
            `nbytes`, `alignment` or `stream` is not usable.
        OutOfMemoryError
            The limit or the device has not so much left; its `smallest_limit` would do.
        StateError
            The resource is closed, or belongs to the parent of this forked process.
        """
        check_request(nbytes, alignment)
        handle = self._stream if stream is None else stream_handle(stream)
        taken = max(nbytes, 1) + max(alignment - POOL_ALIGNMENT, 0)
        with self._lock:
            self._check_open()
            start = self._take(taken, handle, nbytes)
            address = (start + alignment - 1) // alignment * alignment
            self._live[address] = Block(nbytes, start, taken)
            self._taken += taken
        if stream is None:
            self.device.synchronize(handle)
        return address

    def _check_open(self) -> None:
        self.device.check_process()
        if self._is_closed:
            raise StateError(explain("the resource is closed", accepted="requests before close()"))

    def _take(self, nbytes: int, stream: int, requested: int) -> int:
        cuda = driver()
        if self._taken + nbytes > self.limit:
            raise self._refuse(requested, nbytes)
        error, address = cuda.cuMemAllocFromPoolAsync(nbytes, self._pool.handle, stream)
        if error == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise self._refuse(requested, nbytes)
        check((error,), "cuMemAllocFromPoolAsync")
        return int(address)

    def _refuse(self, requested: int, nbytes: int) -> OutOfMemoryError:
        """The error for a request of `requested` bytes that takes `nbytes` of the pool."""
        smallest, total, hint = self._taken + nbytes, self.device.total_nbytes, None
        if smallest > total:
            hint = f"the device has {total} bytes: ask for less, or use a larger one"
        elif smallest <= self.limit:
            hint = f"others hold the rest of the {total} bytes of the device: let them give it back"
        return out_of_memory(
            requested,
            in_use=self._taken,
            limit=self.limit,
            resource=f"CudaResource of GPU {self.device.index}",
            smallest_limit=None if hint else smallest,
            hint=hint,
        )

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Take back what `allocate` returned.

        Parameters
        ----------
        address, nbytes, alignment : int
            As it was asked for.
        stream : object, optional
            In whose order the memory is given back: everything that uses it has to come before in that order. Without
            one, the call waits for nobody, and all that uses the memory must have ended.

        Raises
        ------
        StateError
            Not held: freed twice, another resource's, or another size. Nothing is freed.
        """
        handle = self._stream if stream is None else stream_handle(stream)
        self.device.check_process()
        with self._lock:
            held = self._live.get(address)
            if held is None or held.nbytes != nbytes:
                raise not_held("CudaResource", address, nbytes)
            check(driver().cuMemFreeAsync(held.start, handle), "cuMemFreeAsync")
            del self._live[address]
            self._taken -= held.taken
            if self._is_closed and not self._live:
                self._close_pool()

    def trim(self, keep: int | str = 0) -> int:
        """Give kept memory back to the device, but for so much; what is in use or not yet given back stays.

        Parameters
        ----------
        keep : int or str, default=0
            Unit: bytes.

        Returns
        -------
        nbytes : int
            What was given back. Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            `keep` is no size.
        StateError
            This is a forked child.
        """
        self.device.check_process()
        with self._lock:
            if self._pool.is_closed:
                return 0
            before = self.reserved
            check(driver().cuMemPoolTrimTo(self._pool.handle, parse_nbytes(keep)), "cuMemPoolTrimTo")
            return before - self.reserved

    def close(self) -> None:
        """Take no more requests, and give all memory back once the last live one ended; idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if not self._live:
                self._close_pool()

    def _close_pool(self) -> None:
        """Give up the pool. Where work is pending, the driver keeps it until that has ended."""
        self._pool.close()
        self.device.destroy_stream(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and not sys.is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    def __repr__(self) -> str:
        return f"<CudaResource of GPU {self.device.index}, {self.count} live, {self.nbytes} bytes>"
