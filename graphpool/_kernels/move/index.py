"""Kernels that find rows by index (``move/index.c``) and the best elements of lines (``move/top_k.c``)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain
from graphpool.typing import dense_strides

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..core.spaces import check_strides, collapse, normalise_axis, space

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["REDUCTIONS", "gather", "scatter", "top_k"]

REDUCTIONS = {"none": -1, "add": 0, "mul": 1, "max": 2, "min": 3}
"""Name -> number in ``reduce_row``."""

_TASK_NBYTES = 1 << 16


def gather(
    shape: Sequence[int], index_strides: Sequence[int], base_strides: Sequence[int],
    tuple_axes: Sequence[tuple[int, int]], row_nbytes: int, index_dtype: str = "s64", *, isa: str | None = None,
) -> KernelCall:  # fmt: skip
    """Pick rows of a tensor; arguments: src, indices, dst.

    Parameters
    ----------
    shape : sequence of int
        Positions: each has a row of dst, which is dense in their order.
    index_strides : sequence of int
        Where the indices of a position begin; they lie side by side. Unit: elements.
    base_strides : sequence of int
        What a position adds to the place in src. Unit: bytes.
    tuple_axes : sequence of (int, int)
        For each index of a position: dimension of the axis of src, and its stride in bytes.
    row_nbytes : int
        Unit: bytes.
    index_dtype : {"s64", "s32"}
    isa : str, optional
        Instruction set; the best one by default.

    Raises
    ------
    InvalidShapeError
        There are positions, and an axis without elements.
    InvalidArgumentError
        Another type of index.

    Notes
    -----
    Negative indices count from the end. An index outside its axis picks the nearest element: memory is never overrun.
    """
    values = _index(shape, index_strides, base_strides, tuple_axes, row_nbytes, index_dtype)
    ntasks = -(-values["npositions"] // values["rows_per_task"])
    return pack("any_gather", values, ntasks=ntasks, isa=isa)


def scatter(
    shape: Sequence[int], index_strides: Sequence[int], base_strides: Sequence[int],
    tuple_axes: Sequence[tuple[int, int]], row_nbytes: int, index_dtype: str = "s64", *,
    dtype: str = "u8", reduction: str = "none", isa: str | None = None,
) -> KernelCall:  # fmt: skip
    """Put rows into a tensor, in the order of positions; arguments: updates, indices, dst.

    Parameters
    ----------
    shape, index_strides, base_strides, tuple_axes, row_nbytes, index_dtype
        As of `gather`, of dst in place of src; updates are dense.
    dtype : str
        Type of the elements; of no matter without a reduction.
    reduction : {"none", "add", "mul", "max", "min"}
        How a row joins what is there; integers wrap, NaN wins in max and min. Every update is rounded to the type.
    isa : str, optional
        Instruction set; the best one by default.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError
        As of `gather`; an unknown reduction.
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
        "rows_per_task": max(1, _TASK_NBYTES // max(row_nbytes, 16)),
    }  # fmt: skip


def top_k(
    shape: Sequence[int],
    axis: int,
    k: int,
    dtype: str,
    *,
    is_largest: bool = True,
    select_last_index: bool = False,
    has_values: bool = True,
    is_nan_first: bool = False,
    src_strides: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """The k largest or smallest elements of each line along an axis, in order; a NaN is larger than every number.

    Parameters
    ----------
    shape : sequence of int
        Shape of src.
    axis : int
        Negative counts from the end.
    k : int
        At most the size of the axis.
    dtype : str
        Type of src: a number of at least 8 bits, but no f8.
    is_largest : bool, default=True
    select_last_index : bool, default=False
        Of equal elements the last comes first, instead of the first.
    has_values : bool, default=True
        Whether the elements are written too.
    is_nan_first : bool, default=False
        A NaN comes before all numbers, be it the largest or the smallest that are wanted.
    src_strides : sequence of int, optional
        Dense by default. Unit: elements.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        Arguments: src, indices, [values]; both are dense, with k in place of the axis, indices in s64. Tasks: lines.

    Raises
    ------
    InvalidShapeError
        Shape, axis, k and strides do not fit together.

    Notes
    -----
    Method: a heap of the k best so far. Cost: O(n log k) a line, 16 k bytes of scratch.
    """
    axis = normalise_axis(axis, len(shape))
    src = check_strides("src", shape, src_strides)
    if not 0 <= k <= shape[axis]:
        raise InvalidShapeError(explain("elements to pick", accepted=f"0 .. {shape[axis]}", got=k))
    dst = dense_strides([k if n == axis else dim for n, dim in enumerate(shape)])
    rest = [n for n in range(len(shape)) if n != axis]
    outer, nlines = space([shape[n] for n in rest], [src[n] for n in rest], [dst[n] for n in rest])
    values = {
        "outer": outer, "axis": shape[axis], "axis_stride": (src[axis], dst[axis]), "k": k,
        "dtype": DTYPE_CODES[dtype], "is_largest": is_largest, "is_last": select_last_index, "has_values": has_values,
        "is_nan_first": is_nan_first,
    }  # fmt: skip
    return pack("any_top_k", values, ntasks=nlines if k else 0, scratch_nbytes=16 * k, isa=isa)
