"""Elements by index."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from .source import KernelSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .source import CudaCall

__all__ = ["gather"]

_THREADS = 256
_ELEMENTS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
_INDICES = {"s32": "int", "s64": "long long"}


def gather(
    shape: Sequence[int],
    index_strides: Sequence[int],
    base_strides: Sequence[int],
    tuple_axes: Sequence[tuple[int, int]],
    row_nbytes: int,
    *,
    itemsize: int,
    index_dtype: str,
) -> CudaCall:
    """Rows picked from a tensor. Arguments: src, indices, dst. A thread an element of `itemsize` bytes.

    Else as `graphpool._kernels.move.index.gather`.
    """
    source, row = KernelSource("gather"), row_nbytes // itemsize
    size = prod(shape) * row
    source.numbers(size=size, row=max(row, 1))
    source.view("index", shape, index_strides)
    source.view("base", shape, [stride // itemsize for stride in base_strides])
    for number, (dim, stride) in enumerate(tuple_axes):
        source.numbers(**{f"tuple_dim{number}": dim, f"tuple_stride{number}": stride // itemsize})
    numbers = range(len(tuple_axes))
    source.define(
        GP_TUPLE=str(len(tuple_axes)),
        GP_DIMS=", ".join(["0", *(f"p.tuple_dim{k}" for k in numbers)][-max(len(numbers), 1) :]),
        GP_STRIDES=", ".join(["0", *(f"p.tuple_stride{k}" for k in numbers)][-max(len(numbers), 1) :]),
        GP_ELEMENT=_ELEMENTS[itemsize], GP_INDEX=_INDICES[index_dtype],
    )  # fmt: skip
    return source.build(3, -(-size // _THREADS), _THREADS)
