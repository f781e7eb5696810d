"""Our memory of a GPU as a memory resource of cuda.core, for libraries that take one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from .device import driver, open_device

if TYPE_CHECKING:
    from graphpool.typing import MemoryResource

__all__ = ["as_cuda_core"]


@cache
def _resource_class() -> Any:
    """The subclass of `cuda.core.MemoryResource`, which is not imported before it is asked for."""
    driver()
    from cuda.core import Buffer
    from cuda.core import MemoryResource as CoreResource

    class Resource(CoreResource):  # type: ignore[misc]
        """Buffers from a resource of ours."""

        def __init__(self, upstream: MemoryResource, index: int) -> None:
            self._upstream, self._index, self._device = upstream, index, open_device(index)

        def allocate(self, size: int, *, stream: Any) -> Any:
            """A buffer in the order of a stream, by which it is given back too unless its `close` names another."""
            with self._device.current():
                address = self._upstream.allocate(size, 256, stream)
                return Buffer.from_handle(address, size, mr=self, stream=stream)

        def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
            """Take a buffer's memory back."""
            self._upstream.deallocate(int(ptr), size, 256, stream)

        @property
        def is_device_accessible(self) -> bool:
            """It is."""
            return True

        @property
        def is_host_accessible(self) -> bool:
            """It is not."""
            return False

        @property
        def is_managed(self) -> bool:
            """It is not."""
            return False

        @property
        def device_id(self) -> int:
            """Number of the device."""
            return self._index

    return Resource


def as_cuda_core(resource: MemoryResource, index: int = 0) -> Any:
    """A `cuda.core.MemoryResource` whose buffers come from a resource of ours, and count where that counts.

    Parameters
    ----------
    resource : MemoryResource
        A `CudaResource`, or adaptors on one, such as ``engine.resource``; kept.
    index : int, default=0
        Number of the device.

    Returns
    -------
    resource : cuda.core.MemoryResource
        Its `allocate` raises what the resource raises.

    Raises
    ------
    UnsupportedError, InvalidArgumentError
        See `open_device`.

    Notes
    -----
    Ownership: a buffer gives its memory back when it is closed or collected, on its stream. Threads: safe.
    """
    return _resource_class()(resource, index)
