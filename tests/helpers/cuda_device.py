"""What tests on the test driver start from: a device, its memory, and kernels that do one thing each.

Imports cuda.core, so that only processes which `tests/cuda/test_on_driver.py` starts may import it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from cuda.bindings import driver
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    Program,
    ProgramOptions,
    launch,
)

SOURCE = Path(__file__).parents[1] / "cuda" / "on_driver" / "kernels.cu"


def check(result):
    """The values of a call of cuda.bindings, whose error must be success."""
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if len(values) == 1 else values


def synchronize():
    """Wait for everything. Not `Device.sync`, which asks the CUDA runtime, and that wants NVIDIA's driver."""
    check(driver.cuCtxSynchronize())


@cache
def compile_cubin(source: str, arch: str = "sm_90"):
    """CUDA C++ to a cubin; NVRTC needs no device."""
    return Program(source, "c++", options=ProgramOptions(arch=arch)).compile("cubin")


class Kit:
    """A device, two streams, a pool and kernels; buffers hold `n` floats, all 1, and are closed with the kit."""

    n = 256

    def __init__(self):
        self.device = Device(0)
        self.device.set_current()
        self.code = compile_cubin(SOURCE.read_text(), f"sm_{self.device.arch}")
        # loaded now, since no module may be while a stream is captured
        self._scaling, self._adding = self.code.get_kernel("scale"), self.code.get_kernel("add")
        self.pool = DeviceMemoryResource(self.device, DeviceMemoryResourceOptions(max_size=64 << 20))
        self.pinned = LegacyPinnedMemoryResource()
        self.a, self.b = self.device.create_stream(), self.device.create_stream()
        self._buffers = []

    def keep(self, buffer):
        """Close a buffer with the kit, not when it is collected."""
        self._buffers.append(buffer)
        return buffer

    def empty(self, stream=None, nbytes=None):
        """A buffer that nothing was written to."""
        return self.keep(self.pool.allocate(nbytes or 4 * self.n, stream=stream or self.a))

    def ones(self, stream=None):
        """A buffer of ones."""
        buffer = self.empty(stream)
        buffer.fill(np.float32(1).tobytes(), stream=stream or self.a)
        return buffer

    def ready(self, count):
        """So many buffers of ones, known to the host."""
        buffers = [self.ones() for _ in range(count)]
        synchronize()
        return buffers

    def scale(self, stream, out, source, factor=2.0, n=None):
        """``out = source * factor``, on a stream or in a capture."""
        config = LaunchConfig(grid=(self.n + 63) // 64, block=64)
        launch(stream, config, self._scaling, out, source, np.float32(factor), np.int32(n or self.n))

    def add(self, stream, out, a, b):
        """``out = a + b``."""
        config = LaunchConfig(grid=(self.n + 63) // 64, block=64)
        launch(stream, config, self._adding, out, a, b, np.int32(self.n))

    def read(self, buffer):
        """The floats of a buffer, after everything has ended."""
        synchronize()
        host = np.empty(buffer.size // 4, np.float32)
        check(driver.cuMemcpyDtoHAsync(host, int(buffer.handle), buffer.size, self.a.handle))
        return host

    def close(self):
        """Give everything back."""
        synchronize()
        for buffer in self._buffers:
            buffer.close(self.a)
        synchronize()
        self.pool.close()
        self.a.close()
        self.b.close()
