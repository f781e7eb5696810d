"""UpstreamResource: memory of a GPU from the allocator of another library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import BackendError, InvalidArgumentError, explain

from .._check import check_request, not_held, out_of_memory
from .device import stream_handle
from .live import Block, LiveRequests

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UpstreamResource"]

UPSTREAM_ALIGNMENT = 256
"""What allocators of GPUs align to; more takes as many bytes more. Unit: bytes."""

DEFAULT_STREAM = 0
"""In whose order memory is taken and given back without a stream: the null stream of the context."""


class UpstreamResource(LiveRequests):
    """Memory of one GPU from another library's allocator, such as RMM's or CuPy's.

    Parameters
    ----------
    malloc : callable
        ``malloc(nbytes, stream)`` gives an address as an int, in the order of a stream, whose handle it gets; it raises
        `MemoryError` when there is no memory.
    free : callable
        ``free(address, nbytes, stream)`` takes it back, in the order of a stream.
    index : int, default=0
        Number of the device.

    Attributes
    ----------
    device : CudaDevice
    nbytes, count : int
        Live requests: the sum of their sizes in bytes, and how many.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        One of them is not callable; see `open_device`.

    Notes
    -----
    Ownership: both functions are kept; the memory is theirs. Threads: safe if the functions are. The device's context
    is current while they run. Cost: theirs, and one table entry. A forked child cannot use it.

    Examples
    --------
    >>> resource = UpstreamResource(  # doctest: +SKIP
    ...     lambda nbytes, stream: pool.allocate(nbytes, Stream(stream)),  # an RMM pool
    ...     lambda address, nbytes, stream: pool.deallocate(address, nbytes, Stream(stream)),
    ... )
    """

    def __init__(
        self, malloc: Callable[[int, int], int], free: Callable[[int, int, int], object], index: int = 0
    ) -> None:
        if not callable(malloc) or not callable(free):
            raise InvalidArgumentError(explain("malloc and free", accepted="callables", got=(malloc, free)))
        super().__init__(index)
        self._malloc, self._free = malloc, free

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Return what `malloc` gives, aligned.

        Parameters
        ----------
        nbytes, alignment, stream
            As of `CudaResource.allocate`.

        Returns
        -------
        address : int

        Raises
        ------
        InvalidArgumentError
            `nbytes`, `alignment` or `stream` is not usable.
        OutOfMemoryError
            `malloc` raised `MemoryError`.
        BackendError
            `malloc` raised something else, or gave no address.
        """
        check_request(nbytes, alignment)
        self.device.check_process()
        handle = DEFAULT_STREAM if stream is None else stream_handle(stream)
        taken = max(nbytes, 1) + max(alignment - UPSTREAM_ALIGNMENT, 0)
        try:
            with self.device.current():
                start = int(self._malloc(taken, handle))
        except MemoryError as error:
            raise out_of_memory(
                nbytes, in_use=self.nbytes, limit=self.nbytes, resource="the upstream allocator"
            ) from error
        except Exception as error:
            raise BackendError(explain("the upstream malloc failed", got=repr(error))) from error
        address = (start + alignment - 1) // alignment * alignment
        if not start or address + nbytes > start + taken:
            raise BackendError(explain("malloc", accepted=f"an address aligned to {UPSTREAM_ALIGNMENT}", got=start))
        with self._lock:
            self._live[address] = Block(nbytes, start, taken)
        if stream is None:
            self.device.synchronize(handle)
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Hand memory to `free`.

        Parameters
        ----------
        address, nbytes, alignment, stream
            As of `CudaResource.deallocate`: without a stream all that uses the memory must have ended.

        Raises
        ------
        StateError
            It is not live, or of another size; nothing is freed.
        BackendError
            `free` raised; the address counts as given back.
        """
        handle = DEFAULT_STREAM if stream is None else stream_handle(stream)
        self.device.check_process()
        with self._lock:
            held = self._live.get(address)
            if held is None or held.nbytes != nbytes:
                raise not_held("UpstreamResource", address, nbytes)
            del self._live[address]
        try:
            with self.device.current():
                self._free(held.start, held.taken, handle)
        except Exception as error:
            raise BackendError(explain("the upstream free failed", got=repr(error))) from error

    def __repr__(self) -> str:
        return f"<UpstreamResource of GPU {self.device.index}, {self.nbytes} bytes in use>"
