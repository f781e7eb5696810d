"""Memory of NVIDIA GPUs, ordered by streams; needs the extra ``graphpool[cuda]``, and imports it on first use.

device.py     open_device(): the device, its context, streams and events; what is missing is said by typed errors
resource.py   CudaResource: memory of a device, from a pool that is bounded, trimmed and closed
lease.py      StreamLease: memory that is given back behind everybody who has used it
staging.py    PinnedResource: page-locked host memory; HostStaging: copies to and from a device through it
"""

from .device import CudaDevice, open_device
from .lease import StreamLease
from .resource import CudaResource
from .staging import HostStaging, PinnedResource

__all__ = ["CudaDevice", "CudaResource", "HostStaging", "PinnedResource", "StreamLease", "open_device"]
