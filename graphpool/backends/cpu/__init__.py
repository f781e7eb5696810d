"""The CPU backend: from a partition to a Program of kernel calls.

    support.py   which ops it runs: what computes each kind registers there
    choices.py   which implementation an op takes: forced ones, float modes
    key.py       under which structure a primitive is known
    match/       what belongs into one kernel call: groups of ops
    layout/      how tensors lie: opaque layouts, images channels last
    lower/       Lowering: values, temporaries and steps of one partition; elementwise programs
    products/    matrix products, convolutions, attention: their kernels and constant weights
    emit/        how each kind of op becomes kernel calls
    patterns.py  what is fused into one op or one partition, as data
    rewrites.py  the passes over a partition's ops before they are grouped
    place/       streams and memory of the steps: programs
    backend.py   CpuBackend: compile = look up the primitive, or lower, plan and link it

    ops -> groups -> emit -> steps on values -> schedule -> plan (offsets) -> link -> Program

Each folder's docstring says what its modules hold; imports point up this list only. A new kind of op is a
rule in emit/ or an instruction in lower/, and, if it anchors a fusion, an entry in patterns.py.
"""

from .backend import CpuBackend

__all__ = ["CpuBackend"]
