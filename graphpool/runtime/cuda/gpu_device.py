"""A GPU as the device of one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, UnsupportedError, explain
from graphpool.fork import Locked
from graphpool.memory.cuda import CudaResource, HostStaging, PinnedResource, open_device
from graphpool.memory.cuda.device import check, driver
from graphpool.typing import LayoutType, parse_nbytes

from .._tensor import check_array, pack
from ..allowed_memory import MemoryLimit
from .cublas_lt import CublasLt, LibraryProduct
from .gpu_form import GPU_PARTS
from .gpu_queue import GpuQueue
from .launches import KernelLaunch
from .watch import WatchWords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool._kernels.cuda.source import CudaCall
    from graphpool.graph import LogicalTensor

    from .._tensor import Tensor
    from ..engine import Engine

__all__ = ["Copies", "GpuDevice"]

_DEVICE_TYPE = 2  # kDLCUDA
_AUTO_SHARE = 0.95  # of what is free


@dataclass
class Copies:
    """What was copied between the host and a device. Unit of sizes: bytes."""

    uploads: int = 0
    upload_nbytes: int = 0
    downloads: int = 0
    download_nbytes: int = 0


class GpuDevice(Locked):
    """The GPU of a number; see `graphpool.runtime.device.Device`.

    Attributes
    ----------
    cuda : CudaDevice
    copies : Copies
        Made by `Tensor.fill`, `Tensor.numpy` and partitions that the host computes.

    Notes
    -----
    Copies wait for all work of the device, so that a tensor is read as the work given so far leaves it.
    """

    is_host = False
    forms = GPU_PARTS

    def __init__(self, index: int) -> None:
        super().__init__()
        self.cuda = open_device(index)
        self.dlpack_device = (_DEVICE_TYPE, index)
        self.copies = Copies()
        self._own: CudaResource | None = None
        self._staging: HostStaging | None = None
        self._stream = 0
        self._queues: WeakSet[GpuQueue] = WeakSet()
        self.words = WatchWords(self.cuda)
        self._products: CublasLt | None = None
        self._has_looked = False

    def parse_limit(self, value: int | str | None) -> MemoryLimit:
        """Shares are of the device's memory; ``auto`` is most of what is free."""
        if value is None:
            return MemoryLimit(None, False, False)
        if isinstance(value, str) and value.strip().lower() == "auto":
            with self.cuda.current():
                free, _ = driver().cuMemGetInfo()[1:]
            return MemoryLimit(int(free * _AUTO_SHARE), False, False)
        return MemoryLimit(parse_nbytes(value, whole_nbytes=self.cuda.total_nbytes, auto=True), False, False)

    def resource(self, limit: int | None) -> CudaResource:
        """A pool of the engine's own; the engine's budget holds the limit."""
        self._own = CudaResource(self.cuda.index)
        return self._own

    def host_blocks(self, blocks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """None of them."""
        return []

    def queue(self, engine: Engine, native: object) -> GpuQueue:
        """A CUDA stream, the user's or a new one."""
        queue = GpuQueue(self.cuda, engine.resource, native)
        with self._lock:
            self._queues.add(queue)
        return queue

    def ready(self, call: CudaCall | LibraryProduct) -> KernelLaunch | LibraryProduct:
        """A call that can be given to streams of this device."""
        from .modules import find_function

        if isinstance(call, LibraryProduct):
            return call
        return KernelLaunch(call, find_function(self.cuda, call.kernel))

    def products(self) -> CublasLt | None:
        """The library of matrix products, if there is one for this device."""
        with self._lock:
            if not self._has_looked:
                self._products, self._has_looked = CublasLt.find(self.cuda), True
            return self._products

    # ---- tensors

    def bind(self, data: Any, lt: LogicalTensor) -> tuple[int, bool, Any]:
        """What has DLPack or ``__cuda_array_interface__`` on this device; its work is waited for."""
        from cuda.core.utils import StridedMemoryView

        accepted = f"an object with DLPack or __cuda_array_interface__ on GPU {self.cuda.index}, or None"
        hint = "make the tensor without data and fill it"
        is_here = hasattr(data, "__cuda_array_interface__")
        if hasattr(data, "__dlpack__"):
            is_here = tuple(data.__dlpack_device__()) == self.dlpack_device
        if not is_here:
            got = type(data).__name__
            raise InvalidArgumentError(explain(f"tensor {lt.id}: data", accepted=accepted, got=got, hint=hint))
        stream = self._copy_stream()
        with self.cuda.current():
            view = StridedMemoryView.from_any_interface(data, stream_ptr=stream)
        if view.device_id != self.cuda.index:
            got = f"memory of GPU {view.device_id}"
            raise InvalidArgumentError(explain(f"tensor {lt.id}: data", accepted=accepted, got=got, hint=hint))
        self.cuda.synchronize(stream)
        dtype, shape = np.dtype(view.dtype), tuple(view.shape)
        strides = [s * dtype.itemsize for s in view.strides] if view.strides else _dense_nbytes(shape, dtype)
        if lt.layout is LayoutType.OPAQUE:
            raise InvalidArgumentError(explain(f"tensor {lt.id}: layout on a GPU", accepted="strided", got="opaque"))
        check_array(dtype, shape, tuple(strides), lt)
        return int(view.ptr), bool(view.readonly), (data, view)

    def fill(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        """Copy to the device; returns when the array may be changed."""
        lt = tensor.lt
        if tensor.nbytes != lt.dtype.nbytes(lt.size):
            raise UnsupportedError(explain(f"tensor {lt.id}: fill on a GPU", accepted="strides without gaps"))
        if lt.dtype.bits < 8:
            self.write(tensor.data_ptr, pack(np.broadcast_to(array, lt.shape or ()), lt))
            return
        content = np.empty(tensor.nbytes, np.uint8)
        strides = [stride * lt.dtype.numpy.itemsize for stride in lt.strides or ()]
        np.ndarray(lt.shape or (), lt.dtype.numpy, content, strides=strides)[...] = array
        self.write(tensor.data_ptr, content)

    def write(self, address: int, content: np.ndarray[Any, Any]) -> None:
        """Copy bytes to an address of the device, behind all its work; returns when they are there."""
        with self._lock:
            self._wait_for_all()
            self.upload(content, address, self._copy_stream())
            self.cuda.synchronize(self._copy_stream())

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """A copy of the bytes, behind all work of the device."""
        content = np.empty(tensor.nbytes, np.uint8)
        self._wait_for_results()
        with self._lock:
            self.download(tensor.data_ptr, content, self._copy_stream())
        return content

    def upload(self, array: np.ndarray[Any, Any], address: int, stream: int) -> None:
        """Copy a dense array to an address of the device, in the order of a stream."""
        if array.nbytes:
            with self._lock:
                self._stage().upload(array, address, stream)
                self.copies.uploads += 1
                self.copies.upload_nbytes += array.nbytes

    def download(self, address: int, array: np.ndarray[Any, Any], stream: int) -> None:
        """Copy from an address of the device to a dense array, behind the work of a stream; it is there on return."""
        if array.nbytes:
            with self._lock:
                self._stage().download(address, array, stream)
                self.copies.downloads += 1
                self.copies.download_nbytes += array.nbytes

    def view(self, tensor: Tensor) -> Any:
        """A view of cuda.core on the tensor's memory, which keeps it alive; all work of the device is waited for."""
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        self._wait_for_results()
        lt = tensor.lt
        with self.cuda.current():
            buffer = Buffer.from_handle(tensor.data_ptr, max(tensor.nbytes, 1), owner=tensor)
            return StridedMemoryView.from_buffer(
                buffer, lt.shape, lt.strides, dtype=lt.dtype.numpy, is_readonly=tensor.is_readonly
            )

    def array_interface(self, tensor: Tensor) -> dict[str, Any]:
        """What ``__cuda_array_interface__`` gives; all work of the device is waited for."""
        lt = tensor.lt
        if lt.layout is not LayoutType.STRIDED or lt.dtype.numpy.kind not in "biuf":
            what = f"tensor {lt.id}: __cuda_array_interface__ of {lt.dtype} {lt.layout.value}"
            raise AttributeError(explain(what, hint="use DLPack"))
        self._wait_for_results()
        return {
            "shape": lt.shape,
            "typestr": lt.dtype.numpy.str,
            "data": (tensor.data_ptr if lt.size else 0, tensor.is_readonly),
            "strides": tuple(stride * lt.dtype.numpy.itemsize for stride in lt.strides or ()),
            "version": 3,
            "stream": None,
        }

    def _wait_for_all(self) -> None:
        with self.cuda.current():
            check(driver().cuCtxSynchronize(), "cuCtxSynchronize")

    def _wait_for_results(self) -> None:
        """Wait for all work, and raise what that of any stream has met, so that nobody reads what is wrong."""
        self._wait_for_all()
        with self._lock:
            queues = list(self._queues)
        for queue in queues:
            queue.check()

    def _copy_stream(self) -> int:
        with self._lock:
            if not self._stream:
                self._stream = self.cuda.new_stream()
            return self._stream

    def _stage(self) -> HostStaging:
        if self._staging is None:
            self._staging = HostStaging(PinnedResource(self.cuda.index), self.cuda.index)
        return self._staging

    # ---- life

    def close(self) -> None:
        """Give back the staging memory and the copy stream; the pool, once its last tensor has died."""
        with self._lock:
            if self._staging is not None:
                self._staging.close()
                self._staging = None
            if self._stream:
                self.cuda.destroy_stream(self._stream)
                self._stream = 0
            self._products = None
            self.words.close()
            if self._own is not None:
                self._own.close()


def _dense_nbytes(shape: Sequence[int], dtype: np.dtype[Any]) -> list[int]:
    strides, step = [], dtype.itemsize
    for dim in reversed(shape):
        strides.append(step)
        step *= max(dim, 1)
    return strides[::-1]
