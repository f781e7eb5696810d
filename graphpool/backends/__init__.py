"""The backends that ship with graphpool.

    reference/   NumPy, every op, float64 inside: the oracle of the tests, and what runs when nothing faster does
    cpu/         patterns, lowering and primitives on the compiled kernels
    cuda/        the same for engines of kind ``gpu``: launches, and the host for what has no kernel

Importing `graphpool` makes `load` the loader of the registry in `graphpool.graph.backend`.
"""

from ..graph.backend import register_backend

__all__ = ["load"]


def load() -> None:
    """Register the backends of this package."""
    from .cpu import CpuBackend
    from .cuda import CudaBackend, HostBackend
    from .reference import ReferenceBackend

    register_backend(CpuBackend())
    register_backend(ReferenceBackend())
    register_backend(CudaBackend())
    register_backend(HostBackend())
