"""The contract of resources (`tests/memory/test_contract.py`), for memory of a GPU: page-locked, and of the device."""

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from graphpool.memory.cuda import CudaResource, PinnedResource, UpstreamResource
from tests.helpers.cuda_device import check
from tests.helpers.memory import HostBytes
from tests.memory.test_contract import *  # noqa: F403 - the tests


class DeviceBytes:
    """Bytes of device memory, through copies on a stream."""

    def __init__(self, resource):
        self._device, self._stream = resource.device, resource.device.new_stream()

    def write(self, address, nbytes, value):
        check(cuda.cuMemsetD8Async(address, value, nbytes, self._stream))
        self._device.synchronize(self._stream)

    def read(self, address, nbytes):
        host = np.empty(nbytes, np.uint8)
        check(cuda.cuMemcpyDtoHAsync(host, address, nbytes, self._stream))
        return host.tobytes()

    def close(self):
        self._device.destroy_stream(self._stream)


def of_another_library():
    """A resource on an allocator with functions as RMM's, here the device's own pool."""

    def malloc(nbytes, stream):
        error, address = cuda.cuMemAllocAsync(nbytes, stream)
        if error == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(nbytes)
        assert error == cuda.CUresult.CUDA_SUCCESS
        return int(address)

    return UpstreamResource(malloc, lambda address, nbytes, stream: check(cuda.cuMemFreeAsync(address, stream)))


@pytest.fixture(params=[CudaResource, PinnedResource, of_another_library])
def host(request):
    """What all resources of the suite stand on."""
    resource = request.param()
    yield resource
    assert (resource.count, resource.nbytes) == (0, 0), "the test leaked"
    if isinstance(resource, CudaResource):
        resource.close()


@pytest.fixture
def content(host):
    if isinstance(host, PinnedResource):
        yield HostBytes
        return
    content = DeviceBytes(host)
    yield content
    content.close()
