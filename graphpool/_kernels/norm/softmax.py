"""Softmax and log-softmax kernels (``norm/softmax.c``)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ..core.call import KernelCall, pack
from ..core.spaces import check_strides, normalise_axis, space, split_axes, take_contiguous

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["softmax"]

_TILE = 64


def softmax(
    shape: Sequence[int],
    axis: int,
    *,
    is_log: bool = False,
    inf_as_zero: bool = False,
    stats: bool = False,
    src_strides: Sequence[int] | None = None,
    dst_strides: Sequence[int] | None = None,
    stats_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    isa: str | None = None,
) -> KernelCall:
    """Softmax of f32 over one axis: exp(x - max) / sum(exp(x - max)), or its logarithm.

    Parameters
    ----------
    shape : sequence of int
        Shape of src and dst.
    axis : int
        The axis; negative counts from the end.
    is_log : bool, default=False
        Compute (x - max) - log(sum(exp(x - max))).
    inf_as_zero : bool, default=False
        A row of nothing but -inf gives zeros instead of NaN (no effect on log-softmax, which gives NaN there).
    stats : bool, default=False
        Also write max + log(sum(exp(x - max))), f32, of the shape of src with 1 at `axis`.
    src_strides, dst_strides, stats_strides : sequence of int, optional
        Dense by default. Unit: elements. With an epilogue, dst_strides are those of its linear index.
    epilogue : bytes, optional
        Block of an elementwise program, run on the results instead of a plain write.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        Arguments: src, [stats], dst, [the epilogue's]. Tasks: rows, or tiles of 64 columns where `axis` is strided.

    Raises
    ------
    InvalidShapeError
        Shape, axis and strides do not fit together.

    Notes
    -----
    src and dst may be the same memory where their strides are equal. A NaN, or +inf, makes its row NaN.
    """
    ndim = len(shape)
    src = check_strides("src", shape, src_strides)
    dst = check_strides("dst", shape, dst_strides)
    axis = normalise_axis(axis, ndim)
    reduced = [*shape[:axis], 1, *shape[axis + 1 :]]
    stat = check_strides("stats", reduced, stats_strides)
    rest = [k for k in range(ndim) if k != axis]
    dims, strides = split_axes([shape[k] for k in rest], *([s[k] for k in rest] for s in (src, dst, stat)))
    width, inner_strides = take_contiguous(dims, strides) if src[axis] != 1 else (1, [0, 0, 0])
    outer, count = space(dims, *strides)
    values = {
        "outer": outer, "axis": shape[axis], "axis_stride": (src[axis], dst[axis]), "inner": width,
        "inner_stride": inner_strides,
        "is_log": is_log, "inf_as_zero": inf_as_zero, "has_stats": stats, "has_program": bool(epilogue),
    }  # fmt: skip
    ntasks = count * -(-width // _TILE) if prod(shape) else 0
    scratch_nbytes = 4 * shape[axis] * min(width, _TILE)
    return pack("f32_softmax", values, ntasks=ntasks, scratch_nbytes=scratch_nbytes, tail=epilogue, isa=isa)
