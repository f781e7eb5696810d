"""Elements by index."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from .source import KernelSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .source import CudaCall

__all__ = ["gather", "scatter"]

_THREADS = 256
_ELEMENTS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
_INDICES = {"s32": "int", "s64": "long long"}
_JOINS = {
    "none": "((void)(a), (b))", "add": "gp_add(a, b)", "mul": "gp_mul(a, b)", "max": "gp_max(a, b)",
    "min": "gp_min(a, b)",
}  # fmt: skip
"""Reduction of a scatter -> what is there and what comes, joined."""


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
    """Rows picked from a tensor. Arguments: src, indices, dst, the word of a watch. A thread for `itemsize` bytes.

    An index outside sets the word, and gives an element of zeros. Else as `graphpool._kernels.move.index.gather`.
    """
    source, row = KernelSource("gather"), row_nbytes // itemsize
    size = prod(shape) * row
    source.numbers(size=size, row=max(row, 1))
    source.view("index", shape, index_strides)
    source.view("base", shape, [stride // itemsize for stride in base_strides])
    _add_tuple(source, tuple_axes, itemsize, index_dtype)
    source.define(GP_ELEMENT=_ELEMENTS[itemsize])
    return source.build(4, -(-size // _THREADS), _THREADS, is_watched=True)


def scatter(
    shape: Sequence[int],
    index_strides: Sequence[int],
    base_strides: Sequence[int],
    tuple_axes: Sequence[tuple[int, int]],
    row_nbytes: int,
    *,
    itemsize: int,
    index_dtype: str,
    dtype: str,
    register: str,
    reduction: str = "none",
) -> CudaCall:
    """Rows put into a tensor, in the order of positions.

    Arguments: updates, which are dense, indices, dst, the word of a watch, which an index outside sets: nothing is put
    there. Axes of positions that move the place in dst whatever the indices are keep threads apart; those of the others
    are walked by one. Else as `graphpool._kernels.move.index.scatter`; the register has to hold the type.
    """
    source, row = KernelSource("scatter", register=register), row_nbytes // itemsize
    updates = [prod(shape[axis + 1 :]) * row for axis in range(len(shape))]
    for name, axes in (
        ("apart", [axis for axis, stride in enumerate(base_strides) if stride]),
        ("meeting", [axis for axis, stride in enumerate(base_strides) if not stride]),
    ):
        dims = [shape[axis] for axis in axes]
        source.numbers(**{name: prod(dims)})
        for what, strides in (("index", index_strides), ("updates", updates)):
            source.view(f"{name}_{what}", dims, [strides[axis] for axis in axes])
        source.view(f"{name}_base", dims, [base_strides[axis] // itemsize for axis in axes])
    _add_tuple(source, tuple_axes, itemsize, index_dtype)
    source.load("value", dtype)
    source.define(**{"gp_store_value": f"gp_store_{dtype}", "GP_JOIN(a, b)": _JOINS[reduction]})
    size = prod(dim for dim, stride in zip(shape, base_strides, strict=True) if stride) * row
    source.numbers(size=size, row=max(row, 1))
    return source.build(4, -(-size // _THREADS) if prod(shape) else 0, _THREADS, is_watched=True)


def _add_tuple(source: KernelSource, axes: Sequence[tuple[int, int]], itemsize: int, index_dtype: str) -> None:
    """Add ``gp_tuple(p, indices, at, to)``, which adds to a place what the indices from one on say, if all are inside.

    `axes` has dimensions, and strides in bytes. Negative indices count from the end.
    """
    lines, read = [], f"(({_INDICES[index_dtype]} *)indices)[at + "
    for number, (dim, stride) in enumerate(axes):
        source.numbers(**{f"tuple_dim{number}": dim, f"tuple_stride{number}": stride // itemsize})
        lines += [
            f"    i = {read}{number}];",
            f"    i = i < 0 ? i + p.tuple_dim{number} : i;",
            f"    if (i < 0 || i >= p.tuple_dim{number}) return false;",
            f"    to += i * p.tuple_stride{number};",
        ]
    head = "static __device__ __forceinline__ bool gp_tuple(const Params &p, const char *indices, long long at,"
    source.function("\n".join([f"{head} long long &to) {{", "    long long i;", *lines, "    return true;\n}"]))
