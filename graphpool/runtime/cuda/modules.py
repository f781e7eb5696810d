"""Kernels of a device, compiled or found, and loaded when they are first used."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from graphpool._kernels.cuda.nvrtc import find_cubin
from graphpool.memory.cuda.device import check, driver

if TYPE_CHECKING:
    from graphpool._kernels.cuda.source import CudaKernel
    from graphpool.memory.cuda import CudaDevice

__all__ = ["architecture_of", "find_function"]

_functions: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()


def architecture_of(device: CudaDevice) -> int:
    """90 for sm_90."""
    names = ("MAJOR", "MINOR")
    attributes = [getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{n}") for n in names]
    major, minor = (
        check(driver().cuDeviceGetAttribute(attribute, device.index), "cuDeviceGetAttribute")
        for attribute in attributes
    )
    return int(10 * major + minor)


def find_function(device: CudaDevice, kernel: CudaKernel) -> Any:
    """The function to launch, which stays loaded until the process ends.

    Raises
    ------
    BackendError
        NVRTC or the driver refuses it.
    """
    key = device.index, kernel.entry
    with _lock:
        if key not in _functions:
            _functions[key] = _load(device, find_cubin(kernel, architecture_of(device)), kernel.entry)
        return _functions[key]


def _load(device: CudaDevice, cubin: bytes, entry: str) -> Any:
    cuda = driver()
    with device.current():
        library = check(cuda.cuLibraryLoadData(cubin, [], [], 0, [], [], 0), "cuLibraryLoadData")
        kernel = check(cuda.cuLibraryGetKernel(library, entry.encode()), "cuLibraryGetKernel")
        return check(cuda.cuKernelGetFunction(kernel), "cuKernelGetFunction")
