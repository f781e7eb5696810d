"""Kernels that find rows by index (``move/index.c``) and the best elements of lines (``move/top_k.c``)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._sizes import largest
from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain
from graphpool.typing import dense_strides

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..core.records import enumeration, record
from ..core.spaces import check_strides, collapse, normalise_axis, space, without

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["REDUCTIONS", "gather", "scatter", "top_k"]

REDUCTIONS = enumeration("scatter_reduction")
"""none: a row replaces what is there. Integers wrap, NaN wins in max and min."""

_TASK_NBYTES = 1 << 16


def gather(
    shape: Sequence[int], index_strides: Sequence[int], base_strides: Sequence[int],
    tuple_axes: Sequence[tuple[int, int]], row_nbytes: int, index_dtype: str = "s64", *, isa: str | None = None,
) -> KernelCall:  # fmt: skip
    """Pick rows of a tensor of any type; arguments: src, indices, dst.

    `shape` counts positions: each has a row of dst, of `row_nbytes`, dense in their order. `index_strides`, in
    elements, say where the indices (s64 or s32) of a position begin, which lie side by side; `base_strides`, in bytes,
    what a position adds to the place in src; `tuple_axes`, for each index, the dimension of the axis of src and its
    stride in bytes. Negative indices count from the end. An index outside its axis picks the last element, and the
    kernel's status is 1. InvalidShapeError: there are positions, and an axis without elements; InvalidArgumentError:
    another type of index.
    """
    values = _index(shape, index_strides, base_strides, tuple_axes, row_nbytes, index_dtype)
    ntasks = -(-values["npositions"] // values["rows_per_task"])
    return pack("any_gather", values, ntasks=ntasks, isa=isa)


def scatter(
    shape: Sequence[int], index_strides: Sequence[int], base_strides: Sequence[int],
    tuple_axes: Sequence[tuple[int, int]], row_nbytes: int, index_dtype: str = "s64", *,
    dtype: str = "u8", reduction: str = "none", isa: str | None = None,
) -> KernelCall:  # fmt: skip
    """Put rows into a tensor, in the order of positions; arguments: updates, which are dense, indices, dst.

    Parameters and errors as of `gather`, of dst in place of src. `dtype` is of no matter without a reduction, a key of
    `REDUCTIONS`; every update is rounded to the type.
    """
    if reduction not in REDUCTIONS:
        raise InvalidArgumentError(explain("unknown reduction", accepted=", ".join(REDUCTIONS), got=reduction))
    values = _index(shape, index_strides, base_strides, tuple_axes, row_nbytes, index_dtype)
    values |= {"dtype": DTYPE_CODES[dtype], "reduction": REDUCTIONS[reduction]}
    return pack("any_scatter", values, ntasks=int(values["npositions"] * row_nbytes > 0), isa=isa)


def _index(
    shape: Sequence[int], index_strides: Sequence[int], base_strides: Sequence[int],
    tuple_axes: Sequence[tuple[int, int]], row_nbytes: int, index_dtype: str,
) -> dict[str, Any]:  # fmt: skip
    if index_dtype not in ("s32", "s64"):
        raise InvalidArgumentError(explain("type of indices", accepted="s32, s64", got=index_dtype), dtype=index_dtype)
    npositions = prod(shape)
    if npositions > 0 and any(dim == 0 for dim, _ in tuple_axes):
        raise InvalidShapeError(explain("axis to index", accepted="at least one element", got=0))
    axes = collapse(shape, index_strides, base_strides)[::-1]
    dims, indices, bases = zip(*axes, strict=True)
    return {
        "ndim": len(axes), "dims": dims, "index_strides": indices, "base_strides": bases,
        "tuple_size": len(tuple_axes), "tuple_dims": [dim for dim, _ in tuple_axes],
        "tuple_strides": [stride for _, stride in tuple_axes], "index_dtype": DTYPE_CODES[index_dtype],
        "npositions": npositions, "row_nbytes": row_nbytes,
        "rows_per_task": largest(1, _TASK_NBYTES // largest(row_nbytes, 16)),
    }  # fmt: skip


def top_k(
    shape: Sequence[int],
    axis: int,
    k: int,
    dtype: str,
    *,
    is_largest: bool = True,
    src_strides: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """The k largest or smallest elements of each line along an axis, in order; a NaN is larger than every number.

    Arguments: src, of a type of at least 8 bits, but no f8; indices (s64), values; both dense, with k in place of the
    axis. Of equal elements the first comes first. Tasks: lines.

    Method: a heap of the k best so far, sorted by merging at the end. Cost: O(n log k) a line, 32 k bytes of scratch.
    """
    axis = normalise_axis(axis, len(shape))
    src = check_strides("src", shape, src_strides)
    if not 0 <= k <= shape[axis]:
        raise InvalidShapeError(explain("elements to pick", accepted=f"0 .. {shape[axis]}", got=k))
    dst = dense_strides([k if n == axis else dim for n, dim in enumerate(shape)])
    outer, nlines = space(*without(axis, shape, src, dst))
    values = {
        "outer": outer, "axis": shape[axis], "axis_stride": (src[axis], dst[axis]), "k": k,
        "dtype": DTYPE_CODES[dtype], "is_largest": is_largest,
    }  # fmt: skip
    scratch_nbytes = 2 * record("top_k_entry").nbytes * k
    return pack("any_top_k", values, ntasks=nlines if k else 0, scratch_nbytes=scratch_nbytes, isa=isa)
