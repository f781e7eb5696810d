"""The CPU backend: from a partition to a Program of kernel calls.

    patterns.py  what is fused into one partition, as data
    support.py   which ops it runs, and with which types
    choices.py   which implementation an op takes: forced ones, float modes
    key.py       under which structure a primitive is known
    match/       what belongs into one kernel call: groups of ops
    layout/      how tensors lie: opaque layouts, images channels last
    lower/       Lowering: values, temporaries and steps of one partition; elementwise programs
    products/    matrix products, convolutions, attention: their kernels and constant weights
    emit/        how each kind of op becomes kernel calls
    place/       streams and memory of the steps: programs
    backend.py   CpuBackend: compile = look up the primitive, or lower, plan and link it

    ops -> groups -> emit -> steps on values -> schedule -> plan (offsets) -> link -> Program

Each folder's docstring says what its modules hold; imports point up this list only. A new kind of op is a line in
support.py, an emitter, and, if it anchors a fusion, an entry in patterns.py.
"""

from .backend import CpuBackend

__all__ = ["CpuBackend"]
