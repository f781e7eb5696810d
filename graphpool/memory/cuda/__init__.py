"""Memory of NVIDIA GPUs, ordered by streams; needs the extra ``graphpool[cuda]``, and imports it on first use.

device.py     open_device(): the device, its context, streams and events; what is missing is said by typed errors
resource.py   CudaResource: memory of a device, from a pool that is bounded, trimmed and closed
lease.py      StreamLease: memory that is given back behind everybody who has used it
live.py       the requests of a resource that are live
interop.py    as_cuda_core: a resource of ours for libraries that take one of cuda.core
upstream.py   UpstreamResource: memory of a device from the allocator of another library
staging.py    PinnedResource: page-locked host memory; HostStaging: copies to and from a device through it
"""

from .device import CudaDevice, open_device
from .interop import as_cuda_core
from .lease import StreamLease
from .resource import CudaResource
from .staging import HostStaging, PinnedResource
from .upstream import UpstreamResource

__all__ = [
    "CudaDevice",
    "CudaResource",
    "HostStaging",
    "PinnedResource",
    "StreamLease",
    "UpstreamResource",
    "as_cuda_core",
    "open_device",
]
