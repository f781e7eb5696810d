"""The backends that ship with graphpool.

    reference/   NumPy, every op, float64 inside: the oracle of the tests, and what runs when nothing faster does
    cpu/         patterns, lowering and primitives on the compiled kernels
    cuda/        the same for engines of kind ``gpu``: launches, and the host for what has no kernel

Importing `graphpool` makes `load` the loader of each kind in `graphpool.graph.backend`.
"""

from ..graph.backend import register_backend

__all__ = ["load"]


def load(engine_kind: str) -> None:
    """Register the backends of this package for a kind of engine.

    Parameters
    ----------
    engine_kind : {"cpu", "gpu"}
    """
    if engine_kind == "cpu":
        from .cpu import CpuBackend
        from .reference import ReferenceBackend

        register_backend(CpuBackend())
        register_backend(ReferenceBackend())
    else:
        from .cuda import CudaBackend, HostBackend

        register_backend(CudaBackend())
        register_backend(HostBackend())
