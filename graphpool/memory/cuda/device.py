"""A CUDA device as the memory package needs it, and what to do where there is none."""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any, Self

from graphpool.errors import BackendError, InvalidArgumentError, StateError, UnsupportedError, brief, explain

__all__ = ["CudaDevice", "check", "driver", "open_device", "stream_handle"]


@cache
def driver() -> Any:
    """`cuda.bindings.driver`.

    Raises
    ------
    UnsupportedError
        The extra is not installed.
    """
    try:
        import cuda.bindings.driver
        import cuda.core
    except ImportError as error:
        hint = "install the extra: pip install 'graphpool[cuda]', or graphpool[cuda12] for CUDA 12"
        raise UnsupportedError(explain("GPU memory needs cuda-core and cuda-bindings", hint=hint)) from error
    return cuda.bindings.driver


def check(result: tuple[Any, ...], call: str) -> Any:
    """The value of a call of the driver; BackendError with the driver's own name of the error if it failed."""
    error = result[0]
    if error:  # success is 0
        raise BackendError(explain(f"{call} failed", got=error.name), call=call, cuda_error=error.name)
    return result[1] if len(result) == 2 else None


def _forked() -> StateError:
    """The error for a forked child of a process that uses the driver."""
    hint = "start processes that use a GPU with the method 'spawn'"
    return StateError(explain("a forked child cannot use its parent's GPU", hint=hint))


def _start_driver() -> None:
    """Initialise the driver, or say what is missing."""
    cuda = driver()
    try:
        error = cuda.cuInit(0)[0]
    except Exception as reason:  # whatever the loader of libraries raises
        hint = "install NVIDIA's driver on this machine, or let the container see it"
        raise UnsupportedError(explain("no NVIDIA driver was found (libcuda.so.1)", hint=hint)) from reason
    if error == cuda.CUresult.CUDA_ERROR_NO_DEVICE:
        hint = "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"
        raise UnsupportedError(explain("the NVIDIA driver finds no device", hint=hint))
    if error == cuda.CUresult.CUDA_ERROR_NOT_INITIALIZED:
        raise _forked()
    check((error,), "cuInit")


def _check_version() -> None:
    """Refuse a driver of an older major version than the bindings are for."""
    import cuda.bindings

    found = check(driver().cuDriverGetVersion(), "cuDriverGetVersion")
    major = int(cuda.bindings.__version__.split(".")[0])
    if found // 1000 < major:
        raise UnsupportedError(
            explain(
                "the NVIDIA driver is too old for the installed cuda-bindings",
                accepted=f"CUDA {major}.0 or newer",
                got=f"CUDA {found // 1000}.{found % 1000 // 10}",
                hint=f"update the driver, or install cuda-bindings of version {found // 1000}",
            ),
            found=found,
            required=1000 * major,
        )


def _check_index(index: object) -> None:
    count = check(driver().cuDeviceGetCount(), "cuDeviceGetCount")
    if not isinstance(index, int) or not 0 <= index < count:
        raise InvalidArgumentError(explain("index of a GPU", accepted=f"0 to {count - 1}", got=brief(index)))


def _check_pools(index: int) -> None:
    attribute = driver().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
    if not check(driver().cuDeviceGetAttribute(attribute, index), "cuDeviceGetAttribute"):
        hint = "use a device and a driver that have stream-ordered memory"
        raise UnsupportedError(explain(f"GPU {index} has no memory pools", hint=hint), index=index)


class _Entered(threading.local):
    """The devices whose blocks a thread is in, the innermost one last."""

    def __init__(self) -> None:
        self.blocks: list[CudaDevice] = []


_entered = _Entered()


class CudaDevice:
    """A device with its primary context. `open_device` makes one for each index.

    Parameters
    ----------
    index : int
        Number of the device, which has been checked.

    Attributes
    ----------
    index : int
    name : str
    total_nbytes : int
        Memory of the device. Unit: bytes.

    Raises
    ------
    BackendError
        The driver refuses its context.

    Notes
    -----
    Ownership: the primary context is retained until the process ends. Threads: safe; no method changes which context
    is current for its caller. Methods raise `BackendError` too, with the driver's name of an error.
    """

    def __init__(self, index: int) -> None:
        cuda = driver()
        self.index = index
        self._pid = os.getpid()
        self._context = check(cuda.cuDevicePrimaryCtxRetain(index), "cuDevicePrimaryCtxRetain")
        self.name = check(cuda.cuDeviceGetName(64, index), "cuDeviceGetName").rstrip(b"\0").decode()
        self.total_nbytes: int = check(cuda.cuDeviceTotalMem(index), "cuDeviceTotalMem")

    def check_process(self) -> None:
        """Refuse a process that was forked after the device was opened.

        Raises
        ------
        StateError
            It is one.
        """
        if os.getpid() != self._pid:
            raise _forked()

    def current(self) -> Self:
        """Make the device's context current for the calling thread, inside a ``with`` block.

        Returns
        -------
        context manager
            Cost: two calls of the driver, but none inside another such block of this device.

        Raises
        ------
        StateError
            This is a forked child.
        """
        self.check_process()
        return self

    def __enter__(self) -> None:
        blocks = _entered.blocks
        if not blocks or blocks[-1] is not self:
            check(driver().cuCtxPushCurrent(self._context), "cuCtxPushCurrent")
        blocks.append(self)

    def __exit__(self, *exception: object) -> None:
        blocks = _entered.blocks
        blocks.pop()
        if not blocks or blocks[-1] is not self:
            check(driver().cuCtxPopCurrent(), "cuCtxPopCurrent")

    def new_stream(self) -> int:
        """Handle of a new stream that does not wait for the default stream; the caller destroys it.

        Returns
        -------
        stream : int

        Raises
        ------
        StateError
            This is a forked child.
        """
        flags = driver().CUstream_flags.CU_STREAM_NON_BLOCKING.value
        with self.current():
            return int(check(driver().cuStreamCreate(flags), "cuStreamCreate"))

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream of `new_stream`; work on it goes on.

        Parameters
        ----------
        stream : int
            Its handle.

        Raises
        ------
        StateError
            This is a forked child.
        """
        with self.current():
            check(driver().cuStreamDestroy(stream), "cuStreamDestroy")

    def new_event(self) -> int:
        """Handle of a new event without timing; the caller destroys it.

        Returns
        -------
        event : int

        Raises
        ------
        StateError
            This is a forked child.
        """
        flags = driver().CUevent_flags.CU_EVENT_DISABLE_TIMING.value
        with self.current():
            return int(check(driver().cuEventCreate(flags), "cuEventCreate"))

    def destroy_event(self, event: int) -> None:
        """Destroy an event of `new_event`; whoever waits for it goes on waiting.

        Parameters
        ----------
        event : int
            Its handle.

        Raises
        ------
        StateError
            This is a forked child.
        """
        with self.current():
            check(driver().cuEventDestroy(event), "cuEventDestroy")

    def record(self, event: int, stream: int) -> None:
        """Record an event behind all work of a stream.

        Parameters
        ----------
        event, stream : int
            Their handles.

        Raises
        ------
        StateError
            This is a forked child.
        """
        with self.current():
            check(driver().cuEventRecord(event, stream), "cuEventRecord")

    def wait(self, stream: int, event: int) -> None:
        """Let later work of a stream wait for an event; the caller does not wait.

        Parameters
        ----------
        stream, event : int
            Their handles.

        Raises
        ------
        StateError
            This is a forked child.
        """
        with self.current():
            check(driver().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")

    def synchronize(self, stream: int) -> None:
        """Wait until all work of a stream has ended.

        Parameters
        ----------
        stream : int
            Its handle.

        Raises
        ------
        StateError
            This is a forked child.
        """
        with self.current():
            check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize")

    def __repr__(self) -> str:
        return f"<CudaDevice {self.index}: {self.name}>"


@cache
def _opened(index: int) -> CudaDevice:
    return CudaDevice(index)


def open_device(index: int = 0) -> CudaDevice:
    """The device of a number, as the driver counts them.

    Parameters
    ----------
    index : int, default=0

    Returns
    -------
    device : CudaDevice
        The same for each call.

    Raises
    ------
    UnsupportedError
        The extra, the driver, a device or its memory pools are not there, or the driver is too old; the message says
        what to install or change.
    InvalidArgumentError
        There is no device of this number.
    StateError
        The process is a forked child of one that has opened the device.
    """
    _start_driver()
    _check_version()
    _check_index(index)
    _check_pools(index)
    return _opened(index)


def stream_handle(stream: object) -> int:
    """The handle of a stream: an int, or anything with ``__cuda_stream__``, such as `cuda.core.Stream`.

    Raises InvalidArgumentError for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        accepted = "a cuda.core.Stream, an object with __cuda_stream__, or a handle as an int"
        raise InvalidArgumentError(explain("stream", accepted=accepted, got=brief(stream)))
    return int(protocol()[1])
