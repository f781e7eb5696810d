"""The backends of engines of kind ``gpu``: from a partition to launches, and to the host for what has no kernel.

    support.py   which ops kernels compute
    lowering.py  CudaLowering: places and steps, as on the CPU, whose calls are launches; post-ops behind anchors
    attention.py attention as one launch
    library.py   matrix products by cuBLASLt
    rules.py     how each kind becomes launches
    backend.py   CudaBackend: compile = lower, plan temporaries, link
    host.py      HostBackend: partitions that the host computes, with copies

Groups, places of tensors, regions and the plan of temporaries are those of the CPU backend (`match`, `lower`,
`place`), which know neither threads nor instruction sets.
"""

from .backend import CudaBackend
from .host import HostBackend

__all__ = ["CudaBackend", "HostBackend"]
